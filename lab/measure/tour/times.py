"""Steps of the decoder, predicted from their compiled text and measured rates, and timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from msgspec import UNSET, UnsetType

from lab.compile.inspection import inspect_program
from lab.core.clock import timed
from lab.core.known import known
from lab.harness import registry
from lab.harness.decoder.step import random_tokens
from lab.harness.experiment import Experiment
from lab.measure.step_time import Rates, Taken, step_time
from lab.measure.tour.apart import TILED, Program, apart, compiled
from lab.measure.tour.profile import Spent, profiled
from lab.meshes.axes import PIPE, Axes
from lab.meshes.errors import UsageError, one_line
from lab.meshes.targets import Target
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines.program import PipelineShape
from lab.programs.pipelines.table import table_of

SMALL = DecoderShape(
    layers=4, batch=16, length=512, embed=1024, kv_heads=8, queries=2, head_dim=64, mlp=2816, vocab=30720
)
MIDDLE = DecoderShape(
    layers=6, batch=16, length=1024, embed=2048, kv_heads=8, queries=2, head_dim=128, mlp=5632, vocab=32000
)
LARGE = DecoderShape(
    layers=4, batch=8, length=2048, embed=4096, kv_heads=8, queries=4, head_dim=128, mlp=14336, vocab=32000
)
SIZES = {"small": SMALL, "middle": MIDDLE, "large": LARGE}
REMATS = ("none", "dots", "selective")
WARM_UPS, STEPS, RUNS, PROFILED = 3, 10, 3, 2
SECOND_MOMENT = jax.tree_util.GetAttrKey("nu")
"""As optax names Adam's."""
COMPILERS = max(8, (os.cpu_count() or 1) // 2)
"""Programs that are compiled at once for the card; they run one after the other."""


class Setting(NamedTuple):
    """One step to time."""

    layout: str
    style: str
    size: str
    remat: str

    def __str__(self) -> str:
        return f"{self.layout} {self.style} {self.size} remat={self.remat}"

    @property
    def shape(self) -> DecoderShape:
        """Of the kind that the layout's experiment takes."""
        experiment = registry.experiment(self.layout)
        return replace(
            experiment.parameters,
            **asdict(SIZES[self.size]) | dict(known(experiment.tour).settings) | {"remat": self.remat},
        )


@dataclass(frozen=True)
class TimedStep:
    """Seconds of a step: measured, the best of a few chains of steps, and predicted, in all and by term, from the text
    that ran.

    Attributes:
      mesh: of the layout, by axis.
      ahead: predicted from the text that is compiled ahead of time, without trying kernels on the card: in all as
        `total`, and by term; None where the card is in no table.
      spent: what the profiler saw.
    """

    setting: Setting
    measured: float
    predicted: float
    terms: dict[str, float]
    mesh: Mapping[str, int]
    ahead: Mapping[str, float] | None = None
    spent: Spent | None = None

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1

    @property
    def error_ahead(self) -> float | None:
        return None if self.ahead is None else self.ahead["total"] / self.measured - 1

    def json_object(self) -> TimedStepJson:
        return TimedStepJson(
            **self.setting._asdict(),
            measured_s=self.measured,
            predicted_s=self.predicted,
            error=self.error,
            terms_s=self.terms,
            mesh=self.mesh,
            predicted_ahead_of_time_s=None if self.ahead is None else self.ahead["total"],
            error_ahead_of_time=self.error_ahead,
            terms_ahead_of_time_s=self.ahead and {n: spent for n, spent in self.ahead.items() if n != "total"},
            profiled_s=self.spent and SpentJson(*self.spent),
        )


@dataclass(frozen=True)
class SpentJson:
    """Seconds of a step on one device with kernels at work, with a collective's kernel, with none but those, and of
    these with one."""

    kernels: float
    communication: float
    waiting: float
    exposed: float | UnsetType = UNSET


@dataclass(frozen=True)
class TimedStepJson:
    layout: str
    style: str
    size: str
    remat: str
    measured_s: float
    predicted_s: float
    error: float
    terms_s: Mapping[str, float]
    mesh: Mapping[str, int] | UnsetType = UNSET
    predicted_ahead_of_time_s: float | UnsetType | None = UNSET
    error_ahead_of_time: float | UnsetType | None = UNSET
    terms_ahead_of_time_s: Mapping[str, float] | UnsetType | None = UNSET
    profiled_s: SpentJson | UnsetType | None = UNSET


def settings(devices: int) -> tuple[Setting, ...]:
    """All sizes with full recomputation, other policies in the middle one; on one device, where layouts are all the
    same, all of both for one of them."""
    loaded = map(registry.load, registry.names())
    steps = {entry.name: entry.tour for entry in loaded if isinstance(entry, Experiment) and entry.tour}
    fit = {name: tour for name, tour in steps.items() if tour.min_devices <= devices}
    if devices == 1:
        return tuple(
            Setting(name, "explicit", size, remat) for name in fit for size in SIZES for remat in ("full", *REMATS)
        )
    sized = [
        Setting(name, "explicit", size, "full")
        for size in SIZES
        for name, tour in fit.items()
        if tour.every_size or size == "middle"
    ]
    varied = [name for name, tour in fit.items() if tour.every_policy]
    declared = [Setting(name, "declared", "middle", "full") for name in varied]
    policies = [Setting(name, "explicit", "middle", remat) for name in varied for remat in REMATS]
    return (*sized, *declared, *policies)


def timed_steps(
    target: Target,
    ahead: Target | None,
    chip_text: str | None,
    rates: Rates,
    watch: Callable[[Sequence[Setting]], Iterable[Setting]] = iter,
) -> tuple[list[TimedStep], list[str]]:
    """Compiles several at once; then, since compilers try kernels on the card, runs one after the other; and what
    failed, each with the reason."""
    wanted = settings(len(jax.devices()))
    axes = {setting: registry.experiment(setting.layout).axes(target) for setting in wanted}
    with ThreadPoolExecutor(COMPILERS) as here, apart((ahead,) if ahead else (), TILED) as elsewhere:
        programs = {setting: here.submit(_compiled, setting, axes[setting], target) for setting in wanted}
        predicted = (
            {s: elsewhere.submit(predicted_ahead, s, axes[s], ahead, chip_text, rates) for s in wanted} if ahead else {}
        )
        for setting in watch(wanted):
            waited: list[futures.Future[Any]] = [programs[setting], *([predicted[setting]] if ahead else [])]
            futures.wait(waited)
    found, failed, seconds = [], [], {}
    for setting, future in predicted.items():
        try:
            seconds[setting] = future.result()
        except (UsageError, jax.errors.JaxRuntimeError, BrokenProcessPool) as failure:
            failed.append(f"{setting} ahead of time: {one_line(failure)}")
    for setting in watch(wanted):
        try:
            found.append(_timed(setting, *programs.pop(setting).result(), target, rates, seconds.get(setting)))
        except (
            UsageError,
            jax.errors.JaxRuntimeError,
        ) as failure:  # A step too large for the card must not end the tour.
            failed.append(f"{setting}: {one_line(failure)}")
    return found, failed


def _compiled(setting: Setting, axes: Axes, target: Target, chip_text: str | None = None) -> Program:
    return compiled(setting.layout, setting.style, setting.shape, axes, target, chip_text)


def predicted_ahead(
    setting: Setting, axes: Axes, target: Target, chip_text: str | None, rates: Rates
) -> dict[str, float]:
    """Seconds in all, as `total`, and by term, from the text that XLA writes for cards that are not there."""
    program, _, mesh = _compiled(setting, axes, target, chip_text)
    return _predicted(setting, program, mesh, target, rates)


def _predicted(
    setting: Setting, program: jax.stages.Compiled, mesh: Mesh, target: Target, rates: Rates
) -> dict[str, float]:
    ledger = inspect_program(program, (), mesh, target, source=str(setting))
    return asdict(step_time(known(program.as_text()), ledger, rates, branches_by_trip(setting.shape, mesh.shape)))


FIRST, LAST = ("embedding", "dense"), ("head", "loss")
"""Scopes of what the first chunk begins with, and of what the last one ends with."""


def branches_by_trip(shape: Any, axes: Mapping[str, int]) -> list[set[Taken]]:
    """What the stages of a pipeline do at each tick; nothing of another step."""
    if PIPE not in axes or not isinstance(shape, PipelineShape):
        return []
    table = table_of(shape.order(axes[PIPE]))

    def taken(branch: int, stage: int, chunk: int) -> Taken:
        begins, ends = not stage and not chunk, (stage, chunk) == (axes[PIPE] - 1, shape.chunks - 1)
        return Taken(branch, (() if begins else FIRST) + (() if ends else LAST))

    rows = zip(table.branches.tolist(), table.rows.chunk.tolist(), strict=True)
    return [set(map(taken, branches, range(axes[PIPE]), chunks)) for branches, chunks in rows]


def _timed(
    setting: Setting,
    program: jax.stages.Compiled,
    args: Any,
    mesh: Mesh,
    target: Target,
    rates: Rates,
    ahead: Mapping[str, float] | None,
) -> TimedStep:
    terms = _predicted(setting, program, mesh, target, rates)
    total = terms.pop("total")
    seconds, state, batch = chains(program, args, setting.shape)
    spent = profiled(lambda: steps_from(program, state, batch, PROFILED), PROFILED)
    return TimedStep(setting, min(seconds), total, terms, dict(mesh.shape), ahead, spent)


def chains(
    program: jax.stages.Compiled, args: tuple[Any, ...], shape: DecoderShape
) -> tuple[list[float], Any, list[jax.Array]]:
    """Seconds of a step, of each chain of steps, each of which takes the state that the one before gave; and the state
    and batch that a next step takes."""
    state, found = _numbers(args[0]), []
    batch = [jax.device_put(tokens, arg.sharding) for tokens, arg in zip(random_tokens(shape), args[1:], strict=True)]
    for count in (WARM_UPS, *[STEPS] * RUNS):
        state, seconds = timed(partial(steps_from, program, state, batch, count))
        found.append(seconds / count)
    return found[1:], state, batch


def steps_from(compiled: jax.stages.Compiled, state: Any, batch: list[jax.Array], count: int) -> Any:
    for _ in range(count):
        state, _ = compiled(state, *batch)
    return jax.block_until_ready(state)


def _numbers(shapes: Any) -> Any:
    """Random numbers of a small scale, made where they lie: zeros would draw less power, as would numbers of one sign,
    and so run faster. Second moments have one."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)

    def entries(seed: int, path: Any, array: jax.ShapeDtypeStruct) -> jax.Array:
        if not jnp.issubdtype(array.dtype, np.floating):
            return jnp.zeros(array.shape, array.dtype)
        drawn = 0.02 * jax.random.normal(jax.random.key(seed), array.shape)
        return (jnp.abs(drawn) if SECOND_MOMENT in path else drawn).astype(array.dtype)

    make = jax.jit(
        lambda: [entries(seed, *leaf) for seed, leaf in enumerate(leaves)],
        out_shardings=[array.sharding for _, array in leaves],
    )
    return jax.tree.unflatten(tree, make())
