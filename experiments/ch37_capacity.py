"""Chapter 37: how are 175B parameters trained on 512 GPUs? Of models without experts."""

from dataclasses import dataclass
from math import ceil

from lab.book.collectives import ring_all_reduce_s
from lab.book.composition import (
    pipelined_step_s,
    split_state_bytes,
    stage_compute_s,
    trained_flops_per_s,
)
from lab.book.memory import model_state_bytes
from lab.book.parallelism import activation_bytes
from lab.book.pipeline import bubble_share
from lab.harness.claim import Claim, calculated, decided
from lab.harness.question import Question, Row
from lab.meshes.errors import UsageError
from lab.zoo import ModelShape, cluster, model

BOOK = (8, 8)
"""Tensor and pipeline degree of the chapter's answer; 8 replicas remain."""


@dataclass(frozen=True)
class Assumed:
    """`batch` sequences a step; each layer recomputed from its input; ZeRO-1; matrix products at `efficiency` of the
    peak, nothing overlapped."""

    model: str = "gpt3-175b"
    cluster: str = "dgx-h100"
    devices: int = 512
    batch: int = 1536
    micro_batch: int = 1
    efficiency: float = 0.6
    memory_share: float = 0.9
    fast_alpha_s: float = 1e-6
    slow_alpha_s: float = 5e-6
    best: int = 3


@dataclass(frozen=True)
class Plan:
    """One choice of degrees and what it comes to, a device and step."""

    tensor: int
    pipe: int
    replicas: int
    memory_bytes: float
    bubble: float
    tensor_s: float
    data_s: float
    step_s: float

    def __str__(self) -> str:
        return f"t{self.tensor} p{self.pipe} d{self.replicas}"


def answer(assumed: Assumed) -> tuple[Row, ...]:
    shape, machine = dense(assumed.model), cluster(assumed.cluster)
    capacity = machine.chip.memory_bytes.value * assumed.memory_share
    state = float(model_state_bytes(shape.parameters))
    found = plans(assumed)
    fitting = [plan for plan in found if plan.memory_bytes <= capacity]
    rows = [
        Row("parameters", shape.parameters, "parameters"),
        Row("weights, gradients and optimizer", state, "B"),
        Row("devices that hold these and nothing else, at least", ceil(state / machine.chip.memory_bytes.value)),
        Row("choices of t, p and d that divide heads, layers and batch", len(found)),
        Row("of them in memory", len(fitting)),
    ]
    for plan in fitting[: assumed.best]:
        rows += _rows(plan, shape, assumed)
    return (
        *rows,
        *(
            row
            for plan in found
            if (plan.tensor, plan.pipe) == BOOK
            for row in _rows(plan, shape, assumed, "the book's ")
        ),
    )


def dense(name: str) -> ModelShape:
    """Raises UsageError where the model has experts: no degree of this search splits those."""
    shape = model(name)
    if shape.experts:
        raise UsageError(
            f"model={name}: has {shape.experts.routed} experts a layer, and this search splits none over devices; name "
            "a model without experts, such as llama3-70b"
        )
    return shape


def plans(assumed: Assumed) -> list[Plan]:
    """Every choice that divides heads, layers and batch, tensor parallelism inside a domain; the fastest first."""
    shape, machine = dense(assumed.model), cluster(assumed.cluster)
    tensors = [t for t in range(1, machine.domain_chips + 1) if shape.heads % t == 0]
    pipes = [p for p in range(1, shape.layers + 1) if shape.layers % p == 0]
    pairs = [(t, p) for t in tensors for p in pipes if assumed.devices % (t * p) == 0]
    found = [
        _plan(t, p, assumed.devices // (t * p), shape, assumed)
        for t, p in pairs
        if _divides(assumed, assumed.devices // (t * p))
    ]
    if not found:
        raise UsageError(
            f"devices={assumed.devices} and batch={assumed.batch}: no degrees divide {shape.name}'s {shape.layers} "
            "layers and the batch"
        )
    return sorted(found, key=lambda plan: plan.step_s)


def _divides(assumed: Assumed, replicas: int) -> bool:
    return assumed.batch % (replicas * assumed.micro_batch) == 0


def _plan(tensor: int, pipe: int, replicas: int, shape: ModelShape, assumed: Assumed) -> Plan:
    chip = cluster(assumed.cluster).chip
    micro_batches = assumed.batch // (replicas * assumed.micro_batch)
    tokens = assumed.micro_batch * shape.length
    layers = shape.layers // pipe
    compute_s = stage_compute_s(
        shape.active_without_lookup, tokens, pipe, tensor, chip.flops_per_s["bf16"].value, assumed.efficiency
    )
    one = ring_all_reduce_s(activation_bytes(tokens, shape.embed, 2), tensor, assumed.fast_alpha_s, chip.fast.value)
    tensor_s = 4 * layers * one
    gradients = 2 * shape.parameters // (tensor * pipe)
    data_s = ring_all_reduce_s(gradients, replicas, assumed.slow_alpha_s, chip.slow.value)
    step_s = pipelined_step_s(micro_batches, pipe, compute_s + tensor_s, data_s)
    # A stage keeps the input of each of its layers for the micro-batches in flight, and all of one layer while it is
    # computed again.
    inputs = 2 * tokens * shape.embed * layers * min(pipe, micro_batches)
    memory = (
        float(split_state_bytes(shape.parameters, pipe, tensor, replicas, stage=1))
        + inputs
        + 34 * tokens * shape.embed / tensor
    )
    bubble = float(bubble_share(pipe, micro_batches))
    return Plan(tensor, pipe, replicas, memory, bubble, micro_batches * tensor_s, data_s, step_s)


def _rows(plan: Plan, shape: ModelShape, assumed: Assumed, whose: str = "") -> list[Row]:
    rate = trained_flops_per_s(shape.active_without_lookup, assumed.batch * shape.length, assumed.devices, plan.step_s)
    return [
        Row(f"{whose}{plan}: memory a device", plan.memory_bytes, "B"),
        Row(f"{whose}{plan}: step", plan.step_s, "s"),
        Row(f"{whose}{plan}: of it tensor all-reduces", plan.tensor_s, "s"),
        Row(f"{whose}{plan}: of it gradient all-reduce", plan.data_s, "s"),
        Row(f"{whose}{plan}: bubble", 100 * plan.bubble, "%"),
        Row(f"{whose}{plan}: MFU", 100 * rate / cluster(assumed.cluster).chip.flops_per_s["bf16"].value, "%"),
    ]


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
