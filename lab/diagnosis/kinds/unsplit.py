"""Operations that XLA's partitioner does not split: their operands are gathered, and every device computes all of
it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from lab.core.ledger import Kind, wire_bytes
from lab.core.units import part_text
from lab.diagnosis.dims import followed
from lab.diagnosis.finding import Finding
from lab.diagnosis.flow import Use
from lab.diagnosis.kinds.together import together
from lab.diagnosis.program import Program, Site, operation, times
from lab.diagnosis.remedy import OnEachDevice, Remedy
from lab.hlo.flops import operand_shapes
from lab.hlo.shapes import Shape, arrays

_SHARD_MAP = (
    "shard its operand along dims that it does not mix, and wrap it in jax.shard_map, so that each device computes "
    "its own part"
)
_LOCAL_CALL = (
    "wrap it in jax.shard_map (or give it a rule with jax.experimental.custom_partitioning): XLA cannot look inside"
)
_SHOWN = "print a sum or a part of it, or call it in jax.shard_map, where each device prints its own part"
_TWO_STAGES = "do it in two stages in jax.shard_map: the best of each device first, then the best of those"
_BY_BLOCKS = "do it in blocks in jax.shard_map: each device scans its own part, then adds the totals of those before it"
_ANOTHER_DIM = "shard another dim for it (one all-to-all each way), or do it in stages in jax.shard_map"

ADVICE = {
    "fft": _SHARD_MAP,
    "sort": _ANOTHER_DIM,
    "argsort": _ANOTHER_DIM,
    "top_k": _TWO_STAGES,
    "approx_top_k": _TWO_STAGES,
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _BY_BLOCKS),
    **dict.fromkeys(("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"), _BY_BLOCKS),
    **dict.fromkeys(
        (
            "pure_callback",
            "io_callback",
            "ffi_call",
            "custom_call",
            "pallas_call",
            "tpu_custom_call",
            "triton_kernel_call",
        ),
        _LOCAL_CALL,
    ),
    **dict.fromkeys(("debug_print", "debug_callback"), _SHOWN),
    **dict.fromkeys(
        (
            "cholesky",
            "eigh",
            "eig",
            "qr",
            "geqrf",
            "householder_product",
            "svd",
            "lu",
            "triangular_solve",
            "schur",
            "tridiagonal",
        ),
        _SHARD_MAP,
    ),
}
_CALLS = frozenset(name for name, advice in ADVICE.items() if advice in (_LOCAL_CALL, _SHOWN))
_WINDOWS = re.compile(r"jit\((cum\w+)\)/reduce_window\w*$")


def unsplit_operation(program: Program) -> Iterator[Finding]:
    for sites in together(program, lambda site: site.primitive in ADVICE):
        gathers = [site for site in sites if _feeds(program, site)]
        if not gathers:
            continue
        name, gather = _name(gathers[0]), max(gathers, key=lambda s: s.transfer.payload_bytes)
        factor = times(gather.transfer.group_size or 0)
        does = (
            f"XLA cannot look into the call {name}"
            if gather.primitive in _CALLS
            else f"XLA does not partition {name} here"
        )
        sentence = (
            f"{does}: {program.moved(gather)} is gathered, {factor} its shard, and every device computes all of "
            f"it{_top_k(program, gather)}"
        )
        yield program.finding(
            "unsplit_operation",
            sentence,
            ADVICE.get(name, ADVICE[gather.primitive]),
            *sites,
            remedy=_on_each_device(program, gather),
            needed_bytes=_needed(program, gather) if len(gathers) == len(sites) else None,
        )


def _needed(program: Program, gather: Site) -> Fraction | None:
    """Nothing along a dim that the operation does not mix; else, in two stages, the best of each device, or in blocks
    their totals. None where that is not known."""
    dim, shape = gather.gathered
    devices, whole = gather.transfer.group_size or 1, gather.result
    often = 1 if gather.transfer.executions is None else gather.transfer.executions
    if _name(gather).startswith("cum") and whole.dims[dim : dim + 1] > (
        0,
    ):  # Of another dim each device scans its own part.
        return often * wire_bytes(Kind.ALL_GATHER, devices * whole.bytes // whole.dims[dim], devices)
    if gather.primitive == "top_k":
        best = _best(program, gather)
        pairs = 0 if best is None else devices * (best.bytes + 4 * best.elements)
        return often * wire_bytes(Kind.ALL_GATHER, pairs, devices) if pairs else None
    for use in program.uses(gather):
        at, mixed = followed(dim, shape, use.path), _mixed(use)
        if at is None or mixed is None or at in mixed:
            return None
    return Fraction(0)


def _mixed(use: Use) -> Sequence[int] | None:
    """The dims along which an operation works; None where that is not known."""
    shapes = operand_shapes(use.instruction, use.computation) if use.instruction else ()
    if use.instruction is None or use.number or not shapes:
        return None
    i, rank = use.instruction, len(shapes[0].dims)
    if i.opcode == "fft":
        return range(rank - len(re.findall(r"\d+", i.braced("fft_length") or "")), rank)
    if i.opcode == "sort":
        return [int(dim) for dim in re.findall(r"\d+", i.braced("dimensions") or "")]
    return range(rank - 2, rank) if i.opcode in ("cholesky", "triangular-solve") else None


def _on_each_device(program: Program, gather: Site) -> Remedy:
    operand = program.moving(gather)
    argument = None if operand is None else program.argument_of(*operand)
    return (OnEachDevice(gather.op_name, argument.dims),) if argument is not None and argument.dims else ()


def grouped_convolution(program: Program) -> Iterator[Finding]:
    """A convolution in groups whose operand is gathered though no group needs another's channels."""

    def is_grouped(site: Site) -> bool:
        uses = program.uses(site, frozenset({"pad"})) if site.kind == "all_gather" and "conv" in site.primitive else []
        return any(use.instruction and use.number == 0 and _groups(use.instruction.attributes) > 1 for use in uses)

    for sites in together(program, is_grouped):
        gather = sites[0]
        sentence = (
            f"XLA does not partition a grouped convolution here: {program.moved(gather)} is gathered, "
            f"{times(gather.transfer.group_size or 0)} its shard, and every device computes all of it"
        )
        yield program.finding(
            "unsplit_operation", sentence, "wrap it in jax.shard_map with whole groups on each device", *sites
        )


def _groups(attributes: str) -> int:
    return max([int(found) for found in re.findall(r"(?:feature|batch)_group_count=(\d{1,9})", attributes)], default=1)


def _feeds(program: Program, site: Site) -> bool:
    """It moves an operand, and not what the operation has made of each device's part: that is a split operation."""
    operand = program.moving(site)
    if operand is None:
        return True
    way = [i for i, _ in program.flow.back(*operand)]
    whole = program.argument_behind(site)
    # The best of each device, say: made by the operation itself, and far less than what it works on.
    is_result = way[-1].opcode != "parameter" and any(operation(i.op_name) == site.primitive for i in way)
    is_less = whole is not None and 2 * site.transfer.payload_bytes <= whole.local.bytes * (
        site.transfer.group_size or 1
    )
    return site.kind == "all_gather" and not (is_result and is_less)


def _name(site: Site) -> str:
    """`cumsum` for `jit(cumsum)/reduce_window_sum`."""
    level = _WINDOWS.search(site.op_name)
    return level[1] if level else site.primitive


def _top_k(program: Program, gather: Site) -> str:
    """Of top_k, what two stages would move: a value and a place for each of the k best of each device."""
    best = _best(program, gather)
    if best is None:
        return ""
    part = Fraction(2 * best.elements * (gather.transfer.group_size or 1), gather.result.elements)
    return f"; the best {best.dims[-1]} of each device would be {part_text(part)} of the bytes"


def _best(program: Program, gather: Site) -> Shape | None:
    """The values that top_k gives, where those of each device are less than what is gathered."""
    if gather.primitive != "top_k":
        return None
    results = [arrays(use.instruction.shape) for use in program.uses(gather) if use.instruction]
    values = min(
        (shapes[0] for shapes in results if shapes and shapes[0].dims), key=lambda shape: shape.elements, default=None
    )
    is_less = values and 2 * values.elements * (gather.transfer.group_size or 1) < gather.result.elements
    return values if is_less else None
