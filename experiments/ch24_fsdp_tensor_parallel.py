"""Chapter 24: what does each axis of FSDP x tensor parallelism carry, on 16,384 GPUs and on 8 fake devices?"""

from dataclasses import replace
from fractions import Fraction
from math import gcd

from lab.book.parallelism import activation_bytes, dp_volume_bytes, tp_volume_bytes
from lab.book.sharding import zero3_volume_bytes
from lab.book.tensor_parallel import cross_entropy_wire_bytes, sp_layer_wire_bytes
from lab.decoder_experiment import decoder_experiment
from lab.evidence import along, counted, element_bytes
from lab.experiment import Claim, decided, device_count
from lab.ledger import Kind, Ledger, Totals
from lab.models.shape import DecoderShape
from lab.strategies.fsdp_tensor import FSDP_SEQUENCE
from meshes.axes import FSDP, TENSOR, Axes
from meshes.targets import Target

LLAMA3_405B = replace(DecoderShape.preset("llama3-405b"), batch=4096)
"""One sequence of 8,192 tokens for each of 4,096 groups of 4 GPUs."""


def axes(target: Target) -> Axes:
    """Groups of 4 devices for tensor parallelism."""
    devices = device_count(target)
    return Axes.of({FSDP: devices // gcd(devices, 4), TENSOR: gcd(devices, 4)})


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if 1 in axes.sizes:
        return ()
    return (_volumes(shape, axes, measured), _payload(shape, axes, measured), *_links(measured))


def _volumes(shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    over_fsdp = tuple(t for t in along(measured, FSDP) if t.kind is not Kind.ALL_REDUCE)
    over_tensor = along(measured, TENSOR)
    d, t = axes[FSDP], axes[TENSOR]
    e, sent = element_bytes(over_fsdp), tuple(Totals.of(transfers).wire_bytes for transfers in (over_fsdp, over_tensor))
    ends = 2 * shape.vocab * shape.embed // t
    book = zero3_volume_bytes(shape.layer_matrices // t, e, d) + dp_volume_bytes(ends, e, d), _over_tensor(shape, axes, e)
    evidence = f"a device sends {counted(sent[0])} B over fsdp and {counted(sent[1])} B over tensor a step; the formulas give {counted(book[0])} and {counted(book[1])} B"
    return decided("ch24.comm_per_axis", sent == book, f"{evidence} at d={d}, t={t}")


def _over_tensor(shape: DecoderShape, axes: Axes, bytes_per_element: int) -> Fraction:
    """Layers gather their inputs again and, fully recomputed, scatter the attention's output again; embedding and head gather and
    scatter once each; the softmax sums three numbers a token."""
    tokens, t = shape.batch // axes[FSDP] * shape.length, axes[TENSOR]
    again = {"none": 0, "selective": 0, "names": 2}.get(shape.remat, 3)
    layers = shape.layers * sp_layer_wire_bytes(tokens, shape.embed, bytes_per_element, t, regathers=again)
    ends = tp_volume_bytes(tokens, shape.embed, bytes_per_element, ranks=t, blocks=1)
    return layers + ends + cross_entropy_wire_bytes(tokens, t)


def _payload(shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    moved = [t for t in along(measured, TENSOR) if t.kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)]
    tokens = shape.batch // axes[FSDP] * shape.length
    sizes, book = {t.payload_bytes for t in moved}, activation_bytes(tokens, shape.embed, element_bytes(moved))
    found = f"each gather or scatter over {axes[TENSOR]} ranks has {' or '.join(map(counted, sizes))} B"
    return decided("ch24.tp_scaling_claim", sizes == {book}, f"{found}; b S H w is {counted(book)} B, however many ranks there are")


def _links(measured: Ledger) -> tuple[Claim, ...]:
    """Decided where there are two links: between GPUs of one host, and between hosts."""
    tensor, fsdp = ({t.link for t in along(measured, axis)} for axis in (TENSOR, FSDP))
    if "network" not in tensor | fsdp:
        return ()
    evidence = f"activations over tensor cross {' and '.join(sorted(tensor))} links, weights over fsdp {' and '.join(sorted(fsdp))} links"
    return (decided("ch24.order_3d", (tensor, fsdp) == ({"host"}, {"network"}), evidence),)


EXPERIMENT = decoder_experiment(
    name="ch24_fsdp_tensor_parallel",
    chapter=24,
    question="What does each axis of FSDP x tensor and sequence parallelism carry, for 405 billion parameters on 16,384 GPUs?",
    strategy=FSDP_SEQUENCE,
    axes=axes,
    claims=claims,
    parameters=LLAMA3_405B,
    targets=("gpu:h100:2048x8",),
)
