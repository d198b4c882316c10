"""What advice comes to that nobody tried: what to edit, and what one device sends, computes and holds before and after,
by calculation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lab.core.ledger import Transfer
from lab.core.units import bytes_text, exact, scaled
from lab.diagnosis.remedy import where

Way = tuple[str, str]
"""The axes that bytes are sent along, `fsdp+tensor`, and the link; "" where that is not known."""


@dataclass(frozen=True)
class Edit:
    """What of a program to edit.

    Attributes:
      value: an argument with its path, shape and PartitionSpec, or the result of an operation.
      write: the PartitionSpec to write, and where; "" where none changes.
      line: file and line where the value is moved or used; None where the text has none.
    """

    value: str
    write: str = ""
    line: str | None = None

    @property
    def text(self) -> str:
        """`w f32[8,8] P() at model.py:8: in_specs P() of w in jax.shard_map`."""
        at = f" at {self.line}" if self.line else ""
        return f"{self.value}{at}{f': {self.write}' if self.write else ''}"


@dataclass(frozen=True)
class Sent:
    """Bytes that one device sends in a step along some axes over one link; `after` is null where that is not known, and
    then at most as much."""

    axes: str
    link: str
    before: Fraction
    after: Fraction | None


@dataclass(frozen=True)
class Account:
    """Both sides of advice, of the whole program.

    Attributes:
      sent: by axes and link, also what stays as it is; () where advice is not about what is sent, and may change that.
      at_most: bytes after, and what more or less is multiplied and held, are no more than bounds.
      per_iteration: bytes are those of one iteration of a loop, of which the text does not say how often it runs.
      flops: that one device multiplies more in a step; less where negative.
      memory: bytes that it holds more; less where negative.
    """

    sent: tuple[Sent, ...] = ()
    at_most: bool = False
    per_iteration: bool = False
    flops: int = 0
    memory: int = 0

    @property
    def text(self) -> str:
        """`458,752 B -> 0 B sent over data inside hosts, 1.2 GFLOP more`; "" where nothing is known."""
        return ", ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        changed = [one for one in self.sent if one.after != one.before]
        each_time = " each time" * self.per_iteration
        most = "at most " * self.at_most
        for one in changed:
            after = "at most as much" if one.after is None else f"{most}{exact(one.after)} B"
            yield f"{exact(one.before)} B -> {after} sent{each_time}{_along(one)}"
        rest = sum((one.before for one in self.sent if one not in changed), Fraction(0))
        if rest:
            yield f"{'the other ' * bool(changed)}{exact(rest)} B sent as before"
        for change, amount in ((self.flops, scaled(abs(self.flops), "FLOP")), (self.memory, _held(self.memory))):
            if change:
                yield f"{most}{amount} {'more' if change > 0 else 'less'}"
        if not self.sent and (self.flops or self.memory):
            yield "what it sends is not calculated"

    @classmethod
    def of(
        cls,
        transfers: Iterable[Transfer],
        concerned: Iterable[Transfer],
        needed: Fraction | None,
        added: Mapping[Way, Fraction],
        **rest: Any,
    ) -> Account:
        """Args:
        transfers, concerned: of the whole program, and those of them that the advice is about.
        needed: what a better program sends in place of these, along the same axes; None where that is not known.
        added: what it sends more, by axes and link, where it does not just send less of these.
        """
        concerned = list(concerned)
        if not concerned and not added:
            return cls(**rest)
        per_iteration = any(t.executions is None for t in concerned)
        before, now = by_way(concerned if per_iteration else transfers), by_way(concerned)
        if not added and needed is not None:
            whole = sum(now.values(), Fraction(0))
            added = {way: size * (needed / whole - 1) for way, size in now.items()}
        unknown = set() if added else now.keys()
        sent = tuple(
            Sent(*way, size, None if way in unknown else size + added.get(way, Fraction(0)))
            for way in dict.fromkeys((*before, *added))
            for size in (before.get(way, Fraction(0)),)
        )
        return cls(sent, per_iteration=per_iteration, **rest)


def by_way(transfers: Iterable[Transfer]) -> dict[Way, Fraction]:
    """Wire bytes of one device in a step, by axes and link; once where the text does not say how often."""
    found: dict[Way, Fraction] = {}
    for t in transfers:
        if size := (t.wire_bytes or Fraction(0)) * (1 if t.executions is None else t.executions):
            way = t.span, str(t.link or "")
            found[way] = found.get(way, Fraction(0)) + size
    return found


def _along(sent: Sent) -> str:
    return "".join([f" over {sent.axes}" * bool(sent.axes), f" {where(sent.link)}".rstrip()])


def _held(memory: int) -> str:
    return f"{bytes_text(abs(memory))} of memory"
