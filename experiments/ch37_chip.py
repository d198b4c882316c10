"""Chapter 37: a new chip has twice the FLOP/s and half the memory bandwidth; what becomes of a layout?"""

from collections.abc import Iterator
from dataclasses import dataclass

from lab.book.checks import positive
from lab.book.data_parallel import tokens_to_hide_sync
from lab.book.roofline import dp_intensity, ridge, tp_intensity
from lab.book.tensor_parallel import tp_compute_to_sync
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.zoo import cluster, model

BF16 = 2
ARITHMETIC = "arithmetic"


@dataclass(frozen=True)
class Assumed:
    """The new chip is the cluster's with these factors on FLOP/s, on the bandwidth of memory and on that of both links;
    the layout is tensor parallelism inside and data parallelism between its domains. Products in training are of
    `tokens` a replica, at inference of `sequences`, a token each."""

    cluster: str = "dgx-h100"
    model: str = "llama3-70b"
    flops_factor: float = 2.0
    memory_factor: float = 0.5
    link_factor: float = 1.0
    tensor: int = 8
    replicas: int = 64
    tokens: int = 16384
    sequences: int = 512


@dataclass(frozen=True)
class Chip:
    """FLOP/s, and the bytes/s of what may bound it, by name."""

    flops_per_s: float
    bytes_per_s: dict[str, float]

    def bound(self, resource: str, intensity: float) -> str:
        return resource if intensity < ridge(self.flops_per_s, self.bytes_per_s[resource]) else ARITHMETIC


def product_intensity(rows: float, inner: float, columns: float) -> float:
    """2 m k n / (2 (m k + k n + m n)) FLOP a byte of a product in 16 bits whose operands are read, and whose result is
    written, once."""
    positive(rows=rows, inner=inner, columns=columns)
    return 2 * rows * inner * columns / (BF16 * (rows * inner + inner * columns + rows * columns))


def chips(assumed: Assumed) -> tuple[Chip, Chip]:
    """The cluster's own, and the new one."""
    own = cluster(assumed.cluster).chip
    flops, memory, links = assumed.flops_factor, assumed.memory_factor, assumed.link_factor
    at = {"the memory": own.memory_bytes_per_s.value, "the fast link": own.fast.value, "the network": own.slow.value}
    flops_per_s = own.flops_per_s["bf16"].value
    factors = {"the memory": memory, "the fast link": links, "the network": links}
    new = Chip(flops * flops_per_s, {name: factors[name] * value for name, value in at.items()})
    return Chip(flops_per_s, at), new


def operations(assumed: Assumed) -> Iterator[tuple[str, str, float]]:
    """Operation, what it moves its bytes through, FLOP a byte."""
    shape = model(assumed.model)
    inner, columns = shape.embed, shape.mlp / assumed.tensor
    yield "an MLP's product in training", "the memory", product_intensity(assumed.tokens, inner, columns)
    yield "an MLP's product at inference", "the memory", product_intensity(assumed.sequences, inner, columns)
    yield "a product of one sequence at inference", "the memory", product_intensity(1, inner, columns)
    # A square, a sum and two multiplications of each element that is read and written.
    yield "RMSNorm", "the memory", 4 / (2 * BF16)
    # 12 FLOP on 28 bytes: bf16 gradient and weight, master weight and both moments read and written in float32.
    yield "AdamW", "the memory", 12 / 28
    if assumed.tensor > 1:
        # Of a step's four all_reduces a layer the forward pass has two, and a third of the FLOPs.
        whole = tp_intensity(shape.embed, assumed.tensor)
        yield "all_reduces of tensor parallelism, forward", "the fast link", 2 / 3 * whole
        yield "all_reduces of tensor parallelism, backward", "the fast link", 4 / 3 * whole
    if assumed.replicas > 1:
        yield "all_reduce of gradients", "the network", dp_intensity(assumed.tokens, assumed.replicas)


def becoming_bottlenecks(assumed: Assumed) -> dict[str, str]:
    """What bounds, on the new chip, each operation that arithmetic bounds on the old one, and no longer."""
    old, new = chips(assumed)
    return {
        what: resource
        for what, resource, intensity in operations(assumed)
        if old.bound(resource, intensity) == ARITHMETIC != new.bound(resource, intensity)
    }


def answer(assumed: Assumed) -> tuple[Row, ...]:
    old, new = chips(assumed)
    bounds = [
        Row(
            f"{what}, {_short(intensity)} FLOP/B: bound by",
            _change(*(chip.bound(by, intensity) for chip in (old, new))),
        )
        for what, by, intensity in operations(assumed)
    ]
    return (
        *_chip("", old, assumed),
        *_chip("new: ", new, assumed),
        *bounds,
        *(Row(f"becomes a bottleneck: {what}", by) for what, by in becoming_bottlenecks(assumed).items()),
    )


def _short(intensity: float) -> str:
    return f"{intensity:,.0f}" if intensity >= 10 else f"{intensity:.2g}"


def _change(before: str, after: str) -> str:
    return f"{after}, as before" if before == after else f"{after}, was {before}"


def _chip(whose: str, chip: Chip, assumed: Assumed) -> Iterator[Row]:
    shape, flops_per_s = model(assumed.model), chip.flops_per_s
    for name, bytes_per_s in chip.bytes_per_s.items():
        yield Row(f"{whose}ridge of {name}", ridge(flops_per_s, bytes_per_s), "FLOP/B")
    fast, slow = chip.bytes_per_s["the fast link"], chip.bytes_per_s["the network"]
    for ranks in sorted({assumed.tensor, 2}, reverse=True):
        yield Row(
            f"{whose}computation over tensor all-reduces, t{ranks}",
            tp_compute_to_sync(shape.embed, ranks, flops_per_s, fast),
        )
    yield Row(
        f"{whose}tokens a replica that hide its gradient sync",
        tokens_to_hide_sync(assumed.replicas, BF16, flops_per_s, slow),
        "tokens",
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    book = Assumed()
    (before, after) = (ridge(chip.flops_per_s, chip.bytes_per_s["the memory"]) for chip in chips(book))
    return (
        decided(
            "ch37.exercises",
            after == 4 * before,
            f"{before:,.0f} FLOP/B becomes {after:,.0f}, {after / before:g} times",
            statement="the ridge of the memory moves up 4 times",
        ),
    )


def asked(assumed: Assumed) -> str:
    flops, memory, links = assumed.flops_factor, assumed.memory_factor, assumed.link_factor
    also = "" if links == 1 else f" and {links:g} times that of the links"
    chip = f"{flops:g} times the FLOP/s and {memory:g} times the memory bandwidth{also}"
    return f"A new chip has {chip}; what changes for a layout?"


EXPERIMENT = Question(
    name="ch37_chip",
    chapter=37,
    question=asked(Assumed()),
    parameters=Assumed(),
    answer=answer,
    claims=claims,
    asked=asked,
)
