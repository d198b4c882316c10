"""Chapter 21: what does a layer save under each remat policy, and what does saving less cost?"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import sqrt

from lab.book.recomputation import best_segment_layers, overhead, segmented_bytes
from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Phase, Totals
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.plans import planned_layers, planned_step
from lab.harness.evidence import along, counted
from lab.harness.question import Question, Row
from lab.meshes.attached import resolve_attached
from lab.meshes.axes import DATA, TENSOR, Axes
from lab.meshes.targets import parse_target
from lab.programs.memory.device import Device
from lab.programs.memory.saved import saved_layer_bytes
from lab.programs.memory.xla_gpu import scores_relayout
from lab.programs.models.shape import REMATS, DecoderShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL

ONE = Axes.of({DATA: 1})
AGAIN = {
    "none": (),
    "selective": ("scores",),
    "dots": ("scores", "values"),
    "names": ("query", "key", "value", "scores", "values", "gate", "up"),
    "full": ("query", "key", "value", "scores", "values", "out", "gate", "up"),
}
"""Products that the backward pass runs again under each policy. None runs the last one: what it gives is wanted by
nobody."""


@dataclass(frozen=True)
class Assumed(DecoderShape):
    """Layers of Llama 3 8B on one device, one sequence; a layer is what four more layers add, divided by four."""

    layers: int = 12
    batch: int = 1
    length: int = 2048
    embed: int = 4096
    kv_heads: int = 8
    queries: int = 4
    head_dim: int = 128
    mlp: int = 14336
    target: str = "gpu:h100:1x1"

    def shape(self, remat: str) -> DecoderShape:
        """Of one micro-batch: layers alone know of no other."""
        sizes = {name: value for name, value in asdict(self).items() if name != "target"}
        return DecoderShape(**sizes | {"remat": remat, "batch": self.micro_batch, "accumulation": 1})

    def plan(self, remat: str, segment: int = 0) -> Ledger:
        return planned_layers(self.shape(remat), self.target, segment)

    def compiled_flops(self, remat: str, segment: int = 0) -> int:
        return known(self.plan(remat, segment).flops)

    def temporaries(self, remat: str, segment: int = 0) -> int:
        return known(self.plan(remat, segment).memory).temporaries

    def kept(self, remat: str) -> Fraction:
        """Temporary bytes of one layer, as compiled."""
        fewer = planned_layers(replace(self.shape(remat), layers=self.layers - 4), self.target)
        return Fraction(self.temporaries(remat) - known(fewer.memory).temporaries, 4)

    def second_layout(self, remat: str) -> int:
        """Bytes of one layer that XLA's GPU compiler holds twice."""
        return scores_relayout(Device(DATA_PARALLEL, "declared", self.shape(remat), ONE)) // self.layers

    def saved(self, remat: str) -> int:
        return saved_layer_bytes(DATA_PARALLEL, self.shape(remat), ONE)

    @property
    def products(self) -> dict[str, int]:
        """FLOPs of one layer's products in a forward pass."""
        tokens, heads = self.micro_batch * self.length, self.heads * self.head_dim
        columns = {
            "query": heads,
            "key": self.kv_heads * self.head_dim,
            "value": self.kv_heads * self.head_dim,
            "out": heads,
        }
        mlp = dict.fromkeys(("gate", "up", "down"), 2 * tokens * self.embed * self.mlp)
        square = dict.fromkeys(("scores", "values"), 2 * tokens * self.length * heads)
        return {name: 2 * tokens * self.embed * size for name, size in columns.items()} | mlp | square

    def flops(self, remat: str) -> int:
        """Of all layers: three times a forward pass, and what is run again."""
        return self.layers * (3 * sum(self.products.values()) + sum(self.products[name] for name in AGAIN[remat]))

    @property
    def segments(self) -> tuple[int, ...]:
        """Three lengths that divide the layers: one, the one that is nearest to their root, and half of them."""
        lengths = [size for size in range(1, self.layers // 2 + 1) if self.layers % size == 0]
        return (1, min(lengths[1:-1], key=lambda size: abs(size - sqrt(self.layers))), lengths[-1])


def answer(assumed: Assumed) -> tuple[Row, ...]:
    kept = [
        Row(
            f"{remat}: kept a layer",
            round(float(assumed.kept(remat))),
            "bytes",
            assumed.saved(remat) + assumed.second_layout(remat),
        )
        for remat in REMATS
    ]
    flops = [
        Row(f"{remat}: products of a step", assumed.compiled_flops(remat) / 1e9, "GFLOP", assumed.flops(remat) / 1e9)
        for remat in REMATS
    ]
    segments = [Row(f"segments of {k}: temporary", assumed.temporaries("none", k), "bytes") for k in assumed.segments]
    return (*kept, *flops, *segments)


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    if resolve_attached(parse_target(assumed.target)).platform != "gpu":
        return (
            calculated("ch21.sqrt_rule", f"{assumed.target} plans buffers differently; the claims are decided on GPUs"),
        )
    return (*_kept(assumed), *_overhead(assumed), *_square(assumed), _segments(assumed), *_repeated())


def _kept(assumed: Assumed) -> tuple[Claim, ...]:
    """Rows of statistics, 4 bytes each, come on top of what is named."""
    unit = assumed.micro_batch * assumed.length * assumed.embed
    found = {remat: round(float(assumed.kept(remat) / unit), 3) for remat in REMATS}
    named = {remat: assumed.saved(remat) / unit for remat in REMATS}
    listed = ", ".join(f"{remat} {found[remat]:g} ({named[remat]:g})" for remat in REMATS)
    holds = all(abs(found[remat] / named[remat] - 1) < 2e-4 for remat in REMATS[1:])
    second = assumed.second_layout("none") / unit
    evidence = (
        f"a layer adds, in BSH bytes, compiled (named tensors): {listed}; without recomputation scores are "
        f"stored in two layouts ({second:g} more)"
    )
    evidence += ", and two tensors of 2 in the buffers of outputs not yet written"
    book = 22 + 2 * assumed.heads * assumed.length / assumed.embed
    return (
        decided(
            "ch19.act_layer",
            holds,
            evidence,
            statement="recomputing something, a layer keeps the named tensors and no others",
        ),
        decided(
            "ch19.act_layer",
            abs(found["none"] / book - 1) < 0.05,
            f"{evidence}; the formula gives {book:g}",
            statement="a Llama layer keeps 11 BSH + B A S^2 elements as well",
            disputed="4-5:D-60",
        ),
    )


def _overhead(assumed: Assumed) -> tuple[Claim, ...]:
    none, full = (assumed.compiled_flops(remat) for remat in ("none", "full"))
    segment = assumed.compiled_flops("none", assumed.segments[1])
    exact = all(assumed.compiled_flops(remat) == assumed.flops(remat) for remat in REMATS)
    third, of_layers = segment / none - 1, full / none - 1
    evidence = (
        f"segments of {assumed.segments[1]} layers run {third:.2%} more FLOPs, single layers {of_layers:.2%}: "
        "their last product is dropped"
    )
    evidence += f"; {'all' if exact else 'not all'} {len(REMATS)} policies run what theory lists"
    return (
        decided(
            "ch21.compute_overhead",
            exact and abs(third - overhead(1)) < 1e-9,
            evidence,
            statement="running a forward pass again costs a third of a step",
        ),
        decided(
            "ch21.compute_overhead",
            third <= 0.12,
            evidence,
            statement="segments of sqrt(L) layers cost 3.33 forward passes",
            disputed="4-5:D-79",
        ),
    )


def _square(assumed: Assumed) -> tuple[Claim, ...]:
    """Softmax in float32 and probabilities in 16 bits: three times the one tensor of the book."""
    saved = assumed.saved("none") - assumed.saved("selective")
    dropped = assumed.kept("none") - assumed.kept("selective")
    book = 2 * assumed.micro_batch * assumed.heads * assumed.length**2
    more = Fraction(
        assumed.compiled_flops("selective") - assumed.compiled_flops("none"),
        assumed.layers * sum(assumed.products.values()),
    )
    evidence = f"a layer stores {counted(round(dropped))} B less, of which {counted(saved)} B are saved tensors"
    evidence += f", for {float(more):.2%} of a forward pass: only the scores are recomputed"
    return (
        decided("ch21.selective_attention", dropped >= saved, evidence, statement="all square tensors go"),
        decided(
            "ch21.selective_attention",
            abs(dropped / book - 1) < 0.1,
            f"{evidence}; the book saves {counted(book)} B",
            statement="2 B n S^2 bytes go",
            disputed="4-5:D-76",
        ),
    )


def _repeated() -> tuple[Claim, ...]:
    """On a mesh of its own: 2 x 4 GPUs and a small model, since only counts matter."""
    strategy, axes = DATA_PARALLEL | TENSOR_PARALLEL, Axes.of({DATA: 2, TENSOR: 4})
    sums = {}
    for remat in ("none", "names", "full"):
        shape = DecoderShape(remat=remat)
        moved = along(planned_step(strategy, "explicit", shape, "gpu:h100:1x8", axes), TENSOR, kind=Kind.ALL_REDUCE)
        layers = [t for t in moved if (t.scope or "").startswith("layers")]
        sums[remat] = (
            Totals.of(layers).executions / shape.layers,
            Totals.of(t for t in layers if t.phase == Phase.FORWARD).executions / shape.layers,
        )
    evidence = ", ".join(
        f"{remat} {all_sums:g} all-reduces a layer, {forward:g} of them forward"
        for remat, (all_sums, forward) in sums.items()
    )
    counts = {remat: all_sums for remat, (all_sums, _) in sums.items()}
    return (
        decided(
            "ch21.tp_interaction",
            counts == {"none": 4, "names": 4, "full": 5},
            evidence,
            statement="recomputing repeats one all-reduce, saving what it gives none",
        ),
        decided(
            "ch21.tp_interaction",
            sums["none"][1] == 0,
            evidence,
            statement="row-parallel all-reduces run in the backward pass",
            disputed="4-5:D-83",
        ),
    )


def _segments(assumed: Assumed) -> Claim:
    held = {k: assumed.temporaries("none", k) for k in assumed.segments}
    inputs, layer = assumed.saved("full"), assumed.saved("none")
    best = float(best_segment_layers(assumed.layers, inputs, layer))
    theory = {k: float(segmented_bytes(assumed.layers, k, inputs, layer)) for k in held}
    evidence = (
        f"segments of {_listed(held)} layers need {_listed(held.values())} B ({_listed(theory.values())} by formula)"
    )
    evidence += f"; sqrt(L A_in / M) is {best:.2f}"
    near = min(held, key=lambda k: abs(k - sqrt(assumed.layers)))
    return decided(
        "ch21.sqrt_rule",
        held[near] == min(held.values()),
        evidence,
        statement=f"segments of sqrt(L), here {near}, need least",
        disputed="4-5:D-78",
    )


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:,.0f}" for number in numbers)


EXPERIMENT = Question(
    name="ch21_recomputation",
    chapter=21,
    question="What does a layer save under each remat policy, and what does saving less cost?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
