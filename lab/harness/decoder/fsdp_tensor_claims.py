"""What FSDP x tensor parallelism, with or without split sequences, claims of a measured ledger (Ch. 24)."""

from __future__ import annotations

from fractions import Fraction
from math import inf

from lab.book.parallelism import activation_bytes, dp_volume_bytes, tp_volume_bytes
from lab.book.tensor_parallel import sp_layer_wire_bytes
from lab.core.known import known
from lab.core.ledger import Kind, Ledger
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.zero_claims import (
    ends_numbers,
    layers_numbers,
    moved_for_weights,
    never_split,
)
from lab.harness.evidence import (
    along,
    counted,
    element_bytes,
    elements,
    elements_sent,
    of_elements,
)
from lab.meshes.axes import FSDP, TENSOR, Axes
from lab.meshes.platforms import LinkName
from lab.meshes.targets import parse_target
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.terms import SUMMING_AGAIN

SCALAR_BYTES = 4


def fsdp_tensor_claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if 1 in axes.sizes:
        return ()
    if shape.is_latent or shape.mtp:  # The book has no latents and one prediction.
        return _links(axes, measured)
    return (_volumes(shape, axes, measured), _payload(shape, axes, measured), *_links(axes, measured))


def _volumes(shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    """Counts numbers, not bytes: gradients of norms that were added up over micro-batches travel in float32."""
    d, t, A = axes[FSDP], axes[TENSOR], shape.accumulation
    weights, activations = (
        moved_for_weights(measured, FSDP),
        of_elements(along(measured, TENSOR), tokens_of(shape, d) * shape.embed),
    )
    sent = elements_sent(weights), elements_sent(activations)
    norms = max(0, never_split(shape) - summed_over_both(measured))
    book = (
        (layers_numbers(shape, d) + ends_numbers(shape, d)) / t + (dp_volume_bytes(norms, 1, d) if norms else 0),
        A * over_tensor(shape, axes, is_split(measured)),
    )
    evidence = (
        f"a device sends {counted(sent[0])} numbers of weights over fsdp and {counted(sent[1])} of activations over "
        "tensor per step"
    )
    evidence += (
        f"; the formulas give {counted(book[0])} and {counted(book[1])} at d={d}, t={t}, remat={shape.remat}"
        + (f", A={A}" if A > 1 else "")
    )
    return decided("ch24.comm_per_axis", sent == book, evidence)


def tokens_of(shape: DecoderShape, ranks: int) -> int:
    """Of one micro-batch."""
    return shape.micro_batch // ranks * shape.length


def summed_over_both(measured: Ledger) -> int:
    """Numbers of norms that ranks along both axes applied to tokens, or heads, of their own: their gradients are summed
    at once."""
    return int(
        elements(
            t
            for t in measured.split().transfers
            if t.axes is not None and {FSDP, TENSOR} <= set(t.axes) and t.payload_bytes > SCALAR_BYTES
        )
    )


def is_split(measured: Ledger) -> bool:
    """Sequences are: activations are gathered, not summed only."""
    return any(t.kind is Kind.ALL_GATHER for t in along(measured, TENSOR))


def over_tensor(shape: DecoderShape, axes: Axes, is_split: bool) -> Fraction:
    """Numbers of a micro-batch: layers, with what recomputation repeats, and both ends: the embedding leaves, the head
    is entered."""
    tokens, t = tokens_of(shape, axes[FSDP]), axes[TENSOR]
    ends = tp_volume_bytes(tokens, shape.embed, 1, ranks=t, blocks=1)
    if is_split:
        again = {"none": 0, "selective": 0, "names": 2}.get(shape.remat, 3)
        return shape.layers * sp_layer_wire_bytes(tokens, shape.embed, 1, t, regathers=again) + ends
    again = 1 if shape.remat in SUMMING_AGAIN else 0
    return (4 + again) * shape.layers * ends / 2 + ends


def _payload(shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    # Whatever is no softmax's sum of a number a token.
    moved = [t for t in along(measured, TENSOR) if t.payload_bytes > 4 * tokens_of(shape, axes[FSDP])]
    sizes, book = (
        {t.payload_bytes for t in moved},
        activation_bytes(tokens_of(shape, axes[FSDP]), shape.embed, element_bytes(moved)),
    )
    found = f"each all-reduce of activations over {axes[TENSOR]} ranks has {' or '.join(map(counted, sizes))} B"
    return decided(
        "ch24.tp_scaling_claim", sizes == {book}, f"{found}; b S H w is {counted(book)} B, however many ranks there are"
    )


def _links(axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    """Decided where there are two links, between GPUs of one host and between hosts, and tensor ranks are neighbours in
    one host."""
    tensor, fsdp = ({t.link for t in along(measured, axis)} for axis in (TENSOR, FSDP))
    if LinkName.NETWORK not in tensor | fsdp:
        return ()
    evidence = (
        f"activations over tensor cross {' and '.join(sorted(map(known, tensor)))} links, weights over fsdp "
        f"{' and '.join(sorted(map(known, fsdp)))} links"
    )
    if axes.names[-1] != TENSOR or (measured.target and axes[TENSOR] > _of_a_host(measured.target)):
        return (
            calculated(
                "ch24.order_3d",
                f"{evidence}; the order wants tensor innermost and inside a host, which mesh {axes} does not have",
            ),
        )
    return (decided("ch24.order_3d", (tensor, fsdp) == ({LinkName.HOST}, {LinkName.NETWORK}), evidence),)


def _of_a_host(target: str) -> float:
    """GPUs; of attached ones it is not known."""
    found = parse_target(target)
    return found.per_host if found.platform == "gpu" else inf
