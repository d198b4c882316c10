"""What several rules do to a transfer."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from lab.core.known import known
from lab.core.ledger import Kind, Phase, Transfer
from lab.settle.behaviours.behaviour import Context


def over(axes: tuple[str, ...], transfer: Transfer, context: Context) -> Transfer:
    size = prod(context.mesh[axis] for axis in axes)
    stated = None if transfer.groups is None else transfer.groups * known(transfer.group_size)
    return replace(transfer, axes=axes, group_size=size, groups=stated and stated // size)


def in_products_dtype(transfer: Transfer) -> Transfer:
    """In the 16 bits of the products that a float32 value is summed or widened from."""
    if transfer.provenance.product != "bf16" or transfer.dtype != "f32":
        return transfer
    return replace(transfer, dtype="bf16", payload_bytes=transfer.payload_bytes // 2)


def is_gradient(transfer: Transfer) -> bool:
    return Phase.BACKWARD in (transfer.phase, transfer.provenance.made_in)


def where_made(transfer: Transfer) -> Transfer:
    """In the pass that makes the value."""
    return replace(transfer, phase=transfer.provenance.made_in or transfer.phase)


def is_declared_scatter(transfer: Transfer, context: Context) -> bool:
    return context.style == "declared" and transfer.kind is Kind.REDUCE_SCATTER


def masked(gather: Transfer) -> Transfer:
    """The all-reduce of what each device has its part of, and zeros beside it; of bytes, four in a word."""
    dtype = "u32" if gather.dtype in ("s8", "u8") else gather.dtype
    return replace(gather, kind=Kind.ALL_REDUCE, dtype=dtype, is_masked_gather=True)
