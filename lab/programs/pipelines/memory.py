"""What theory puts on one device of a pipeline at the moment when it holds most: a stage's state, what its schedule
has in flight, sums of gradients, and one job at work (Ch. 16, Ch. 19)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod

from lab.meshes.axes import PIPE, Axes
from lab.programs.memory.device import Device
from lab.programs.memory.gradients import FLOAT32_BYTES, added, gradient_of, held
from lab.programs.memory.layer_backward import SQUARE, layer_at_work
from lab.programs.memory.moments import going_forward, optimizer_update
from lab.programs.memory.saved import saved
from lab.programs.memory.state import static_bytes
from lab.programs.memory.terms import MemoryTerm, Terms, fullest
from lab.programs.memory.xla_gpu import budget, has_zeros_at_head, keeps_mlp, weights_relayout
from lab.programs.models import decoder
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines import halves
from lab.programs.pipelines.prediction import looped_layers, message_bytes
from lab.programs.pipelines.program import LAYERS, PipelineShape, refuse, table_for
from lab.programs.pipelines.table import Job, Table
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import Weight


def peak_terms(strategy: Strategy, shape: PipelineShape, axes: Axes, memory_bytes: int | None = None) -> Terms:
    """Bytes of one device at the fullest moment of a step, by term; their sum is the peak.

    All stages run one program, so that every device has room for what any stage does: the embedding, the head, and as
    many micro-batches as the first has in flight. Of a step that has no room in a chip of `memory_bytes`, where that is
    given, probabilities are made again (G10).
    Source: Ch. 16, `ch16.1f1b_memory`, `ch16.gpipe_memory`, `ch16.zb_memory`; Ch. 19, `ch19.total`.
    Raises:
      UsageError: as `program.step`, or a chunk has one layer.
    """
    refuse(strategy, shape, axes.names)
    strategy.check(shape, axes)
    terms = fullest(moments(Stage.of(strategy, shape, axes)))
    if memory_bytes is None or sum(terms.values()) <= budget(memory_bytes, terms[MemoryTerm.ARGUMENTS]):
        return terms
    return fullest(moments(Stage.of(strategy, shape, axes, is_cramped=True)))


@dataclass(frozen=True)
class Stage:
    """One device's share of a pipeline.

    Attributes:
      share: all that the device has: its chunks' layers, and all micro-batches.
      chunk: one job's: a chunk's layers, and one micro-batch.
      message: bytes that a stage hands on.
      is_uneven: layers that a chunk has not are skipped: each layer is a branch.
    """

    share: Device
    chunk: Device
    table: Table
    message: int
    is_uneven: bool

    @classmethod
    def of(cls, strategy: Strategy, shape: PipelineShape, axes: Axes, is_cramped: bool = False) -> Stage:
        layers = looped_layers(shape, axes)
        sizes = {each.name: getattr(shape, each.name) for each in fields(DecoderShape)}
        share = DecoderShape(**sizes | {"layers": shape.dense_layers + shape.chunks * layers})
        chunk = DecoderShape(
            **sizes | {"layers": shape.dense_layers + layers, "batch": shape.micro_batch, "accumulation": 1}
        )
        return cls(
            Device(strategy, "explicit", share, axes),
            Device(strategy, "explicit", chunk, axes, is_cramped, is_in_branch=True),
            table := table_for(strategy, shape, axes),
            message_bytes(strategy, shape, axes),
            shape.is_uneven(axes[PIPE]) and not table.is_in_lockstep,
        )

    @property
    def looped(self) -> int:
        """Layers of a chunk for which it has room, without dense ones before them."""
        return self.chunk.shape.stacks[LAYERS].layers

    @property
    def loops(self) -> Device:
        """One job's layers without a second prediction's."""
        return replace(self.chunk, shape=replace(self.chunk.shape, mtp=0))

    @property
    def further(self) -> Device:
        """A second prediction's layer."""
        return replace(self.chunk, shape=self.chunk.shape.stacks["mtp"])

    @property
    def is_split(self) -> bool:
        """A backward is, in two halves."""
        return Job.INPUT_GRADIENT in self.table.jobs

    @cached_property
    def half(self) -> int:
        """Bytes of what the half to the input keeps of a chunk for the half to the weights."""
        if not self.is_split:
            return 0
        chunk = self.chunk
        kept = halves.sizes(decoder.weights(chunk.shape)[LAYERS], chunk.strategy, chunk.shape, chunk.axes)
        numbers = sum(prod(size) for _, each in kept for size in each if size is not None)
        return self.looped * chunk.shape.bytes_per_element * numbers

    @property
    def found_at_once(self) -> list[Weight]:
        """Matrices of layers whose gradients are not put off."""
        put_off = halves.matrices(self.chunk.shape) if self.is_split else {}
        return [
            weight
            for weight in self.chunk.matrices
            if weight.stack != LAYERS or weight.scope.rpartition("/")[2] not in put_off
        ]


def moments(stage: Stage) -> Iterator[Terms]:
    """Of the job that goes forward: a layer, the head; of those that go backwards: the chunk that is computed again,
    the head, a second prediction, the layers, the embedding; the half to the weights; and the update."""
    in_loop, chunk = standing(stage), stage.chunk
    kept, further = saved(chunk) | kept_by_end(stage), further_grads(stage)
    yield in_loop | no_gradients(stage) | layer_forward(stage)
    yield in_loop | no_gradients(stage) | head_forward(stage)
    yield in_loop | kept | going_forward(chunk) | relaid(stage)
    yield in_loop | kept | further | at_head(stage)
    if chunk.shape.mtp:
        yield in_loop | kept | further | head_grad(stage) | layer_at_work(stage.further)
    yield in_loop | saved(stage.loops) | further | at_layers(stage)
    yield in_loop | further | at_embedding(stage)
    if stage.is_split:
        yield in_loop | to_weights(stage)
    yield arguments(stage) | optimizer_update(stage.share)


def arguments(stage: Stage) -> Terms:
    share = stage.share
    return {MemoryTerm.ARGUMENTS: static_bytes(share.strategy, share.shape, share.axes)}


def standing(stage: Stage) -> Terms:
    """Through the loop over ticks: what the schedule has in flight, the messages that come and go, and the sums. A job
    has the half that it takes or leaves apart from all that wait."""
    return (
        arguments(stage)
        | {
            MemoryTerm.STASHED_INPUTS: stage.table.inputs * stage.message,
            MemoryTerm.STASHED_COTANGENTS: stage.table.cotangents * stage.message,
            MemoryTerm.STASHED_HALVES: stage.table.kept * stage.half,
            MemoryTerm.HALF_TAKEN_AND_LEFT: stage.half,
            MemoryTerm.MESSAGES: 2 * stage.message,
            MemoryTerm.ACCUMULATED_GRADS: added(stage.share),
            MemoryTerm.CHUNK_WEIGHTS: chunk_weights(stage),
        }
        | relaid(stage)
    )


def chunk_weights(stage: Stage) -> int:
    """Of several chunks, one's is cut out as stored, for the job that uses it."""
    chunk = stage.chunk
    return 0 if stage.share.shape.layers == chunk.shape.layers else _as_stored(chunk)


def layer_weights(stage: Stage) -> int:
    """Where a layer is a branch, its weights are cut out as stored, for it to use."""
    return _as_stored(stage.chunk) // stage.looped if stage.is_uneven else 0


def _as_stored(chunk: Device) -> int:
    size = FLOAT32_BYTES if chunk.strategy.state is None else chunk.shape.bytes_per_element
    return size * chunk.count((w for w in chunk.matrices if w.stack == LAYERS), chunk.strategy.weights)


def relaid(stage: Stage) -> Terms:
    """Once, before the loop over ticks; experts' matrices are not."""
    return {MemoryTerm.WEIGHTS_RELAYOUT: weights_relayout(stage.share) if stage.share.is_gathered else 0}


def kept_by_end(stage: Stage) -> Terms:
    """What a second prediction leaves to its transpose, which a conditional does whole: with its layer's tensors those
    that join two streams, the inputs of both norms in float32, and its matrices."""
    chunk = stage.chunk
    if not chunk.shape.mtp:
        return {}
    joining = (2 * FLOAT32_BYTES // chunk.shape.bytes_per_element + 2) * chunk.tensors["input"]
    return {
        MemoryTerm.SAVED_ACTIVATIONS: saved(chunk)[MemoryTerm.SAVED_ACTIVATIONS] + joining,
        MemoryTerm.SAVED_WEIGHTS: saved(stage.loops)[MemoryTerm.SAVED_WEIGHTS] + chunk.in_products(chunk.mtp_matrices),
    }


def further_grads(stage: Stage) -> Terms:
    """From the end of the chunk on: those of a second prediction, and of the table that it looks up in."""
    chunk = stage.chunk
    found = [*chunk.mtp_matrices, *chunk.ends[:1]] if chunk.shape.mtp else []
    return {MemoryTerm.FURTHER_GRADS: gradient_of(found, chunk)}


def no_gradients(stage: Stage) -> Terms:
    """Zeros that a job adds to the sums where it finds none, made as it begins."""
    chunk = stage.chunk
    return (
        layers_grads(stage)
        | head_grad(stage)
        | {
            MemoryTerm.EMBEDDING_GRAD: gradient_of(chunk.ends[:1], chunk),
            MemoryTerm.FURTHER_GRADS: gradient_of(chunk.mtp_matrices, chunk),
        }
    )


def layer_forward(stage: Stage) -> Terms:
    chunk = stage.chunk
    scores = 0 if chunk.is_tiled else chunk.total(SQUARE)
    return {MemoryTerm.SCORES_AND_PROBABILITIES: scores, MemoryTerm.LAYER_WEIGHTS: layer_weights(stage)}


def head_forward(stage: Stage) -> Terms:
    chunk = stage.chunk
    return {
        MemoryTerm.LOGITS: chunk.logits,
        MemoryTerm.HEAD_WEIGHTS_IN_USE: chunk.in_products(chunk.ends[-1:]),
    }


def layers_grads(stage: Stage) -> Terms:
    return {MemoryTerm.LAYERS_GRADS: gradient_of(stage.found_at_once, stage.chunk)}


def at_head(stage: Stage) -> Terms:
    """When its gradient is made. What a conditional leaves to its transpose is whole: exponentials in float32, which
    logits are the targets', the head as it is used."""
    chunk = stage.chunk
    logits, head = chunk.logits // chunk.shape.bytes_per_element, chunk.ends[-1:]
    return (
        {
            MemoryTerm.LOGITS: FLOAT32_BYTES * logits,
            MemoryTerm.TARGETS_MASK: logits,
            MemoryTerm.LOGITS_GRAD: chunk.logits,
            MemoryTerm.HEAD_WEIGHTS_IN_USE: chunk.in_products(head),
            MemoryTerm.HEAD_INPUT: chunk.shape.predictions
            * (
                chunk.total(("mlp_norm_in", "mlp_normed", "input")) + (1 + chunk.is_split_between_blocks) * chunk.stream
            ),
        }
        | {MemoryTerm.HEAD_GRAD: _whole_and_part(head, chunk)}
        | (layers_grads(stage) if has_zeros_at_head(chunk) else {})
    )


def at_layers(stage: Stage) -> Terms:
    """When a layer is gone through backwards; the head's gradient waits. What a half keeps of the layer is put to that
    of the others at its end, and is mostly what waits in the layer, if anything does."""
    chunk = stage.chunk
    kept = 0 if keeps_mlp(chunk) else stage.half // stage.looped
    return (
        layers_grads(stage)
        | head_grad(stage)
        | layer_at_work(stage.loops)
        | relaid(stage)
        | {MemoryTerm.LAYER_HALF: kept, MemoryTerm.LAYER_WEIGHTS: layer_weights(stage)}
    )


def head_grad(stage: Stage) -> Terms:
    return {MemoryTerm.HEAD_GRAD: gradient_of(stage.chunk.ends[-1:], stage.chunk)}


def at_embedding(stage: Stage) -> Terms:
    """When its gradient is made, whole where it is to be scattered."""
    chunk = stage.chunk
    return (
        layers_grads(stage)
        | head_grad(stage)
        | {
            MemoryTerm.EMBEDDING_GRAD: _whole_and_part(chunk.ends[:1], chunk),
            MemoryTerm.LAYER_GRADS_UNSCATTERED: chunk.in_products(chunk.matrices) if chunk.is_gathered else 0,
        }
    )


def _whole_and_part(ends: Iterable[Weight], device: Device) -> int:
    """A gradient that is scattered has two forms for a moment, in the dtype of products."""
    ends = list(ends)
    if not (device.is_gathered or device.is_anchored):
        return gradient_of(ends, device)
    return device.in_products(ends) + device.shape.bytes_per_element * device.count(ends, held(device))


def to_weights(stage: Stage) -> Terms:
    """All products of a chunk, stacked."""
    chunk = stage.chunk
    put_off = [weight for weight in chunk.matrices if weight not in stage.found_at_once]
    return {MemoryTerm.LAYERS_GRADS: gradient_of(put_off, chunk)}
