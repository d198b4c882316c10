"""Chapter 16: what does a pipeline send between its stages, how many ticks does it take, and are its gradients those of
one device?"""

from dataclasses import asdict, replace
from functools import partial

from lab.book.parallelism import activation_bytes
from lab.book.pipeline import (
    bubble_share,
    hops,
    pipeline_volume_bytes,
    stage_volume_bytes,
    zero_bubble_idle_s,
)
from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Transfer
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.step import SMALL
from lab.harness.evidence import along, counted, element_bytes
from lab.harness.experiment import Experiment, TimedSteps, TrainingStep
from lab.meshes.attached import device_count
from lab.meshes.axes import DATA, PIPE, TENSOR, Axes
from lab.meshes.targets import Target
from lab.programs.memory.saved import offloaded_bytes
from lab.programs.pipelines import program
from lab.programs.pipelines.memory import peak_terms
from lab.programs.pipelines.prediction import predict
from lab.programs.pipelines.program import PipelineShape
from lab.programs.pipelines.table import NOWHERE, Table, table_of
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.program import arguments
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL

STRATEGY = DATA_PARALLEL | TENSOR_PARALLEL


def axes(target: Target) -> Axes:
    """Two stages; where devices are left over, two ranks in a stage's tensor group; four stages where there are devices
    enough to have each twice."""
    devices = device_count(target)
    tensor = 2 if devices % 4 == 0 else 1
    pipe = next(p for p in (4, 2, 1) if devices % (p * tensor) == 0 and (devices >= 2 * p * tensor or p < 4))
    return Axes.of({DATA: devices // (pipe * tensor), PIPE: pipe, TENSOR: tensor})


def claims(shape: PipelineShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes[PIPE] == 1:
        return ()
    table, permutes = table_of(shape.order(axes[PIPE])), along(measured, PIPE, kind=Kind.COLLECTIVE_PERMUTE)
    message, ticks = max(t.payload_bytes for t in permutes), {known(t.executions) for t in permutes}
    return (
        _message(shape, axes, message, permutes),
        _volume(shape, axes, message, table),
        _separate(measured, ticks),
        _bubble(shape, axes, ticks),
        *([_hops(shape, axes, table)] if shape.chunks > 1 else []),
    )


def _message(shape: PipelineShape, axes: Axes, message: int, permutes: tuple[Transfer, ...]) -> Claim:
    tokens, e = shape.micro_batch // axes[DATA] * shape.length, element_bytes(permutes)
    book = activation_bytes(tokens, shape.embed, e)
    evidence = (
        f"a rank hands on {counted(message)} B, b S H e is {counted(book)} B at b S={tokens}, H={shape.embed}, "
        f"e={e}, whatever tensor={axes[TENSOR]} is"
    )
    return decided("ch16.p2p_size", {t.payload_bytes for t in permutes} == {book}, evidence)


def _volume(shape: PipelineShape, axes: Axes, message: int, table: Table) -> Claim:
    """What the schedule needs; a program whose ticks all end with a permute each way sends more."""
    needed, P, m = _needed(table), axes[PIPE], shape.accumulation
    by_all, interior = message * sum(needed), message * needed[min(1, P - 1)]
    evidence = (
        f"of {table.ticks} messages each way over {P - 1} boundaries the schedule needs {sum(needed)} of "
        f"{counted(message)} B, {counted(by_all)} B"
    )
    if shape.chunks > 1:
        return calculated("ch16.pp_volume", f"{evidence}; the formula is that of one chunk a stage")
    book = pipeline_volume_bytes(message, m, P), stage_volume_bytes(message, m, 2 if P > 2 else 1)
    evidence += (
        f" by all, {counted(interior)} B by stage 1; 2(P-1) m n is {counted(book[0])} B, and stage 1's part "
        f"{counted(book[1])} B"
    )
    return decided(
        "ch16.pp_volume",
        (by_all, interior) == book,
        evidence,
        statement="2(P-1) m n over all boundaries, 2 m n by a stage between two others",
    )


def _needed(table: Table) -> list[int]:
    """[stage]: messages it sends that are stored where they arrive, forward to the next stage and backward to the one
    before."""
    inputs, cotangents = (
        (column != NOWHERE).sum(axis=0) for column in (table.rows.new_input, table.rows.new_cotangent)
    )
    P = len(inputs)
    return [int(inputs[(stage + 1) % P] + cotangents[(stage - 1) % P]) for stage in range(P)]


def _separate(measured: Ledger, ticks: set[int]) -> Claim:
    """All that crosses stages; numbers that equal one device's say that it is enough."""
    across = [t for t in measured.split().transfers if t.axes and PIPE in t.axes]
    repeated = {t.kind for t in across if t.executions != 1}
    sums = [t.payload_bytes for t in across if t.executions == 1]
    evidence = f"{max(ticks)} times, once a tick, stages hand messages to their neighbours"
    evidence += f"; {len(sums)} sums of what all stages have copies of, {counted(sum(sums))} B, follow once"
    return decided("ch16.separability", repeated == {Kind.COLLECTIVE_PERMUTE} and len(ticks) == 1, evidence)


BUBBLES = {
    "gpipe": "ch16.gpipe_bubble",
    "1f1b": "ch16.1f1b_bubble",
    "eager_1f1b": "ch16.1f1b_bubble",
    "interleaved": "ch16.interleaved_bubble",
    "zb_h1": "ch16.zb_bubble",
    "zb_h2": "ch16.zb_bubble",
}


def _bubble(shape: PipelineShape, axes: Axes, ticks: set[int]) -> Claim:
    """In ticks, of which every piece of work takes one."""
    T, P, m, v = max(ticks), axes[PIPE], shape.accumulation, shape.chunks
    jobs = m * v * (3 if shape.schedule.startswith("zb") else 2)
    evidence = (
        f"the loop runs {T} ticks, and a stage works in {jobs} of them, {m * v} for each of its jobs: what a job "
        f"sends is read as {T} times, its branch's bound"
    )
    if shape.schedule == "zb_h1" and m < P:
        return calculated(BUBBLES["zb_h1"], f"{evidence}: the formula needs {P} micro-batches or more on {P} stages")
    if shape.schedule == "zb_h2":
        return calculated(
            BUBBLES["zb_h2"], f"{evidence}: its bubble is gone only from a stage's own first work to its last"
        )
    book = float(zero_bubble_idle_s(P, 1, 1, 1)) / T if shape.schedule == "zb_h1" else float(bubble_share(P, m, v))
    evidence += f"; {1 - jobs / T:.4f} of them are idle, by the formula {book:.4f}"
    return decided(
        BUBBLES[shape.schedule],
        abs(1 - jobs / T - book) < 1e-9,
        evidence,
        statement="where every piece of work takes one tick",
    )


def _hops(shape: PipelineShape, axes: Axes, table: Table) -> Claim:
    P, v, m, needed = axes[PIPE], shape.chunks, shape.accumulation, sum(_needed(table))
    evidence = (
        f"{needed} messages are needed for {m} micro-batches both ways, {needed / (2 * m):g} each; P v - 1 is "
        f"{hops(P, v)}"
    )
    return decided(
        "ch16.interleaved_comm",
        needed == 2 * m * hops(P, v),
        evidence,
        statement="P v - 1 hops a micro-batch and direction",
    )


EXPERIMENT = Experiment(
    name="ch16_pipeline",
    chapter=16,
    question=(
        "What does a pipeline send between its stages, how many ticks does it take, and are its gradients "
        "those of one device?"
    ),
    parameters=PipelineShape(layers=8, accumulation=8, remat="none"),
    numeric_parameters=PipelineShape(**asdict(replace(SMALL, layers=8, accumulation=4, remat="none"))),
    axes=axes,
    build=lambda style, shape, mesh: program.step(STRATEGY, shape, mesh),
    predict=partial(predict, STRATEGY),
    claims=claims,
    step=TrainingStep(
        lambda shape, axes, weights: program.state_of(STRATEGY, shape, axes[PIPE], weights),
        lambda shape, axes, weights: program.in_sequence(shape, axes[PIPE], weights),
    ),
    memory=lambda style, shape, axes, memory_bytes: peak_terms(STRATEGY, shape, axes, memory_bytes),
    host_bytes=partial(offloaded_bytes, STRATEGY),
    state=lambda shape, mesh: arguments(program.pipeline(STRATEGY, shape, mesh))[0],
    targets=("gpu:h100:2x8",),
    more_targets=("cpu:8", "tpu:v5p:2x2x4"),
    styles=("explicit",),
    tour=TimedSteps(settings={"accumulation": 8}),
    everyday=(("explicit", "gpu:h100:2x8"),),
)
