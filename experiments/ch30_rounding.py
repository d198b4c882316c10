"""Chapter 30: what do number formats lose of values and of products? By Monte Carlo, with standard errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

from lab.book.precision import (
    log_uniform_share_lost,
    matmul_error_ratio,
    normal_rounding_error,
    product_rounding_error,
    smallest_normal,
    smallest_subnormal,
)
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row

SURE = 4
"""Standard errors within which a mean confirms a formula."""
E4M3 = ml_dtypes.float8_e4m3fn


@dataclass(frozen=True)
class Format:
    """Attributes: dtype: NumPy's; mantissa: bits; top: magnitude that a tensor is scaled to, 0: it is not scaled."""

    dtype: type
    mantissa: int
    top: float = 0


FORMATS = {
    "float16": Format(np.float16, 10),
    "bfloat16": Format(ml_dtypes.bfloat16, 7),
    "float8 E4M3": Format(E4M3, 3, 448),
    "float8 E5M2": Format(ml_dtypes.float8_e5m2, 2, 57344),
}


@dataclass(frozen=True)
class Draws:
    """Normal tensors, and products of square matrices of them.

    Attributes:
      draws: of each, with a seed of its own.
      values: of a tensor.
      rows: of a matrix.
    """

    draws: int = 12
    values: int = 100_000
    rows: int = 192


@dataclass(frozen=True)
class Mean:
    """Of draws, with its standard error, and what a formula gives; `order`: relative to that, what it leaves out."""

    mean: float
    error: float
    book: float
    order: float = 0

    @property
    def is_met(self) -> bool:
        return abs(self.mean - self.book) <= SURE * self.error + self.order * self.book

    def __str__(self) -> str:
        return f"{100 * self.mean:.4g} % +- {100 * self.error:.1g} %, by the formula {100 * self.book:.4g} %"


def over(found: Sequence[float], book: float, mantissa: int | None = None) -> Mean:
    # That values lie evenly in a gap is true but for terms of its square.
    order = 0 if mantissa is None else 4.0**-mantissa / 8
    return Mean(float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(len(found))), book, order)


def rounded(x: np.ndarray, kept: Format) -> tuple[np.ndarray, float]:
    """The values after the cast, and the deviation that they had in units of the format."""
    scale = kept.top / np.abs(x).max() if kept.top else 1.0
    return (x * scale).astype(kept.dtype).astype(np.float64) / scale, float(x.std() * scale)


def loss(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@cache
def drawn_values(assumed: Draws, name: str) -> tuple[tuple[float, float], ...]:
    """Of each tensor its loss, and its deviation in units of the format."""
    found = []
    for seed in range(assumed.draws):
        x = np.random.default_rng(seed).standard_normal(assumed.values)
        y, deviation = rounded(x, FORMATS[name])
        found.append((loss(y, x), deviation))
    return tuple(found)


@cache
def drawn_products(assumed: Draws, name: str) -> tuple[tuple[float, float, float], ...]:
    """Of each product, summed in 64 bits, its loss, and the deviations of both rounded factors."""
    found = []
    for seed in range(assumed.draws):
        a_NN, b_NN = np.random.default_rng(seed).standard_normal((2, assumed.rows, assumed.rows))
        (a8_NN, a_deviation), (b8_NN, b_deviation) = (rounded(x, FORMATS[name]) for x in (a_NN, b_NN))
        found.append((loss(a8_NN @ b8_NN, a_NN @ b_NN), a_deviation, b_deviation))
    return tuple(found)


@cache
def drawn_lost(assumed: Draws) -> tuple[float, ...]:
    """Of values from 1e-8 to 1e8, each decade alike, the share that float16 makes zero or infinite."""
    found = []
    for seed in range(assumed.draws):
        x = 10 ** np.random.default_rng(seed).uniform(-8, 8, assumed.values)
        with np.errstate(over="ignore"):
            cast = x.astype(np.float16).astype(np.float64)
        found.append(float(np.mean((cast == 0) | np.isinf(cast))))
    return tuple(found)


def of_values(assumed: Draws, name: str) -> Mean:
    found, mantissa = drawn_values(assumed, name), FORMATS[name].mantissa
    book = [normal_rounding_error(mantissa, deviation) for _, deviation in found]
    return over([lost for lost, _ in found], float(np.mean(book)), mantissa)


def of_products(assumed: Draws, name: str) -> Mean:
    found, mantissa = drawn_products(assumed, name), FORMATS[name].mantissa
    book = [
        product_rounding_error(*(normal_rounding_error(mantissa, deviation) for deviation in factors))
        for _, *factors in found
    ]
    return over([lost for lost, *_ in found], float(np.mean(book)), mantissa)


def lost(assumed: Draws) -> Mean:
    return over(drawn_lost(assumed), float(log_uniform_share_lost(1e-8, 1e8, 5, 10)))


def answer(assumed: Draws) -> tuple[Row, ...]:
    return (
        *(row for name in FORMATS for row in rows(name, "a normal value", of_values(assumed, name))),
        *(row for name in FORMATS for row in rows(name, "a product of matrices", of_products(assumed, name))),
        *rows("float16", "log-uniform values lost", lost(assumed)),
    )


def rows(name: str, what: str, found: Mean) -> tuple[Row, Row]:
    return (
        Row(f"{name}, {what}", 100 * found.mean, "%", 100 * found.book),
        Row(f"{name}, {what}: standard error", 100 * found.error, "%"),
    )


def claims(assumed: Draws) -> tuple[Claim, ...]:
    half, brain = (of_products(assumed, name).mean for name in ("float16", "bfloat16"))
    ratio, book = brain / half, matmul_error_ratio(7, 10)
    range_lost = lost(assumed)
    least = float(np.nextafter(E4M3(0), E4M3(1)))
    return (
        *(met("ch30.fp8_recipe", f"a normal tensor in {name}", of_values(assumed, name)) for name in FORMATS),
        *(met("ch30.fp8_recipe", f"a product of matrices in {name}", of_products(assumed, name)) for name in FORMATS),
        decided(
            "ch30.matmul_error",
            abs(ratio / book - 1) < 0.05,
            f"products err {ratio:.2f} times as much in bfloat16 as in float16; three bits of mantissa are {book:g}",
            statement="bfloat16 over float16 is 8",
        ),
        decided(
            "ch30.matmul_error",
            abs(ratio / 10 - 1) < 0.05,
            f"products err {ratio:.2f} times as much in bfloat16 as in float16",
            statement="bfloat16 over float16 is about 10",
            disputed="6-8:D-80",
        ),
        met("ch30.range_loss", "log-uniform values in float16", range_lost),
        decided(
            "ch30.range_loss",
            abs(range_lost.mean - 0.4375) <= SURE * range_lost.error,
            f"{range_lost.mean:.2%} are lost; 43.75% counts subnormals, which are kept",
            statement="float16 loses 43.75% of log-uniform values",
            disputed="6-8:D-78",
        ),
        decided(
            "ch30.formats",
            least == smallest_subnormal(4, 3),
            f"the least E4M3 value above zero is {least:g}, a subnormal",
            statement="2^-9 is E4M3's smallest subnormal",
        ),
        decided(
            "ch30.formats",
            least == smallest_normal(4),
            f"the least E4M3 value above zero is {least:g}; normal values begin at {smallest_normal(4):g}",
            statement="2^-9 is E4M3's smallest normal value",
            disputed="6-8:D-81",
        ),
    )


def met(id: str, what: str, found: Mean) -> Claim:
    return decided(
        id, found.is_met, f"{what}: {found}", statement=f"{what}: the formula, within {SURE} standard errors"
    )


EXPERIMENT = Question(
    name="ch30_rounding",
    chapter=30,
    question="What do number formats lose of values, of products and of a range?",
    parameters=Draws(),
    answer=answer,
    claims=claims,
)
