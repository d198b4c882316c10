"""What a round of local SGD or DiLoCo says of the book's volumes."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from lab.book.local_sgd import fragment_bytes, mean_bytes_of_step, meeting_wire_bytes, outer_state_bytes
from lab.book.parallelism import dp_volume_bytes
from lab.core.known import known
from lab.core.ledger import Ledger, Totals, Transfer
from lab.harness.claim import Claim, decided
from lab.harness.evidence import along, counted
from lab.meshes.axes import REPLICA, Axes
from lab.programs.memory.state import TOKEN_BYTES, parameters_on_device, static_bytes
from lab.programs.strategies.terms import elements, tokens_on_device, weights
from lab.programs.transforms import outer_mean
from lab.programs.transforms.local_sgd import RoundShape, inner, of_one_replica


def no_transfer_inside(id: str, shape: RoundShape, axes: Axes, measured: Ledger) -> Claim:
    often = sorted({known(t.executions) for t in along(measured, REPLICA)})
    return decided(
        id,
        bool(often) and max(often) <= shape.fragments,
        f"of {shape.every:,} steps none sends anything between replicas: what is sent there is sent "
        f"{' or '.join(map(counted, often))} times a round",
    )


def volume(id: str, shape: RoundShape, axes: Axes, measured: Ledger) -> Claim:
    """Of a round, beside what ordinary data parallelism sends for as many steps."""
    R, found = axes[REPLICA], Totals.of(along(measured, REPLICA)).wire_bytes
    book, filled = _book(shape, axes)
    one = of_one_replica(shape, axes)
    e, strategy = one.bytes_per_element, inner(axes)
    ordinary = dp_volume_bytes(parameters_on_device(strategy.master, one, axes), e, R)
    a_step = mean_bytes_of_step(found, shape.every)
    over = f", and chunks are filled up by {counted(filled - book)} B at most" if filled > book else ""
    evidence = (
        f"a device sends {counted(found)} B a round between replicas, {float(a_step):,.1f} B a step of "
        f"{shape.every:,}; 2(R-1)/R Psi w is {counted(book)} B at R={R}{over}. Data parallelism sends "
        f"{counted(ordinary)} B of gradients in {one.dtype} there every step, {float(ordinary / a_step):,.1f} times as "
        "much"
    )
    return decided(id, book <= found <= filled, evidence, statement="a round sends the model's weights once")


def _book(shape: RoundShape, axes: Axes) -> tuple[Fraction, Fraction]:
    """Bytes of a round by the formula, and at most with what fills up chunks of integers."""
    R, (matrices, vectors) = axes[REPLICA], _numbers(shape, axes)
    codec = outer_mean.FORMATS[shape.outer]
    if codec is None:
        whole = meeting_wire_bytes(matrices + vectors, R)
        return whole, whole
    most = matrices + (shape.fragments + 1) * R * outer_mean.CHUNK
    small = meeting_wire_bytes(vectors, R)
    by_formula, filled = (meeting_wire_bytes(n, R, codec.bits, codec.block) for n in (matrices, most))
    return by_formula + small, filled + small


def _numbers(shape: RoundShape, axes: Axes) -> tuple[int, int]:
    """Of one device's matrices, and of what is none."""
    one, master = of_one_replica(shape, axes), inner(axes).master
    whole = parameters_on_device(master, one, axes)
    vectors = sum(w.per_pass * one.embed for w in weights(one) if not w.is_matrix)
    return whole - vectors, vectors


def peak(id: str, shape: RoundShape, axes: Axes, measured: Ledger) -> Iterator[Claim]:
    """What leaves at once, where fragments meet in turn."""
    if shape.fragments == 1:
        return
    sent = along(measured, REPLICA)
    in_turn = [t for t in sent if t.executions == shape.fragments]
    one, last = _once(in_turn), _once([t for t in sent if t not in in_turn])
    whole = Totals.of(in_turn).wire_bytes
    evidence = (
        f"each of {shape.fragments} fragments sends {counted(one)} B at once, one every {shape.steps_between} steps, "
        f"and what is in no layer {counted(last)} B at the end of the round; all layers at once would send "
        f"{counted(whole)} B"
    )
    yield decided(id, one == fragment_bytes(_of_layers(shape, axes), shape.fragments), evidence, statement=PEAK)


PEAK = "fragments send 1 / F of the layers' bytes at once"


def _of_layers(shape: RoundShape, axes: Axes) -> Fraction:
    """Bytes of all layers' meetings, chunks filled up."""
    one, master, R = of_one_replica(shape, axes), inner(axes).master, axes[REPLICA]
    vectors = sum(w.per_pass * one.embed for w in weights(one) if w.in_layers and not w.is_matrix)
    at_ends = sum(elements(w, master, one, axes) for w in weights(one) if not w.in_layers)
    matrices = parameters_on_device(master, one, axes) - at_ends - vectors
    codec, chunk = outer_mean.FORMATS[shape.outer], R * outer_mean.CHUNK
    if codec is None:
        return meeting_wire_bytes(matrices + vectors, R)
    filled = shape.fragments * -(-matrices // (shape.fragments * chunk)) * chunk
    return meeting_wire_bytes(filled, R, codec.bits, codec.block) + meeting_wire_bytes(vectors, R)


def _once(transfers: list[Transfer]) -> Fraction:
    return sum((known(t.wire_bytes) for t in transfers), Fraction(0))


def state(id: str, shape: RoundShape, axes: Axes, measured: Ledger) -> Iterator[Claim]:
    """What DiLoCo holds beside a step's state."""
    if measured.memory is None:
        return
    one, strategy = of_one_replica(shape, axes), inner(axes)
    held = measured.memory.arguments - measured.memory.padding
    batches = (shape.every - 1) * 2 * TOKEN_BYTES * one.accumulation * tokens_on_device(strategy, one, axes)
    extra = outer_state_bytes(parameters_on_device(strategy.master, one, axes))
    step = static_bytes(strategy, one, axes)
    evidence = (
        f"a device begins a round with {counted(held)} B: {counted(step)} B of a step, {counted(batches)} B of the "
        f"other {shape.every - 1:,} batches, and {counted(held - step - batches)} B of anchor and momentum; 8 Psi is "
        f"{counted(extra)}"
    )
    yield decided(id, held == step + batches + extra, evidence, statement="anchor and momentum take 8 Psi bytes")
