"""A question that is answered in numbers: by formulas, the zoo and the hardware table, or by several programs side by
side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any, ClassVar

import jax
from msgspec import UNSET

from lab.book.checks import finite, not_negative, positive
from lab.harness.claim import Claim
from lab.harness.schemas import AnswerRowJson, RunResultJson, SecondsJson
from lab.harness.settings import with_settings
from lab.meshes.errors import UsageError, one_line


@dataclass(frozen=True)
class Row:
    """One number of an answer: what it is, its value (or a word), and its unit; where the value is measured, what
    theory predicts for it."""

    what: str
    value: float | str
    unit: str = ""
    predicted: float | None = None


@dataclass(frozen=True)
class Question:
    """One question and how it is answered.

    Attributes:
      name: of its module in `experiments`.
      chapter: of the book.
      parameters: what is assumed, a frozen dataclass; its `target`, if it has one, is where programs are compiled.
      answer: parameters to the rows of the answer.
      claims: parameters to what these numbers say of the book.
      asked: parameters to the question, where its words depend on them; `question` is then that of the defaults.
      is_quick: it is answered in a few seconds; of those without a program, `lab verify` leaves out the others.
      losses: parameters to the losses of each step of its trainings, an array by each name, of one that trains.
    """

    name: str
    chapter: int
    question: str
    parameters: Any
    answer: Callable[[Any], tuple[Row, ...]]
    claims: Callable[[Any], tuple[Claim, ...]]
    asked: Callable[[Any], str] | None = None
    is_quick: bool = True
    losses: Callable[[Any], Mapping[str, Any]] | None = None
    styles: ClassVar[tuple[str, ...]] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """Where its programs are compiled by default; none where it has no program."""
        return (self.parameters.target,) if hasattr(self.parameters, "target") else ()


@dataclass(frozen=True)
class Answer:
    """What a question came to.

    Attributes:
      failure: what XLA refused, in a line; then there are no rows and claims.
      losses: of each step of its trainings, by their names.
    """

    experiment: str
    question: str
    parameters: dict[str, Any]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]
    seconds: float
    failure: str | None = None
    losses: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return "failed" if self.failure else "answered"

    @property
    def is_fine(self) -> bool:
        """Nothing failed, and nothing of the book was refuted but what the catalogue disputes."""
        return not (self.failure or any(claim.is_undisputed_refutation for claim in self.claims))

    def json_object(self) -> RunResultJson:
        return RunResultJson(
            experiment=self.experiment,
            question=self.question,
            parameters=self.parameters,
            rows=tuple(AnswerRowJson(row.what, row.value, row.unit, row.predicted) for row in self.rows),
            claims=self.claims,
            failure=self.failure,
            style=None,
            target=None,
            mesh=None,
            numerics=None,
            memory=None,
            verdict=self.verdict,
            terms=(),
            unexplained=(),
            missing=(),
            seconds=SecondsJson(self.seconds),
            losses_by_name={name: _finite(losses) for name, losses in self.losses.items()} or UNSET,
        )


def answer(question: Question, settings: Mapping[str, str]) -> Answer:
    """Answers a question with some of its assumptions set from text.

    Raises:
      UsageError: an unknown assumption, or one that a formula refuses. What XLA refuses is a failed answer, not an
        error.
    """
    start, parameters = time.perf_counter(), with_settings(question.parameters, settings)
    try:
        check(parameters, question.parameters)
        rows, claims, failure = question.answer(parameters), question.claims(parameters), None
        trained = question.losses(parameters) if question.losses else {}
        losses = {name: tuple(map(float, some)) for name, some in trained.items()}
    except UsageError:
        raise
    except (ArithmeticError, ValueError) as refusal:
        raise UsageError(f"{question.name}: {refusal}") from refusal
    except jax.errors.JaxRuntimeError as refusal:
        rows, claims, failure, losses = (), (), one_line(refusal), {}
    asked = question.asked(parameters) if question.asked else question.question
    seconds = time.perf_counter() - start
    return Answer(question.name, asked, asdict(parameters), rows, claims, seconds, failure, losses)


def check(assumed: Any, by_default: Any) -> None:
    """Counts are above zero, but for those that are zero by default; what is measured is finite and may be zero.

    Raises:
      ValueError: a number below that, or none that is finite.
    """
    numbers, may_be_zero = asdict(assumed), {name for name, value in asdict(by_default).items() if value == 0}
    positive(**{name: value for name, value in numbers.items() if type(value) is int and name not in may_be_zero})
    finite(**{name: value for name, value in numbers.items() if isinstance(value, float)})
    not_negative(
        **{
            name: value
            for name, value in numbers.items()
            if isinstance(value, float) or (type(value) is int and name in may_be_zero)
        }
    )


def _finite(losses: Sequence[float]) -> tuple[float | None, ...]:
    """As JSON has them: what is not finite is null."""
    return tuple(float(loss) if isfinite(loss) else None for loss in losses)
