"""Chapter 16: which matmuls does each half of a split backward have, and how long is a step whose ticks last as long
as their longest task?"""

from dataclasses import dataclass
from functools import cache

from lab.compile.inspection import inspect_program
from lab.core.known import known
from lab.harness.claim import Claim, decided
from lab.harness.evidence import counted
from lab.harness.question import Question, Row
from lab.meshes.attached import device_count
from lab.meshes.axes import PIPE, Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.pipelines.orders import gpipe, one_f_one_b, zb_h1, zb_h2
from lab.programs.pipelines.program import PipelineShape, one_job
from lab.programs.pipelines.schedule import Schedule
from lab.programs.pipelines.simulation import Durations, simulate
from lab.programs.pipelines.table import Job, table_of

SCHEDULES = (gpipe, one_f_one_b, zb_h1, zb_h2)
HALVES = (Job.INPUT_GRADIENT, Job.WEIGHT_GRADIENT)


@dataclass(frozen=True)
class Assumed:
    """A stage of `layers` layers, compiled job by job for one device; and a pipeline of such stages, whose ends are no
    longer than the others."""

    stages: int = 4
    micro_batches: int = 8
    layers: int = 2
    length: int = 32
    embed: int = 64
    target: str = "cpu:1"

    @property
    def shape(self) -> PipelineShape:
        return PipelineShape(
            schedule="zb_h1",
            layers=self.layers,
            batch=1,
            accumulation=1,
            dtype="f32",
            remat="none",
            length=self.length,
            embed=self.embed,
            kv_heads=2,
            head_dim=16,
            mlp=2 * self.embed,
            vocab=128,
        )

    def products(self, job: Job) -> int:
        """FLOPs of the products of one job, as compiled."""
        return compiled_flops(self.shape, self.target, job)

    @property
    def theory(self) -> int:
        """One product with each matrix of the layers, for every token."""
        shape = self.shape
        keys = shape.kv_heads * shape.head_dim
        matrices = 2 * shape.embed * keys * (shape.queries + 1) + 3 * shape.embed * shape.mlp
        return 2 * shape.length * shape.layers * matrices


@cache
def compiled_flops(shape: PipelineShape, target: str, job: Job) -> int:
    """Raises UsageError where the target is more than one device."""
    place = parse_target(target)
    prepare([place])
    if (devices := device_count(place)) != 1:
        raise UsageError(
            f"target={target} has {devices} devices: expected one, for which the jobs of a stage are compiled; take "
            "cpu:1 or gpu:h100:1x1"
        )
    mesh = make_mesh(place, Axes.of({PIPE: 1}))
    run, args = one_job(shape, mesh, job)
    return known(inspect_program(run.lower(*args).compile(), (), mesh, place, source=job.scope).flops)


def answer(assumed: Assumed) -> tuple[Row, ...]:
    forward, whole = (assumed.products(job) for job in (Job.FORWARD, Job.BACKWARD))
    to_input, to_weights = (assumed.products(job) for job in HALVES)
    return (
        Row("forward", forward, "FLOPs"),
        Row("backward, the forward of its chunk again included", whole, "FLOPs", 3 * forward),
        Row(
            "backward to the input, the forward and the weights of the ends included",
            to_input,
            "FLOPs",
            3 * forward - assumed.theory,
        ),
        Row("backward to the weights", to_weights, "FLOPs", assumed.theory),
        *(row for make in SCHEDULES for row in _steps(make(assumed.stages, assumed.micro_batches), assumed)),
    )


def _steps(schedule: Schedule, assumed: Assumed) -> tuple[Row, ...]:
    """In forwards: as it would be if stages waited for messages alone, and as it is where neighbours end each tick
    together."""
    lasts = [0, *(assumed.products(job) / assumed.products(Job.FORWARD) for job in Job if job)]
    split = schedule.splits_backward
    backward, weight = (lasts[job] for job in HALVES) if split else (lasts[Job.BACKWARD], 0)
    together = sum(max(lasts[job] for job in jobs) for jobs in table_of(schedule).rows.job.tolist())
    return (
        Row(
            f"{schedule.name}: step if stages wait only for messages",
            float(simulate(schedule, Durations(1, backward, weight)).makespan),
            "forwards",
        ),
        Row(f"{schedule.name}: step in ticks as long as their longest job", together, "forwards"),
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    whole, (to_input, to_weights) = assumed.products(Job.BACKWARD), map(assumed.products, HALVES)
    evidence = f"{counted(to_input)} and {counted(to_weights)} FLOPs as compiled, {counted(whole)} in one"
    evidence += f"; 2 for each token and weight of a layer's matrix are {counted(assumed.theory)}"
    holds = to_input + to_weights == whole and to_weights == assumed.theory
    return (
        decided(
            "ch16.zero_bubble_split",
            holds,
            evidence,
            statement="the half that waits has products for weights alone, and both have no more than the whole",
            structural=True,
        ),
    )


EXPERIMENT = Question(
    name="ch16_split_backward",
    chapter=16,
    question=(
        "Which matmuls does each half of a split backward have, and how long is a step whose ticks last as "
        "long as their longest task?"
    ),
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
