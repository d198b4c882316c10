"""Chapter 37: how are 175B parameters trained on 512 GPUs? Of models without experts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import ceil

from lab.book.memory import model_state_bytes
from lab.book.pipeline import stage_layers
from lab.book.tensor_parallel import divisors
from lab.core.room import DEFAULT_SHARE_OF_GPU, Room, taken
from lab.core.units import bytes_text
from lab.harness.claim import Claim, calculated, decided
from lab.harness.question import Question, Row
from lab.meshes.axes import AXIS_ORDER, Axes
from lab.meshes.errors import UsageError
from lab.programs.composed.configuration import Configuration
from lab.programs.composed.first_order import FirstOrder, Part
from lab.programs.pipelines.stages import written
from lab.zoo import ModelShape, cluster, model

CHUNKS = (1, 2)
COMPUTE = (Part.PRODUCTS, Part.ATTENTION)
CHOSEN = ("zero", "remat", "chunks", "micro_batches")
"""Beside the mesh."""


@dataclass(frozen=True)
class Assumed:
    """`batch` sequences a step; matrix products at `efficiency` of the peak, nothing overlapped; what `remat` names is
    tried; JAX takes `memory_share` of a GPU's memory, of a TPU's all; the best with degrees `tensor` and `pipe`, by
    default the chapter's answer, is shown besides."""

    model: str = "gpt3-175b"
    cluster: str = "dgx-h100"
    devices: int = 512
    batch: int = 1536
    micro_batch: int = 1
    efficiency: float = 0.6
    memory_share: float = DEFAULT_SHARE_OF_GPU
    fast_alpha_s: float = 1e-6
    slow_alpha_s: float = 5e-6
    remat: str = "none,selective,full"
    best: int = 3
    tensor: int = 8
    pipe: int = 8

    @property
    def room(self) -> Room:
        chip = cluster(self.cluster).chip
        return Room(chip.name, int(chip.memory_bytes.value), taken(chip.platform, self.memory_share))


def answer(assumed: Assumed) -> tuple[Row, ...]:
    shape, machine = dense(assumed.model), cluster(assumed.cluster)
    state = float(model_state_bytes(shape.parameters))
    found = fitting(assumed)
    rows = [
        Row("parameters", shape.parameters, "parameters"),
        Row("weights, gradients and optimizer", state, "B"),
        Row("devices that hold these and nothing else, at least", ceil(state / machine.chip.memory_bytes.value)),
        Row("memory that JAX takes of each", assumed.room.usable_bytes, "B"),
        Row("configurations tried", len(tried(assumed))),
        Row("of them in memory", len(found)),
    ]
    shown = {f"number {place}": each for place, each in enumerate(best_of_meshes(found)[: assumed.best], start=1)}
    for what, is_so in (
        ("ZeRO-3", lambda c: c.fsdp > 1),
        (f"t{assumed.tensor} p{assumed.pipe}", lambda c: (c.tensor, c.pipe) == (assumed.tensor, assumed.pipe)),
    ):
        if best := next((each for each in found if is_so(each.configuration)), None):
            shown[f"fastest with {what}"] = best
    return (*rows, *(row for whose, each in shown.items() for row in _rows(whose, each, assumed)))


def dense(name: str) -> ModelShape:
    """Raises UsageError where the model has experts: no degree of this search splits those."""
    shape = model(name)
    if shape.experts:
        raise UsageError(
            f"model={name}: has {shape.experts.routed} experts a layer, and this search splits none over devices; name "
            "a model without experts, such as llama3-70b"
        )
    return shape


@lru_cache(maxsize=4)
def tried(assumed: Assumed) -> tuple[FirstOrder, ...]:
    """Every configuration that divides heads and batch, tensor parallelism inside a domain, no stage without a layer.

    ZeRO-1 and 2 shard over `data`, ZeRO-3 over `fsdp`. Weights that ZeRO-3 gathers once a step, and keeps, are the
    copies of ZeRO-2.

    Raises:
      UsageError: there is none.
    """
    found = tuple(
        FirstOrder(
            each,
            dense(assumed.model),
            cluster(assumed.cluster),
            assumed.batch // (each.data * each.fsdp * each.micro_batches),
            assumed.efficiency,
            assumed.fast_alpha_s,
            assumed.slow_alpha_s,
        )
        for each in _configurations(assumed)
    )
    if not found:
        raise UsageError(
            f"devices={assumed.devices} and batch={assumed.batch}: no degrees divide {assumed.model}'s heads and the "
            "batch"
        )
    return found


def _configurations(assumed: Assumed) -> Iterator[Configuration]:
    layers = dense(assumed.model).layers
    for data, fsdp, pipe, tensor in _meshes(assumed):
        zeros = (0, 1, 2) if data > 1 and fsdp == 1 else (0,)
        numbers = [chunks for chunks in CHUNKS if chunks == 1 or _interleaves(layers, pipe, chunks)]
        for zero, remat, chunks in product(zeros, assumed.remat.split(","), numbers):
            found = Configuration(
                data=data,
                fsdp=fsdp,
                pipe=pipe,
                tensor=tensor,
                zero=zero,
                remat=remat,
                chunks=chunks,
                schedule="1f1b" if chunks == 1 else "interleaved",
                stage_layers=_stage_layers(layers, pipe * chunks),
            )
            for micro_batches in _micro_batches(found, assumed):
                if chunks == 1 or micro_batches % pipe == 0:
                    yield replace(found, micro_batches=micro_batches)


def _interleaves(layers: int, pipe: int, chunks: int) -> bool:
    """The chunks are alike but for the first and the last, as `uneven_step_s` wants them."""
    return pipe > 1 and layers >= pipe * chunks and -layers % (pipe * chunks) <= 2


def _stage_layers(layers: int, parts: int) -> str:
    """Of chunks that differ by a layer; nothing where they are equal."""
    return written(stage_layers(layers, parts)) if layers % parts else ""


def _micro_batches(found: Configuration, assumed: Assumed) -> list[int]:
    """As many as there can be, which is fastest where nothing is sent in each; else any number of them."""
    most = assumed.batch // (found.data * found.fsdp * assumed.micro_batch)
    return divisors(most) if found.fsdp > 1 or found.zero == 2 else [most]


def _meshes(assumed: Assumed) -> Iterator[tuple[int, int, int, int]]:
    """data, fsdp, pipe, tensor."""
    shape, devices = dense(assumed.model), assumed.devices
    for tensor in divisors(shape.kv_heads):
        if devices % tensor == 0 and tensor <= cluster(assumed.cluster).domain_chips:
            for pipe in divisors(devices // tensor):
                ranks = devices // (tensor * pipe)
                if pipe <= shape.layers and assumed.batch % (ranks * assumed.micro_batch) == 0:
                    yield from ((ranks // fsdp, fsdp, pipe, tensor) for fsdp in divisors(ranks))


@lru_cache(maxsize=4)
def fitting(assumed: Assumed) -> tuple[FirstOrder, ...]:
    """Those in memory, the fastest first."""
    found = [each for each in tried(assumed) if assumed.room.fits(each.memory_bytes)]
    return tuple(sorted(found, key=lambda each: (each.step_s, each.memory_bytes)))


def best_of_meshes(found: tuple[FirstOrder, ...]) -> list[FirstOrder]:
    """The fastest of each mesh."""
    best: dict[Axes, FirstOrder] = {}
    for each in found:
        best.setdefault(each.configuration.axes, each)
    return list(best.values())


def name(configuration: Configuration) -> str:
    """Such as `t8 p8 d8 v2, ZeRO-1, remat full`: degrees of tensor, pipe, data and fsdp, and chunks."""
    c = configuration
    degrees = {"t": c.tensor, "p": c.pipe, "d": c.data, "f": c.fsdp, "v": c.chunks}
    mesh = " ".join(f"{letter}{size}" for letter, size in degrees.items() if size > 1) or "one device"
    stages = f", layers {c.stage_layers}" if c.stage_layers else ""
    return f"{mesh}, ZeRO-{3 if c.fsdp > 1 else c.zero}, remat {c.remat}{stages}"


def _rows(whose: str, found: FirstOrder, assumed: Assumed) -> Iterator[Row]:
    yield Row(f"{whose}: configuration", name(found.configuration))
    yield Row(f"{whose}: memory a device", found.memory_bytes, "B")
    yield from (Row(f"{whose}: of it {part}", held, "B") for part, held in found.held_bytes.items() if held)
    yield Row(f"{whose}: step", found.step_s, "s")
    yield from (Row(f"{whose}: of it {part}", seconds, "s") for part, seconds in found.parts_s.items() if seconds)
    yield Row(f"{whose}: MFU", 100 * found.mfu, "%")
    yield Row(f"{whose}: bottleneck", _bottleneck(found))
    yield Row(f"{whose}: faster with one change", _relief(found, assumed))


def _bottleneck(found: FirstOrder) -> str:
    """What takes most of the step, and what does after it."""
    parts = {str(part): seconds for part, seconds in found.parts_s.items() if part not in COMPUTE}
    parts["computation"] = sum(found.parts_s[part] for part in COMPUTE)
    most, second = sorted(parts, key=parts.__getitem__, reverse=True)[:2]
    shares = {part: f"{part} ({100 * parts[part] / found.step_s:.3g} % of the step)" for part in (most, second)}
    return f"{shares[most]}, then {shares[second]}"


def _relief(found: FirstOrder, assumed: Assumed) -> str:
    """The fastest of what was tried that differs in the mesh, the stage of ZeRO, remat or chunks alone."""
    others = [each for each in tried(assumed) if len(_changes(found, each)) == 1 and each.step_s < found.step_s]
    if not others:
        return "nothing that was tried"
    best = min(others, key=lambda each: (each.step_s, each.memory_bytes))
    room, held = assumed.room, best.memory_bytes
    too_much = "" if room.fits(held) else f", more than the {bytes_text(room.usable_bytes)} here"
    (change,) = _changes(found, best)
    return f"{change}: {best.step_s:.4g} s and {bytes_text(held)}{too_much}"


def _changes(one: FirstOrder, other: FirstOrder) -> list[str]:
    before, after = one.configuration, other.configuration
    mesh = [f"mesh {after.axes}"] if any(getattr(before, axis) != getattr(after, axis) for axis in AXIS_ORDER) else []
    return mesh + [f"{what}={getattr(after, what)}" for what in CHOSEN if getattr(before, what) != getattr(after, what)]


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    layers, state = model("gpt3-175b").layers, float(model_state_bytes(175_000_000_000))
    return (
        calculated(
            "ch37.exercises",
            f"16 B a parameter are {state / 1e12:g} TB, so {ceil(state / 80e9)} GPUs of 80 GB at least",
            statement="35 GPUs",
        ),
        decided(
            "ch37.exercises",
            layers == 64,
            f"the published shapes have {layers} layers, 12 a stage of 8",
            statement="175B has 64 layers",
            disputed="6-8:D-147",
        ),
    )


def asked(assumed: Assumed) -> str:
    return f"How is {assumed.model} trained on {assumed.devices:,} chips of {assumed.cluster}?"


EXPERIMENT = Question(
    name="ch37_capacity",
    chapter=37,
    question=asked(Assumed()),
    parameters=Assumed(),
    answer=answer,
    claims=claims,
    asked=asked,
)
