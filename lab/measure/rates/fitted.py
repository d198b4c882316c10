"""The rates of a chip from times of programs that run one kind of kernel each: what else is in a program is priced by
what was fitted before, and the rest is that kind's."""

from __future__ import annotations

import lzma
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from scipy.optimize import minimize, nnls

from lab.core.codec import from_json
from lab.hlo.kernels import Copy, Does, Kernel, Step
from lab.hlo.multiplied import Product
from lab.measure.rates.curves import Tile, Tiles
from lab.measure.rates.links import Links
from lab.measure.rates.prices import Prices
from lab.measure.rates.table import SCHEMA, ChipRates, Passes, Products, Source, Work
from lab.measure.schedule import StepJson

MEMORY, PASS, WRITTEN = "memory", "pass", "pass written"
"""How the names begin of programs that the curve of memory is made of, of others that pass over it, and of those that
write alone."""
TILES = ((128, 256), (256, 128), (128, 128), (64, 128), (128, 64), (64, 64))
RATES = (1.0, 1.0, 0.9, 0.8, 0.8, 0.65)
"""Of tiles where too few products tell."""
PULL = 0.02
"""Of an error by so many logarithms of a rate towards these."""
FEWEST = 2
"""Programs of a kind: one says nothing of other sizes."""
_FLOPS = frozenset({Does.ATTENTION, Does.ATTENTION_BACKWARD, Does.CONVOLUTION})


@dataclass(frozen=True)
class Timed:
    """Seconds of a program's run, and what it ran."""

    name: str
    seconds: float
    steps: tuple[Step, ...]

    @property
    def kernels(self) -> list[Kernel]:
        return [step for step in self.steps if isinstance(step, Kernel)]

    @property
    def kinds(self) -> set[tuple[Does, str]]:
        """Of kernels, but passes over memory."""
        return {_kind(kernel) for kernel in self.kernels if kernel.does is not Does.PASS}


@dataclass(frozen=True)
class _Steps(StepJson):
    times: int = 1


@dataclass(frozen=True)
class _Program:
    name: str
    seconds: float
    steps: tuple[_Steps, ...]


@dataclass(frozen=True)
class _Programs:
    programs: tuple[_Program, ...]


def timed_from(path: Path) -> list[Timed]:
    """As they are kept: steps that are alike once, without names."""
    kept = from_json(_Programs, msgspec.json.decode(lzma.decompress(path.read_bytes())))
    return [
        Timed(one.name, one.seconds, tuple(same.step() for same in one.steps for _ in range(same.times)))
        for one in kept.programs
    ]


def fitted(chip: str, timed: Iterable[Timed], units: int, source: tuple[str, Source]) -> ChipRates:
    """Rates of one chip, all from one source.

    Args:
      units: multiprocessors.
      source: its name and itself.
    """
    found, (name, told) = list(timed), source
    rates = ChipRates(
        SCHEMA, chip, {name: told}, {}, _memory([one for one in found if one.name.startswith(MEMORY)], name)
    )
    passes = [one for one in found if one.name.startswith(PASS) and not one.kinds]
    rates = replace(rates, elements=_elements(rates, [one for one in passes if one.name.startswith(WRITTEN)], name))
    rates = replace(rates, memory=replace(rates.memory, spread=_spread(rates, passes)))
    by_kind: dict[tuple[Does, str], list[Timed]] = defaultdict(list)
    # Of two kinds in one program the simpler has programs of its own, which come first.
    for one in sorted(found, key=lambda one: len(one.kinds)):
        fresh = [kind for kind in one.kinds if len(one.kinds) == 1 or kind not in by_kind]
        if len(fresh) == 1:
            by_kind[fresh[0]].append(one)
        elif known := [kind for kind in one.kinds if kind in by_kind and kind[0] is Does.ATTENTION_BACKWARD]:
            by_kind[known[0]].append(one)
    for (does, variant), some in by_kind.items():
        if does is Does.PRODUCT:
            rates = replace(rates, products={**rates.products, variant: _products(rates, some, units, name)})
        elif does is not Does.UNKNOWN and len(some) >= FEWEST:
            rates = replace(rates, work=(*rates.work, _work(rates, does, variant, some, name)))
    return replace(rates, host_copy=_host_copy(found, name))


def _kind(kernel: Kernel) -> tuple[Does, str]:
    return kernel.does, kernel.product.dtype if kernel.does is Does.PRODUCT and kernel.product else kernel.variant


def _memory(timed: Sequence[Timed], source: str) -> Passes:
    """Programs of kernels of one size each; small ones beside them take as long as the smallest."""
    sizes = {one.name: max(kernel.bytes for kernel in one.kernels) for one in timed}
    points, launch_s = list[tuple[float, float]](), 0.0
    for one in sorted(timed, key=lambda one: sizes[one.name]):
        large = [kernel for kernel in one.kernels if kernel.bytes == sizes[one.name]]
        seconds = (one.seconds - (len(one.kernels) - len(large)) * launch_s) / len(large)
        launch_s = launch_s or seconds
        points.append((float(sizes[one.name]), max(seconds, points[-1][1] if points else 0.0)))
    return Passes(tuple(points), 0.0, source)


def _elements(rates: ChipRates, timed: Sequence[Timed], source: str) -> Work | None:
    """Of kernels that read next to nothing."""
    if not timed:
        return None
    launch_s = rates.memory.points[0][1]
    per_s = [
        sum(kernel.elements for kernel in one.kernels) / (one.seconds - len(one.kernels) * launch_s) for one in timed
    ]
    found = Work(Does.PASS, "elements", launch_s, float(np.median(per_s)), 0.0, source)
    return replace(found, spread=_spread(replace(rates, elements=found), timed))


def _spread(rates: ChipRates, timed: Sequence[Timed]) -> float:
    """Nine of ten errors are no larger."""
    prices = Prices(rates, Links(rates, {}))
    errors = [abs(sum(prices.kernel(kernel).seconds for kernel in one.kernels) / one.seconds - 1) for one in timed]
    return float(np.quantile(errors, 0.9)) if errors else 0.0


def _rest(rates: ChipRates, one: Timed, kind: tuple[Does, str]) -> tuple[list[Kernel], float]:
    """Its kernels of a kind, and what they take in all."""
    prices = Prices(rates, Links(rates, {}))
    others = sum(prices.kernel(kernel).seconds for kernel in one.kernels if _kind(kernel) != kind)
    return [kernel for kernel in one.kernels if _kind(kernel) == kind], one.seconds - others


def _work(rates: ChipRates, does: Does, variant: str, timed: Sequence[Timed], source: str) -> Work:
    """Least squares of relative errors, of two constants that are not below zero."""
    of, least_s = "flops" if does in _FLOPS else "bytes", rates.memory.points[0][1]
    rows, seconds = list[tuple[float, float]](), list[float]()
    for one in timed:
        kernels, rest = _rest(rates, one, (does, variant))
        amount = sum(kernel.flops if of == "flops" else kernel.bytes for kernel in kernels)
        if rest > 0.2 * one.seconds:
            rows.append((len(kernels), amount))
            seconds.append(rest)
    relative, scale = np.array(rows) / np.array(seconds)[:, None], np.array([1.0, 1e-12])
    (alpha, per_tera), _ = nnls(relative * scale, np.ones(len(rows)))
    if len(rows) < 2 or not per_tera:
        alpha, per_tera = least_s, float(np.median((np.array(seconds) - least_s) / np.array(rows)[:, 1])) * 1e12
    work = Work(does, of, float(max(alpha, least_s)), float(1e12 / per_tera), 0.0, source, variant)
    return replace(work, spread=_spread(replace(rates, work=(*rates.work, work)), timed))


def _products(rates: ChipRates, timed: Sequence[Timed], units: int, source: str) -> Products:
    """The least sum of the logarithms' errors: a library finds for some shapes a way that no model of tiles has."""
    rows = list[tuple[Product, float, float]]()
    for one in timed:
        kernels, rest = _rest(rates, one, next(iter(one.kinds)))
        product = kernels[0].product
        if product is not None and rest > 0:
            rows.append((product, rates.memory.curve.seconds(kernels[0].bytes), rest / len(kernels)))
    best = max(product.flops / seconds for product, _, seconds in rows)

    def off(logs: np.ndarray) -> float:
        tiles = _tiles(logs, units)
        errors = [np.log(max(tiles.seconds(product), traffic) / seconds) for product, traffic, seconds in rows]
        pull = np.abs(logs[3:] - np.log([0.9, 0.8, 0.65])).sum() + max(0.0, logs[2] - np.log(1.15 * best))
        return float(np.abs(errors).sum() + PULL * pull * len(rows))

    starts = [
        np.log([1e-6, wave, best, narrow, 0.9 * narrow, 0.7 * narrow])
        for wave in (1e-6, 3e-6)
        for narrow in (0.95, 0.7)
    ]
    options = {"maxiter": 6000, "maxfev": 6000, "xatol": 1e-4, "fatol": 1e-5}
    results = [minimize(off, start, method="Nelder-Mead", options=options) for start in starts]
    tiles = _tiles(min(results, key=lambda result: float(result.fun)).x, units)
    found = Products(tiles.alpha_s, tiles.wave_s, tiles.per_s, units, tiles.tiles, 0.0, source)
    dtype = rows[0][0].dtype
    return replace(found, spread=_spread(replace(rates, products={**rates.products, dtype: found}), timed))


def _tiles(logs: np.ndarray, units: int) -> Tiles:
    alpha, wave, per_s, square, flat, small = map(float, np.exp(logs))
    rates = (1.0, 1.0, square, flat, flat, small)
    tiles = (Tile(m, n, min(1.0, rate)) for (m, n), rate in zip(TILES, rates, strict=True))
    return Tiles(alpha, wave, per_s, units, tuple(tiles))


def _host_copy(timed: Iterable[Timed], source: str) -> Work | None:
    """Of programs that are one copy each."""
    points = {
        (float(step.bytes), one.seconds)
        for one in timed
        if not one.kernels
        for step in one.steps
        if isinstance(step, Copy) and step.is_host
    }
    if len(points) < 2:
        return None
    sizes, seconds = np.array(sorted(points)).T
    (alpha, per_tera), _ = nnls(
        np.stack([np.ones(len(sizes)), sizes / 1e12], 1) / seconds[:, None], np.ones(len(sizes))
    )
    errors = np.abs((alpha + per_tera * sizes / 1e12) / seconds - 1)
    spread = float(np.quantile(errors, 0.9))
    return Work(Does.PASS, "bytes", float(alpha), float(1e12 / per_tera), spread, source)
