"""Chapter 18: what does expert parallelism cost a training step, and which gradients are reduced over which axes?"""

from lab.book.experts import (
    all_to_all_wire_bytes,
    buffer_bytes,
    capacity,
    expert_parameters,
)
from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Phase, Totals, Transfer
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.experts import expert_experiment, tokens_on_rank
from lab.harness.evidence import along, counted, element_bytes
from lab.harness.experiment import TimedSteps
from lab.hlo.shapes import bits
from lab.meshes.axes import DATA, EXPERT, Axes
from lab.programs.memory.state import static_bytes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.expert_parallel import EXPERT_PARALLEL
from lab.programs.strategies.terms import RECOMPUTING

FLOAT_BYTES = 4
STRATEGY = DATA_PARALLEL | EXPERT_PARALLEL


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    moved = along(measured, EXPERT, kind=Kind.ALL_TO_ALL)
    if axes[EXPERT] == 1 or not shape.experts or not moved or shape.mtp:  # The book's layers are all in loops.
        return ()
    sent = (
        ()
        if shape.is_dropless
        else (*_volume(shape, axes, moved), _slots(shape, axes, moved), _of_all_tokens(shape, axes, moved))
    )
    return (*sent, *_gradients(shape, axes, measured), *_placed(shape, axes, measured))


def _volume(shape: DecoderShape, axes: Axes, moved: tuple[Transfer, ...]) -> tuple[Claim, Claim]:
    P, T, e, sent = axes[EXPERT], tokens_on_rank(shape, axes.size), element_bytes(moved), Totals.of(moved)
    times = (6 if shape.remat in RECOMPUTING else 4) * shape.expert_layers * shape.accumulation
    n = buffer_bytes(T, shape.embed, e, shape.top_k, shape.capacity_factor)
    book, printed = (
        float(all_to_all_wire_bytes(n, P, times)),
        float(all_to_all_wire_bytes(T * shape.embed, P, 2)) * shape.expert_layers * shape.accumulation,
    )
    evidence = (
        f"{sent.executions} all-to-alls in {shape.expert_layers} layers send {counted(sent.wire_bytes)} B a rank at "
        f"remat={shape.remat}"
    )
    compared = (
        f"{evidence}; {times} times (P-1)/P C_f k T H e is {book:,.0f} B at P={P}, T={T:,}, k={shape.top_k}, "
        f"C_f={shape.capacity_factor:g}"
    )
    is_rounded = shape.slots * shape.experts != shape.capacity_factor * shape.length * shape.top_k
    right = (
        calculated("ch18.moe_comm", f"{compared}, each expert's slots rounded up")
        if is_rounded
        else decided("ch18.moe_comm", sent.wire_bytes == book, compared)
    )
    wrong = decided(
        "ch18.moe_comm",
        sent.wire_bytes == printed,
        f"{evidence}, not {printed:,.0f}",
        statement="a layer sends 2(P-1)/P T H",
        disputed="4-5:D-43",
    )
    return right, wrong


def _slots(shape: DecoderShape, axes: Axes, moved: tuple[Transfer, ...]) -> Claim:
    sequences, sizes = shape.micro_batch // axes.size, {t.payload_bytes for t in moved}
    slots = {size / (sequences * shape.experts * shape.embed * element_bytes(moved)) for size in sizes}
    book = int(capacity(shape.length, shape.experts, shape.top_k, shape.capacity_factor))
    evidence = (
        f"each buffer has {' or '.join(f'{s:g}' for s in slots)} slots of an expert for a sequence of "
        f"{shape.length}; ceil(C_f T k/E) is {book}"
    )
    return decided("ch18.capacity", slots == {book}, evidence)


def _of_all_tokens(shape: DecoderShape, axes: Axes, moved: tuple[Transfer, ...]) -> Claim:
    """A rank's own tokens k times, where the book has an expert's share of everyone's."""
    payload, T, k = (
        float(Totals.of(moved).payload_bytes) / Totals.of(moved).executions,
        tokens_on_rank(shape, axes.size),
        shape.top_k,
    )
    shares = (T, k), (T * axes.size, k / shape.experts)
    own, all_tokens = (
        buffer_bytes(tokens, shape.embed, element_bytes(moved), copies, shape.capacity_factor)
        for tokens, copies in shares
    )
    evidence = (
        f"a buffer holds {payload:,.0f} B: k T_rank d w is {own:,.0f} B with empty slots, k/E T_global d w "
        f"{all_tokens:,.0f} B"
    )
    if own == all_tokens:
        return calculated("ch35.a2a_volume", f"{evidence}: the same for as many ranks as experts")
    return decided(
        "ch35.a2a_volume",
        payload == all_tokens,
        evidence,
        statement="a rank sends k/E of all tokens",
        disputed="6-8:D-129",
    )


def _gradients(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    """Experts' over data, of a rank's share of them; all others' over both axes. What is summed after the last
    micro-batch is in the update."""
    if axes[DATA] == 1:
        return ()
    sums = tuple(
        t
        for t in measured.split().transfers
        if t.kind is Kind.ALL_REDUCE and t.phase != Phase.FORWARD and t.payload_bytes not in _numbers(shape)
    )
    groups = (DATA,), (EXPERT,), axes.ordered((DATA, EXPERT))
    own, expert_axis, rest = (sum(_summed(t, shape) for t in sums if t.axes == names) for names in groups)
    experts = shape.expert_layers * expert_parameters(shape.experts, shape.embed, shape.mlp, shape.mlp_matrices)
    book = experts // axes[EXPERT], 0, shape.parameters - experts - shape.biases
    evidence = (
        f"gradients of {counted(own)} weights are summed over data={axes[DATA]} and of {counted(rest)} over all "
        f"{axes.size} ranks"
    )
    if repeated := sum(known(t.executions) > _of_a_step(t, shape) for t in sums):
        evidence += f", by {repeated} of {len(sums)} sums for each of {shape.accumulation} micro-batches"
    compared = f"{evidence}; a rank's experts have {counted(book[0])}, all else {counted(book[2])}"
    return (
        decided("ch18.ep_dp", (own, expert_axis, rest) == book, compared),
        decided(
            "ch18.ep_dp",
            shape.parameters in (own, rest),
            evidence,
            statement="all gradients are summed over one group",
            disputed="4-5:D-44",
        ),
        decided(
            "ch25.grad_sync_5d",
            (own, rest) == (book[2], book[0]),
            evidence,
            statement="experts' are summed over both, the rest over data",
            disputed="6-8:D-24",
        ),
    )


def _summed(sums: Transfer, shape: DecoderShape) -> int:
    """Weights whose gradients these are, in whatever dtype they travel."""
    return 8 * int(sums.payload_bytes) // bits(sums.dtype) * _of_a_step(sums, shape)


def _of_a_step(sums: Transfer, shape: DecoderShape) -> int:
    """Executions of one micro-batch where the declared style sums each of them (X9), of the step where it sums once."""
    executions = known(sums.executions)
    again, rest = divmod(executions, shape.accumulation)
    return executions if rest else again


def _numbers(shape: DecoderShape) -> set[int]:
    """Bytes of what is float32 whatever the gradients are: a sum of squares, and loads of experts, of a layer or of
    all."""
    loads = FLOAT_BYTES * shape.experts
    return {FLOAT_BYTES} | ({loads, loads * shape.expert_layers} if shape.biases else set())


def _placed(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if measured.memory is None:
        return ()
    held, book = measured.memory.arguments - measured.memory.padding, static_bytes(STRATEGY, shape, axes)
    evidence = (
        f"a device stores {counted(held)} B, {shape.experts // axes[EXPERT]} of {shape.experts} experts included; "
        f"by the formula {counted(book)} B"
    )
    return (decided("ch18.placement", held == book, evidence, statement="E > P: a rank holds E/P experts"),)


EXPERIMENT = expert_experiment(
    name="ch18_expert_parallel",
    chapter=18,
    question="What does expert parallelism cost a training step, and which gradients are reduced over which axes?",
    strategy=STRATEGY,
    claims=claims,
    tour=TimedSteps(settings={"experts": 8, "mlp": 1408}),
    everyday=(("explicit", "gpu:h100:2x8"),),
)
