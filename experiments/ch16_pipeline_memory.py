"""Chapter 16: does a device store the activations of as many micro-batches as its schedule has in flight?"""

from dataclasses import dataclass
from functools import cache

from lab.book.memory import model_state_bytes
from lab.book.pipeline import in_flight, zero_bubble_in_flight
from lab.compile.inspection import inspect_program
from lab.core.known import known
from lab.core.ledger import Memory
from lab.harness.claim import Claim, calculated, decided
from lab.harness.evidence import counted
from lab.harness.question import Question, Row
from lab.meshes.attached import device_count, resolve_attached
from lab.meshes.axes import DATA, PIPE, Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, parse_target
from lab.programs.pipelines import program
from lab.programs.pipelines.prediction import message_bytes
from lab.programs.pipelines.program import PipelineShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL

PAIR = ("gpipe", "1f1b")
SPLIT = ("zb_h1", "zb_h2")
TOKEN_BYTES = COUNT_BYTES = 4


@dataclass(frozen=True)
class Assumed:
    """Stages of `stage_layers` layers, each with as many ranks as are left; a rank has one sequence of a
    micro-batch."""

    stages: int = 4
    micro_batches: int = 16
    stage_layers: int = 2
    length: int = 512
    embed: int = 512
    target: str = "gpu:h100:2x4"

    @property
    def place(self) -> Target:
        return resolve_attached(parse_target(self.target))

    def axes(self, stages: int) -> Axes:
        return Axes.of({DATA: device_count(parse_target(self.target)) // stages, PIPE: stages})

    def shape(self, schedule: str, stages: int, micro_batches: int) -> PipelineShape:
        batch = self.axes(stages)[DATA] * micro_batches
        return PipelineShape(
            schedule=schedule,
            layers=stages * self.stage_layers,
            batch=batch,
            accumulation=micro_batches,
            length=self.length,
            embed=self.embed,
            kv_heads=4,
            head_dim=64,
            mlp=2 * self.embed,
            vocab=8192,
        )

    @property
    def message(self) -> int:
        """Bytes of what a stage keeps of a micro-batch: its input."""
        return message_bytes(DATA_PARALLEL, self.shape("1f1b", self.stages, self.micro_batches), self.axes(self.stages))

    @property
    def kept(self) -> float:
        """In messages, what every layer of a stage keeps of a micro-batch until W: of each token what its products
        take, and the gradients of what they give."""
        shape = self.shape("1f1b", self.stages, self.micro_batches)
        keys = shape.kv_heads * shape.head_dim
        taken = 2 * shape.embed + keys * shape.queries + shape.mlp
        given = 2 * shape.embed + keys * (shape.queries + 2) + 2 * shape.mlp
        return self.stage_layers * (taken + given) / shape.embed

    def memory(self, schedule: str, stages: int | None = None, micro_batches: int | None = None) -> Memory:
        stages = stages or self.stages
        return planned(
            self.shape(schedule, stages, micro_batches or self.micro_batches), self.target, self.axes(stages)
        )

    def peak(self, schedule: str) -> int:
        """Of a target that plans one, which `check` sees to."""
        return known(self.memory(schedule).peak)

    def messages(self, more: Memory, less: Memory) -> float:
        """What one program needs above another while it runs."""
        return (more.temporaries - less.temporaries) / self.message

    def gpipe_above_1f1b(self, micro_batches: int) -> float:
        return self.messages(*(self.memory(name, micro_batches=micro_batches) for name in PAIR))


@cache
def planned(shape: PipelineShape, target: str, axes: Axes) -> Memory:
    place = parse_target(target)
    prepare([place])
    mesh = make_mesh(place, axes)
    step, args = program.step(DATA_PARALLEL, shape, mesh)
    return known(inspect_program(step.lower(*args).compile(), (), mesh, place, source=target).memory)


def check(assumed: Assumed) -> None:
    """Raises UsageError where XLA plans no peak, the most stages do not divide the devices, or half of the
    micro-batches do not fill the deepest schedule."""
    P, m, deepest = assumed.stages, assumed.micro_batches, int(zero_bubble_in_flight(assumed.stages, 2))
    if assumed.place.platform == "cpu":
        raise UsageError(
            f"target={assumed.target}: XLA reports no peak memory there; use a GPU target, such as gpu:h100:2x4"
        )
    if (devices := device_count(parse_target(assumed.target))) % (2 * P):
        expected = f"expected a multiple of {2 * P}, since {P} stages are compared with {2 * P}"
        raise UsageError(
            f"target={assumed.target} has {devices} devices: {expected}; take a target such as gpu:h100:2x{P}"
        )
    if m // 2 < deepest:
        raise UsageError(
            f"micro_batches={m} on stages={P}: expected {2 * deepest} or more, so that half of them fill every schedule"
        )


def answer(assumed: Assumed) -> tuple[Row, ...]:
    check(assumed)
    P, m = assumed.stages, assumed.micro_batches
    grown = (
        Row(f"{name}: {m} micro-batches above {m // 2}", _grown(assumed, name), "messages", more)
        for name, more in zip(PAIR, (m - m // 2, 0), strict=True)
    )
    above = (
        Row(
            f"gpipe above 1f1b, {some} micro-batches",
            assumed.gpipe_above_1f1b(some),
            "messages",
            some - int(in_flight(P, some, 0)),
        )
        for some in (m // 2, m)
    )
    return (
        Row("message: what a stage saves for a micro-batch", assumed.message, "bytes"),
        *(Row(f"{name}: peak memory", assumed.peak(name), "bytes") for name in (*PAIR, *SPLIT)),
        *grown,
        *above,
        Row(f"1f1b: {2 * P} stages above {P}", _lengthened(assumed), "messages", _more_stages(assumed)),
        Row("saved for a micro-batch until its weight gradients", assumed.kept, "messages"),
        Row("zb_h1 above 1f1b", _above(assumed, "zb_h1", "1f1b"), "messages"),
        Row("zb_h2 above zb_h1", _above(assumed, "zb_h2", "zb_h1"), "messages", _put_off_longer(assumed)),
    )


def _grown(assumed: Assumed, schedule: str) -> float:
    """By the second half of the micro-batches."""
    return assumed.messages(
        assumed.memory(schedule), assumed.memory(schedule, micro_batches=assumed.micro_batches // 2)
    )


def _lengthened(assumed: Assumed) -> float:
    """By as many stages again."""
    return assumed.messages(assumed.memory("1f1b", stages=2 * assumed.stages), assumed.memory("1f1b"))


def _more_stages(assumed: Assumed) -> int:
    P, m = assumed.stages, assumed.micro_batches
    return int(in_flight(2 * P, m, 0) - in_flight(P, m, 0))


def _above(assumed: Assumed, schedule: str, other: str) -> float:
    """At the fullest moment, to a thousandth: programs differ in single numbers too. A job of ZB-H1 has more at work
    beside the P halves that wait."""
    return round((assumed.peak(schedule) - assumed.peak(other)) / assumed.message, 3)


def _put_off_longer(assumed: Assumed) -> float:
    """P - 1 micro-batches more that wait for W, and P - 2 inputs more that wait for B: stage 0 takes tokens, and the
    stage after it has them one turn early."""
    P = assumed.stages
    return int(zero_bubble_in_flight(P, 2) - zero_bubble_in_flight(P)) * assumed.kept + P - 2


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    if assumed.place.platform != "gpu":
        return (
            calculated(
                "ch16.gpipe_memory", f"{assumed.target} plans buffers differently; the claims are decided on GPUs"
            ),
        )
    return (_gpipe(assumed), _one_f_one_b(assumed), *_zero_bubble(assumed), _state(assumed))


def _gpipe(assumed: Assumed) -> Claim:
    P, m = assumed.stages, assumed.micro_batches
    grown, above = _grown(assumed, "gpipe"), assumed.gpipe_above_1f1b(m)
    evidence = (
        f"{m} micro-batches need {grown:g} messages of {counted(assumed.message)} B more than {m // 2}, and "
        f"{above:g} more than with 1F1B on {P} stages"
    )
    holds = (grown, above) == (m - m // 2, m - in_flight(P, m, 0))
    return decided(
        "ch16.gpipe_memory",
        holds,
        evidence,
        statement="m on every stage; here their inputs, from which a stage computes again",
    )


def _one_f_one_b(assumed: Assumed) -> Claim:
    P, m = assumed.stages, assumed.micro_batches
    grown, lengthened = _grown(assumed, "1f1b"), _lengthened(assumed)
    evidence = (
        f"{m} micro-batches need {grown:g} messages more than {m // 2}, {2 * P} stages {lengthened:g} more than {P}"
    )
    return decided(
        "ch16.1f1b_memory",
        (grown, lengthened) == (0, _more_stages(assumed)),
        evidence,
        statement="min(P, m) on stage 0, for which every stage has room",
    )


def _zero_bubble(assumed: Assumed) -> tuple[Claim, ...]:
    P, more = assumed.stages, _above(assumed, "zb_h2", "zb_h1")
    evidence = (
        f"ZB-H2 holds {more:g} messages more than ZB-H1 on {P} stages: for {P - 1} more in flight {assumed.kept:g} "
        f"each, and {P - 2} inputs"
    )
    printed = assumed.memory("zb_h2").temporaries / assumed.memory("1f1b").temporaries - 1
    return (
        decided(
            "ch16.zb_memory",
            more == _put_off_longer(assumed),
            evidence,
            statement="2P-1 in flight with ZB-H2, P with ZB-H1",
        ),
        calculated(
            "ch16.zb_memory",
            f"ZB-H2 needs {100 * printed:.1f} % more temporary bytes than 1F1B at these sizes, gradients of all "
            "weights among them",
        ),
    )


def _state(assumed: Assumed) -> Claim:
    """The book lists parameters, activations and gradients."""
    P, m = assumed.stages, assumed.micro_batches
    shape = assumed.shape("1f1b", P, m)
    ends = 2 * shape.vocab * shape.embed + shape.embed
    parameters = (shape.parameters - ends) // P + ends
    state = int(model_state_bytes(parameters, weight_bytes=0, gradient_bytes=0))
    tokens = 2 * TOKEN_BYTES * m * shape.micro_batch // assumed.axes(P)[DATA] * shape.length
    held = assumed.memory("1f1b").arguments
    evidence = (
        f"a device stores {counted(held)} B, {counted(state)} of them master weights and moments of "
        f"{counted(parameters)} parameters, embedding and head included"
    )
    return decided(
        "ch16.stage_memory",
        held == state + tokens + COUNT_BYTES,
        evidence,
        statement="the optimizer's state of a stage belongs to what it holds",
    )


EXPERIMENT = Question(
    name="ch16_pipeline_memory",
    chapter=16,
    question="Does a device store the activations of as many micro-batches as its schedule has in flight?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
