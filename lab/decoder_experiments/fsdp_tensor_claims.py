"""What FSDP x tensor parallelism, with or without split sequences, claims of a measured ledger (Ch. 24)."""

from __future__ import annotations

from fractions import Fraction

from lab.book.parallelism import activation_bytes, dp_volume_bytes, tp_volume_bytes
from lab.book.sharding import zero3_volume_bytes
from lab.book.tensor_parallel import sp_layer_wire_bytes
from lab.evidence import along, counted, element_bytes, of_elements
from lab.experiment import Claim, calculated, decided
from lab.ledger import Kind, Ledger, Totals
from lab.models.shape import DecoderShape
from meshes.axes import FSDP, TENSOR, Axes

NORM_BYTES = 4

def fsdp_tensor_claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if 1 in axes.sizes:
        return ()
    return (_volumes(shape, axes, measured), _payload(shape, axes, measured), *_links(measured))


def _volumes(shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    """Norms are left out: their gradients are summed whole."""
    d, t = axes[FSDP], axes[TENSOR]
    over_fsdp = tuple(x for x in along(measured, FSDP) if x.payload_bytes > NORM_BYTES * shape.embed * shape.layers)
    activations = of_elements(along(measured, TENSOR), tokens_of(shape, d) * shape.embed)
    e, sent = element_bytes(over_fsdp), tuple(Totals.of(transfers).wire_bytes for transfers in (over_fsdp, activations))
    ends = (1 if shape.tied else 2) * shape.vocab * shape.embed // t
    weights = zero3_volume_bytes(shape.layer_matrices // t, e, d) + dp_volume_bytes(ends, e, d)
    book = weights, over_tensor(shape, axes, e, is_split(measured))
    evidence = f"a device sends {counted(sent[0])} B of weights over fsdp and {counted(sent[1])} B of activations over tensor a step"
    evidence += f"; the formulas give {counted(book[0])} and {counted(book[1])} B at d={d}, t={t}"
    if sent != book and (extra := compilers_share(shape, axes, measured, e, sent, book)):
        return calculated("ch24.comm_per_axis", f"{evidence}; {extra}")
    return decided("ch24.comm_per_axis", sent == book, evidence)


def tokens_of(shape: DecoderShape, ranks: int) -> int:
    return shape.batch // ranks * shape.length


def is_split(measured: Ledger) -> bool:
    """Sequences are: activations are gathered, not summed only."""
    return any(t.kind is Kind.ALL_GATHER for t in along(measured, TENSOR))


def over_tensor(shape: DecoderShape, axes: Axes, bytes_per_element: int, is_split: bool) -> Fraction:
    """Layers, with what recomputation repeats, and both ends: the embedding leaves, the head is entered."""
    tokens, t = tokens_of(shape, axes[FSDP]), axes[TENSOR]
    ends = tp_volume_bytes(tokens, shape.embed, bytes_per_element, ranks=t, blocks=1)
    if is_split:
        again = {"none": 0, "selective": 0, "names": 2}.get(shape.remat, 3)
        return shape.layers * sp_layer_wire_bytes(tokens, shape.embed, bytes_per_element, t, regathers=again) + ends
    again = 1 if shape.remat in ("dots", "full") else 0
    return (4 + again) * shape.layers * ends / 2 + ends


def compilers_share(shape: DecoderShape, axes: Axes, measured: Ledger, bytes_per_element: int, sent: tuple, book: tuple) -> str:
    """Why a compiler sends more than the formula, where it is known to."""
    if any(t.kind is Kind.ALL_REDUCE and t.payload_bytes > NORM_BYTES * shape.embed * shape.layers for t in along(measured, FSDP, phase="backward")):
        return "this compiler sums gradients everywhere, where the formula scatters them (C2)"
    one_scatter = tp_volume_bytes(tokens_of(shape, axes[FSDP]), shape.embed, bytes_per_element, ranks=axes[TENSOR], blocks=1) / 4
    activations = of_elements(along(measured, TENSOR, kind=Kind.ALL_REDUCE, phase="forward"), tokens_of(shape, axes[FSDP]) * shape.embed)
    if activations and is_split(measured) and (sent[0], sent[1] - one_scatter) == book:
        return "the embedding is summed everywhere, not scattered (G9)"
    return ""


def _payload(shape: DecoderShape, axes: Axes, measured: Ledger) -> Claim:
    # Whatever is no softmax's sum of a number a token.
    moved = [t for t in along(measured, TENSOR) if t.payload_bytes > 4 * tokens_of(shape, axes[FSDP])]
    sizes, book = {t.payload_bytes for t in moved}, activation_bytes(tokens_of(shape, axes[FSDP]), shape.embed, element_bytes(moved))
    found = f"each transfer of activations over {axes[TENSOR]} ranks has {' or '.join(map(counted, sizes))} B"
    return decided("ch24.tp_scaling_claim", sizes == {book}, f"{found}; b S H w is {counted(book)} B, however many ranks there are")


def _links(measured: Ledger) -> tuple[Claim, ...]:
    """Decided where there are two links: between GPUs of one host, and between hosts."""
    tensor, fsdp = ({t.link for t in along(measured, axis)} for axis in (TENSOR, FSDP))
    if "network" not in tensor | fsdp:
        return ()
    evidence = f"activations over tensor cross {' and '.join(sorted(tensor))} links, weights over fsdp {' and '.join(sorted(fsdp))} links"
    return (decided("ch24.order_3d", (tensor, fsdp) == ({"host"}, {"network"}), evidence),)
