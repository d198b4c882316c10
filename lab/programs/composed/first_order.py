"""How long a step of a configuration takes and what it holds, to first order and by formulas of `lab.book` alone, for
any dense model of the zoo (Ch. 24, 27, 37)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import prod

import numpy as np

from lab.book.activations import gpt_saved_bytes, llama_saved_bytes
from lab.book.collectives import message_s, ring_all_gather_s, ring_all_reduce_s
from lab.book.composition import stage_compute_s
from lab.book.device_mesh import domains_spanned
from lab.book.memory import model_state_bytes
from lab.book.parallelism import activation_bytes, gradient_bytes
from lab.book.pipeline import in_flight, interleaved_in_flight, messages_waited, stage_layers, uneven_idle_s
from lab.book.scale import achieved_mfu
from lab.book.sharding import zero3_working_bytes
from lab.book.tensor_parallel import attention_forward_flops
from lab.meshes.axes import DATA, FSDP, PIPE, TENSOR
from lab.meshes.errors import UsageError, no_such
from lab.programs.composed.configuration import Configuration
from lab.programs.pipelines.stages import layers_of_chunks
from lab.zoo import Cluster, ModelShape

BF16 = 2
LOGIT_BYTES = 4
"""Of a logit, whose softmax is in float32 (Korthikanti et al. 2022)."""
SAVED = {"none": "no_remat", "selective": "attention_recomputed", "full": "full_remat"}
"""What a layer keeps, by `remat`, as `lab.book.activations` has it."""


class Part(StrEnum):
    """Where the time of a step goes."""

    PRODUCTS = "products with weights"
    ATTENTION = "attention"
    RECOMPUTED = "recomputation"
    TENSOR = "tensor parallelism"
    SHARDS = "ZeRO in every micro-batch"
    MESSAGES = "pipeline messages"
    BUBBLE = "bubble"
    GRADIENTS = "gradients and new weights"


class Held(StrEnum):
    """What a device holds."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations kept"
    WORKING = "working set"


@dataclass(frozen=True)
class FirstOrder:
    """One step of a configuration of a model on a cluster, nothing overlapped.

    State is 16 B a parameter: weights and gradients of 2, float32 masters and moments. The pipeline runs 1F1B,
    interleaved where there are chunks, on stages that differ by a layer at most; the first one has the embedding, the
    last one the head. A layer that is not recomputed gathers its two sharded inputs again in the backward pass
    (Korthikanti et al. 2022), one that is sends all of its forward pass again. Attention runs in tiles and skips masked
    ones, unless its scores are kept. Sums of losses, norms and biases are left out, and so is what an allocator wastes.

    Attributes:
      micro_batch: sequences of a rank.
      efficiency: of matrix products, to the chip's peak.
      fast_alpha_s, slow_alpha_s: of a message inside a domain and between domains [s].
    Raises:
      UsageError: of the configuration or the model no formula here tells.
    """

    configuration: Configuration
    model: ModelShape
    cluster: Cluster
    micro_batch: int = 1
    efficiency: float = 1.0
    fast_alpha_s: float = 0.0
    slow_alpha_s: float = 0.0

    def __post_init__(self) -> None:
        c, shape = self.configuration, self.model
        if c.context * c.expert > 1 or not c.sequence or c.schedule not in ("1f1b", "interleaved"):
            found = f"context={c.context}, expert={c.expert}, sequence={c.sequence}, schedule={c.schedule}"
            raise UsageError(f"{found}: expected neither axis, sequence=True, and schedule=1f1b or interleaved")
        if shape.experts or shape.latent or not (shape.is_gated or shape.activation == "gelu"):
            raise UsageError(f"model={shape.name}: expected one of Llama's or GPT's layers, without experts")
        if c.remat not in SAVED:
            raise no_such("remat", c.remat, SAVED)

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        c = self.configuration
        return c.data * c.fsdp * c.micro_batches * self.micro_batch

    @cached_property
    def step_s(self) -> float:
        return sum(self.parts_s.values())

    @property
    def mfu(self) -> float:
        """6 Psi a token, without what is computed again and without attention's products."""
        shape, tokens = self.model, self.batch * self.model.length
        return achieved_mfu(
            shape.active_without_lookup, tokens, self.step_s, self.configuration.devices, self._flops_per_s
        )

    @cached_property
    def parts_s(self) -> dict[Part, float]:
        """Seconds of the step, of a mean stage: it works, and waits for the others in the bubble."""
        c = self.configuration
        work_s = c.micro_batches * self.stages_s.mean(0)
        return {
            **dict(zip(Part, work_s.tolist(), strict=True)),
            Part.MESSAGES: self._messages_s,
            Part.BUBBLE: float(uneven_idle_s(self.stages_s.sum(1), c.micro_batches, c.chunks)),
            Part.GRADIENTS: self._gradients_s,
        }

    @cached_property
    def stages_s(self) -> np.ndarray:
        """[stages, parts]: seconds of one micro-batch, in the order of `Part`; zero for what no micro-batch has."""
        layers = np.array(self._layers)[:, None]
        seconds = layers * self._in_order(self._layer_s)
        seconds[0] += self._in_order(self._end_s)
        seconds[-1] += self._in_order(self._end_s | {Part.PRODUCTS: self._products_s(self._table)})
        return seconds

    @property
    def held_bytes(self) -> dict[Held, float]:
        """Bytes of the device that holds most."""
        most = self._stages_bytes.sum(0).argmax()
        return dict(zip(Held, self._stages_bytes[:, most].tolist(), strict=True))

    @cached_property
    def memory_bytes(self) -> float:
        return float(self._stages_bytes.sum(0).max())

    @staticmethod
    def _in_order(parts: dict[Part, float]) -> np.ndarray:
        return np.array([parts.get(part, 0.0) for part in Part])

    @cached_property
    def _layers(self) -> tuple[int, ...]:
        """Of each stage, all its chunks together."""
        c = self.configuration
        chunks = layers_of_chunks(c.stage_layers) if c.stage_layers else stage_layers(self.model.layers, c.pipe)
        return tuple(sum(chunks[stage :: c.pipe]) for stage in range(c.pipe))

    @property
    def _tokens(self) -> int:
        return self.micro_batch * self.model.length

    @property
    def _flops_per_s(self) -> float:
        return self.cluster.chip.flops_per_s["bf16"].value

    @property
    def _table(self) -> int:
        return self.model.vocab * self.model.embed

    @property
    def _layer_parameters(self) -> float:
        return self.model.non_embedding / self.model.layers

    @cached_property
    def _stage_parameters(self) -> np.ndarray:
        """[stages], before anything splits a stage. A tied table lies on both ends."""
        found = np.array(self._layers) * self._layer_parameters
        found[0] += self.model.lookup_parameters
        found[-1] += self._table
        if self.model.tied and len(found) > 1:
            found[0] += self._table
        return found

    def _link(self, axis: str) -> tuple[float, float]:
        """(alpha [s], bytes/s): of the fast links where each group of the axis lies in one domain."""
        c, chip = self.configuration, self.cluster.chip
        stride = prod(getattr(c, inner) for inner in c.order[c.order.index(axis) + 1 :])
        if domains_spanned(getattr(c, axis), stride, self.cluster.domain_chips) == 1:
            return self.fast_alpha_s, chip.fast.value
        return self.slow_alpha_s, chip.slow.value

    def _products_s(self, parameters: float, flops_per_parameter: int = 6) -> float:
        """Of a micro-batch, with weights of this many parameters."""
        return stage_compute_s(
            parameters,
            self._tokens,
            1,
            self.configuration.tensor,
            self._flops_per_s,
            self.efficiency,
            flops_per_parameter,
        )

    @property
    def _layer_s(self) -> dict[Part, float]:
        """Of one layer and micro-batch."""
        c, shape = self.configuration, self.model
        once_s = self._products_s(self._layer_parameters)
        attention = attention_forward_flops(self._tokens, shape.length, shape.heads * shape.head_dim, causal=True)
        passes = 3 if c.remat == "none" else 4
        return {
            Part.PRODUCTS: once_s,
            Part.ATTENTION: passes * attention / (c.tensor * self._flops_per_s * self.efficiency),
            Part.RECOMPUTED: self._products_s(self._layer_parameters, 8) - once_s if c.remat == "full" else 0.0,
            # Gathers and scatters of the stream, half an all-reduce each: four a pass, and those of a backward pass.
            Part.TENSOR: (12 if c.remat == "full" else 10) * self._stream_s,
            Part.SHARDS: self._shards_s(self._layer_parameters, gathers=2),
        }

    @cached_property
    def _end_s(self) -> dict[Part, float]:
        """Of the embedding, or of the head without its products."""
        return {Part.TENSOR: 2 * self._stream_s, Part.SHARDS: self._shards_s(self._table, gathers=1)}

    @cached_property
    def _stream_s(self) -> float:
        """One gather of a micro-batch's stream along `tensor`, or one scatter."""
        n = activation_bytes(self._tokens, self.model.embed, BF16)
        return ring_all_gather_s(n, self.configuration.tensor, *self._link(TENSOR))

    def _shards_s(self, parameters: float, gathers: int) -> float:
        """ZeRO-3 gathers weights and scatters gradients, ZeRO-2 scatters gradients, in every micro-batch."""
        c = self.configuration
        whole = int(BF16 * parameters) // c.tensor
        seconds = (gathers + 1) * ring_all_gather_s(whole, c.fsdp, *self._link(FSDP))
        return seconds + (ring_all_gather_s(whole // c.fsdp, c.data, *self._link(DATA)) if c.zero == 2 else 0.0)

    @property
    def _messages_s(self) -> float:
        """Those that a step waits for."""
        c = self.configuration
        n = activation_bytes(self._tokens, self.model.embed, BF16) // c.tensor
        return messages_waited(c.pipe, c.micro_batches, c.chunks) * message_s(n, *self._link(PIPE))

    @property
    def _gradients_s(self) -> float:
        """Once a step: of the stage with most parameters, and of a tied table over both ends."""
        c = self.configuration
        split = c.tensor * c.fsdp
        largest = gradient_bytes(int(self._stage_parameters.max()), BF16) // split
        collective_s = ring_all_gather_s if c.zero == 2 else ring_all_reduce_s
        seconds = collective_s(largest, c.data, *self._link(DATA))
        if self.model.tied and c.pipe > 1:
            seconds += ring_all_reduce_s(gradient_bytes(self._table, BF16) // split, 2, *self._link(PIPE))
        return seconds

    @cached_property
    def _stages_bytes(self) -> np.ndarray:
        """[parts, stages], in the order of `Held`."""
        c, layers = self.configuration, np.array(self._layers)
        parameters = self._stage_parameters / (c.tensor * c.fsdp)

        def state(**bytes_per_parameter: int) -> np.ndarray:
            none = {"weight_bytes": 0, "gradient_bytes": 0, "master_bytes": 0, "moment_bytes": 0}
            return parameters * float(model_state_bytes(1, c.data, c.zero, **none | bytes_per_parameter))

        saved_bytes = self._saved_bytes(c.remat)
        again_bytes = self._saved_bytes("selective") - saved_bytes if c.remat == "full" else 0.0
        working = np.full(c.pipe, again_bytes)
        working[-1] += self._tokens * self.model.vocab * LOGIT_BYTES / c.tensor
        if c.fsdp > 1:
            working += zero3_working_bytes(int(self._layer_parameters) // c.tensor, BF16)
        kept = self._in_flight * layers * saved_bytes
        return np.array(
            [state(weight_bytes=2), state(gradient_bytes=2), state(master_bytes=4, moment_bytes=8), kept, working]
        )

    @property
    def _in_flight(self) -> np.ndarray:
        """[stages] micro-batches."""
        c = self.configuration
        if c.chunks > 1:
            held = [interleaved_in_flight(c.pipe, c.chunks, stage) for stage in range(c.pipe)]
            return np.array([min(float(each), c.micro_batches) for each in held])
        return np.array([in_flight(c.pipe, c.micro_batches, stage) for stage in range(c.pipe)])

    def _saved_bytes(self, remat: str) -> float:
        """Of one layer and micro-batch: every tensor is split along `tensor`, by heads, by width or by tokens."""
        shape, t = self.model, self.configuration.tensor
        sizes = self._tokens, shape.length, shape.embed, shape.heads
        if remat == "full":
            return activation_bytes(self._tokens, shape.embed, BF16) / t
        if shape.is_gated:
            return llama_saved_bytes(SAVED[remat], *sizes, shape.kv_heads, shape.head_dim, shape.mlp) / t
        return float(gpt_saved_bytes(*sizes, t, t, scores=remat == "none"))
