"""What several parallelisms on one mesh claim of a measured ledger (Ch. 24 and 25)."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import inf, prod

from lab.book.context import ring_wire_bytes
from lab.book.device_mesh import domains_spanned
from lab.book.experts import all_to_all_wire_bytes, buffer_bytes
from lab.book.parallelism import dp_volume_bytes
from lab.core.ledger import Kind, Ledger, Phase, Transfer
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.composed import ComposedShape, computed
from lab.harness.evidence import along, counted, element_bytes
from lab.meshes.axes import CONTEXT, DATA, EXPERT, PIPE, TENSOR, Axes
from lab.meshes.platforms import LinkName
from lab.meshes.targets import parse_target

RINGS = ("ring", "zigzag")
FLOPS_TOLERANCE = 0.005
REDUCTIONS = (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER)
OF_EXPERTS = ("layers/mlp/gate", "layers/mlp/up", "layers/mlp/down")


def composed_claims(shape: ComposedShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    """Those that the mesh has the axes for."""
    found = (
        _place(axes, measured),
        _gradients_over_data(shape, axes, measured),
        _ring(shape, axes, measured),
        _dispatch(shape, axes, measured),
        _who_sums_what(shape, axes, measured),
        _computes(shape, axes, measured),
    )
    return tuple(claim for claim in found if claim)


def _place(axes: Axes, measured: Ledger) -> Claim | None:
    """Where there are two links, between GPUs of one host and between hosts."""
    target = parse_target(measured.target) if measured.target else None
    links = {t.link for t in along(measured, TENSOR)} if axes.shape.get(TENSOR, 1) > 1 else set()
    if target is None or target.platform != "gpu" or not links:
        return None
    stride = prod(axes[name] for name in axes.names[axes.names.index(TENSOR) + 1 :])
    firsts = axes.groups((TENSOR,))[:, 0].tolist()
    hosts = max(int(domains_spanned(axes[TENSOR], stride, target.per_host, first)) for first in firsts)
    book, lies = (
        (LinkName.HOST, f"stays inside a host of {target.per_host}")
        if hosts == 1
        else (LinkName.NETWORK, f"spans up to {hosts} hosts of {target.per_host}")
    )
    slowest = " or ".join("inside a host" if link == LinkName.HOST else "between hosts" for link in links)
    evidence = (
        f"in the order {', '.join(axes.names)} a tensor group of {axes[TENSOR]} has stride {stride} and {lies}; the "
        f"slowest link of its compiled transfers is {slowest}"
    )
    return decided("ch25.mesh_4d5d", links == {book}, evidence)


def _gradients_over_data(shape: ComposedShape, axes: Axes, measured: Ledger) -> Claim | None:
    """Of the layers of a stage, where `data` alone sums them."""
    others = {name for name in axes.names if axes[name] > 1} - {DATA, PIPE, TENSOR}
    if axes.shape.get(DATA, 1) == 1 or others or shape.zero or shape.stage_layers:
        return None
    sums = [
        t
        for t in along(measured, DATA, kind=Kind.ALL_REDUCE)
        if t.scope.startswith("layers/") and not t.scope.endswith("norm")
    ]
    if any(t.executions != 1 for t in sums):
        return None  # Outside of pipelines a gradient is summed in each layer.
    p, t, d = axes.shape.get(PIPE, 1), axes.shape.get(TENSOR, 1), axes[DATA]
    if any(part.axis == DATA for each in measured.transfers for part in each.sub_axes or ()):
        book = dp_volume_bytes(shape.layer_matrices // (p * t), shape.bytes_per_element, d)
        return calculated(
            "ch24.comm_per_axis",
            f"2(d-1)/d Psi w / (t p) is {counted(book)} at d={d}, t={t}, p={p}, w={shape.bytes_per_element}; the "
            "compiled program sums over parts of data, in transfers that do not tell whose gradients they are",
        )
    e, wire = element_bytes(sums), sum(each.wire_bytes or 0 for each in sums)
    book = dp_volume_bytes(shape.layer_matrices // (p * t), e, d)
    evidence = (
        f"a device sends {counted(wire)} B of gradients of its stage's matrices over data; 2(d-1)/d Psi w / (t p) is "
        f"{counted(book)} at d={d}, t={t}, p={p}, w={e}"
    )
    return decided("ch24.comm_per_axis", wire == book, evidence)


def _ring(shape: ComposedShape, axes: Axes, measured: Ledger) -> Claim | None:
    """By one message: keys and values go c - 1 hops each."""
    c, t = (axes.shape.get(name, 1) for name in (CONTEXT, TENSOR))
    if c == 1 or shape.attention not in RINGS:
        return None
    hops = [
        hop
        for hop in along(measured, CONTEXT, kind=Kind.COLLECTIVE_PERMUTE)
        if hop.phase == Phase.FORWARD or (hop.phase is None and hop.scope.startswith("forward/"))
    ]
    tokens = shape.micro_batch // prod(axes[name] for name in _of_batch(axes)) * shape.length
    sizes, e = {hop.payload_bytes for hop in hops}, element_bytes(hops)
    book = ring_wire_bytes(tokens, shape.kv_heads * shape.head_dim // t, e, c)
    evidence = (
        f"a rank hands on {' or '.join(map(counted, sizes))} B of keys or values; (c-1) 2 b (S/c) (g d_h/t) w is "
        f"{counted(book)} B a layer at c={c}, t={t}, w={e}"
    )
    return decided("ch25.comm_4d", {2 * (c - 1) * size for size in sizes} == {book}, evidence)


def _dispatch(shape: ComposedShape, axes: Axes, measured: Ledger) -> Claim | None:
    """By one all-to-all; slots are rounded up."""
    ranks = axes.shape.get(EXPERT, 1)
    sent = along(measured, EXPERT, kind=Kind.ALL_TO_ALL) if ranks > 1 else ()
    c = axes.shape.get(CONTEXT, 1)
    if not sent or shape.is_dropless or shape.capacity_factor * shape.length // c * shape.top_k % shape.experts:
        return None
    e, tokens = element_bytes(sent), shape.micro_batch * shape.length // prod(axes[n] for n in _of_tokens(axes))
    wires = {float(t.wire_bytes or 0) for t in sent}
    book = float(
        all_to_all_wire_bytes(buffer_bytes(tokens, shape.embed, e, shape.top_k, shape.capacity_factor), ranks, 1)
    )
    evidence = (
        f"each all-to-all over expert sends {' or '.join(f'{w:,.0f}' for w in wires)} B a rank; (e-1)/e C_f k T H w is "
        f"{book:,.0f} at e={ranks}, T={tokens:,}"
    )
    return decided("ch25.ep_dispatch", wires == {book}, evidence)


def _who_sums_what(shape: ComposedShape, axes: Axes, measured: Ledger) -> Claim | None:
    if axes.shape.get(EXPERT, 1) == 1 or len(_of_tokens(axes)) < 2:
        return None
    sums = [t for t in measured.split().transfers if t.kind in REDUCTIONS and t.axes]
    experts, rest = (
        _axes_of(t for t in sums if t.scope.endswith(some))
        for some in (OF_EXPERTS, ("layers/attention/query", "layers/attention/out"))
    )
    own = set(_of_tokens(axes)) - {EXPERT}
    evidence = (
        f"gradients of experts are summed over {', '.join(axes.ordered(experts))}, of all other matrices over "
        f"{', '.join(axes.ordered(rest))}"
    )
    return decided("ch25.grad_sync_5d", (experts, rest) == (own, own | {EXPERT}), evidence, structural=True)


def _computes(shape: ComposedShape, axes: Axes, measured: Ledger) -> Claim | None:
    """Of the whole text, and by the schedule of each stage."""
    found = computed(shape, axes, measured)
    if found is None or found.compiled is None:
        return None
    farthest = max((_off(compiled, theory) for compiled, theory in found.pairs), key=abs)
    stages = (
        f"; by the schedule a device of each of {len(found.by_stages)} stages {counted(min(found.compiled_by_stages))} "
        f"to {counted(max(found.compiled_by_stages))}"
        if len(found.compiled_by_stages) > 1
        else ""
    )
    again = sum(measured.flops_rematerialized.values())
    added = f", without {counted(again)} that XLA rematerializes for lack of memory" if again else ""
    zeros = sum(measured.flops_padded.values())
    added += f", without {counted(zeros)} with zeros by which it fills up operands" if zeros else ""
    evidence = (
        f"a device of the compiled program multiplies {counted(found.compiled)} FLOP a step{added}{stages}; the "
        f"formula, cause by cause, is off by {farthest:+.3%} at most"
    )
    return decided(
        "ch32.flops_per_token",
        abs(farthest) <= FLOPS_TOLERANCE,
        evidence,
        statement="6 N D, with what else is multiplied, is what is compiled",
        structural=True,
    )


def _off(compiled: Fraction, theory: Fraction) -> float:
    """Relative to theory; a stage without layers computes nothing, by either."""
    if compiled == theory:
        return 0.0
    return float(compiled / theory - 1) if theory else inf


def _axes_of(sums: Iterable[Transfer]) -> set[str]:
    return {axis for each in sums for axis in each.axes or ()}


def _of_tokens(axes: Axes) -> tuple[str, ...]:
    """Axes along which ranks have tokens of their own."""
    return tuple(name for name in axes.names if axes[name] > 1 and name not in (PIPE, TENSOR))


def _of_batch(axes: Axes) -> tuple[str, ...]:
    return tuple(name for name in _of_tokens(axes) if name != CONTEXT)
