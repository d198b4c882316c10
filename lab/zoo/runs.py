"""Training runs that somebody published, with their degrees: the table `runs.toml`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lab.zoo import table


@dataclass(frozen=True)
class PublishedRun:
    """One run.

    Attributes:
      name, source: in the zoo, and where its numbers come from.
      model: of the zoo.
      target: the machine, as the lab writes it.
      mesh: axes and sizes, in the order of `mesh.devices`.
      batch: sequences of one step.
      length: tokens of a sequence.
      accumulation: micro-batches of one step on a data-parallel rank.
      vocab: tokens of its table, where they are not the model's; 0: they are.
      schedule, chunks, stage_layers, zero, remat, attention: as a `Configuration` has them.
      mtp: 1: it is trained to predict the token after the next, too.
      step_s, mfu: as published: seconds of a step, and share of the peak; None where they are not.
      differs: what the lab's step on this mesh does not do as theirs did.
    """

    name: str
    source: str
    model: str
    target: str
    mesh: str
    batch: int
    length: int
    accumulation: int
    differs: str
    vocab: int = 0
    schedule: str = "1f1b"
    chunks: int = 1
    stage_layers: str = ""
    zero: int = 0
    remat: str = "full"
    attention: str = "zigzag"
    mtp: int = 0
    step_s: float | None = None
    mfu: float | None = None


def run_names() -> tuple[str, ...]:
    """In the table's order."""
    return tuple(table.read("runs.toml")["runs"])


def published_run(name: str) -> PublishedRun:
    """One run of the table, such as `mlperf5-405b-512`.

    Raises:
      UsageError: the table lacks it.
    """
    everything = table.read("runs.toml")
    row: dict[str, Any] = dict(everything["runs"][table.known("published run", name, run_names())])
    return PublishedRun(name=name, source=everything["sources"][row.pop("source")], **row)
