"""Chapter 37: a new chip has twice the FLOP/s and half the bandwidth; what becomes of a layout?"""

from dataclasses import dataclass

from lab.book.data_parallel import tokens_to_hide_sync
from lab.book.tensor_parallel import tp_compute_to_sync
from lab.harness.claim import Claim, calculated
from lab.harness.question import Question, Row
from lab.zoo import cluster, model


@dataclass(frozen=True)
class Assumed:
    """The new chip is the cluster's with these factors; the layout is tensor parallelism inside and data parallelism
    between its domains."""

    cluster: str = "dgx-h100"
    model: str = "llama3-70b"
    flops_factor: float = 2.0
    bandwidth_factor: float = 0.5
    tensor: int = 8
    replicas: int = 64


def answer(assumed: Assumed) -> tuple[Row, ...]:
    return (*_chip("", 1, 1, assumed), *_chip("new: ", assumed.flops_factor, assumed.bandwidth_factor, assumed))


def _chip(whose: str, flops_factor: float, bandwidth_factor: float, assumed: Assumed) -> tuple[Row, ...]:
    chip, shape = cluster(assumed.cluster).chip, model(assumed.model)
    flops_per_s = chip.flops_per_s["bf16"].value * flops_factor
    fast, slow, memory = (
        bandwidth_factor * of for of in (chip.fast.value, chip.slow.value, chip.memory_bytes_per_s.value)
    )
    return (
        Row(f"{whose}ridge of the memory", flops_per_s / memory, "FLOP/B"),
        Row(f"{whose}ridge of the fast link", flops_per_s / fast, "FLOP/B"),
        Row(f"{whose}ridge of the network", flops_per_s / slow, "FLOP/B"),
        Row(
            f"{whose}computation over tensor all-reduces, t{assumed.tensor}",
            tp_compute_to_sync(shape.embed, assumed.tensor, flops_per_s, fast),
        ),
        Row(f"{whose}computation over tensor all-reduces, t2", tp_compute_to_sync(shape.embed, 2, flops_per_s, fast)),
        Row(
            f"{whose}tokens a replica that hide its gradient sync",
            tokens_to_hide_sync(assumed.replicas, 2, flops_per_s, slow),
            "tokens",
        ),
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    book = Assumed()
    return (
        calculated(
            "ch37.exercises",
            f"twice over a half is {book.flops_factor / book.bandwidth_factor:g}",
            statement="every ridge moves up 4 times",
        ),
    )


def asked(assumed: Assumed) -> str:
    flops, bandwidth = assumed.flops_factor, assumed.bandwidth_factor
    return (
        f"A new chip has {flops:g} times the FLOP/s and {bandwidth:g} times the bandwidth; what changes for a layout?"
    )


EXPERIMENT = Question(
    name="ch37_chip",
    chapter=37,
    question=asked(Assumed()),
    parameters=Assumed(),
    answer=answer,
    claims=claims,
    asked=asked,
)
