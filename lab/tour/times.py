"""Steps of the decoder, predicted from their compiled text and measured rates, and timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lab import experiment
from lab.clock import timed
from lab.decoder_experiments.step import random_tokens
from lab.inspection import inspect_program
from lab.models.shape import DecoderShape
from lab.step_time import Rates, step_time
from meshes.targets import Target, make_mesh

SMALL = DecoderShape(layers=4, batch=16, length=512, embed=1024, kv_heads=8, queries=2, head_dim=64, mlp=2816, vocab=30720)
MIDDLE = DecoderShape(layers=6, batch=16, length=1024, embed=2048, kv_heads=8, queries=2, head_dim=128, mlp=5632, vocab=32000)
LARGE = DecoderShape(layers=4, batch=8, length=2048, embed=4096, kv_heads=8, queries=4, head_dim=128, mlp=14336, vocab=32000)
SIZES = {"small": SMALL, "middle": MIDDLE, "large": LARGE}
LAYOUTS = ("ch14_data_parallel", "ch20_zero1", "ch20_zero3", "ch15_tensor_parallel", "ch17_sequence_parallel")
OF_PARTS = ("ch16_pipeline", "ch17_ring_attention", "ch17_zigzag", "ch17_ulysses", "ch18_expert_parallel")
"""Layouts that divide layers, sequences or experts."""
ON_TWO_AXES = ("ch24_fsdp_tensor_parallel",)
ALSO = {"ch16_pipeline": {"accumulation": 8}, "ch18_expert_parallel": {"experts": 8, "mlp": 1408}}
"""What a layout needs besides a size."""
REMATS = ("none", "dots", "selective")
WARM_UPS, STEPS, RUNS = 3, 10, 3
COMPILERS = max(8, (os.cpu_count() or 1) // 2)
"""Programs that are compiled at once; they run one after the other."""


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
        sizes = asdict(SIZES[self.size]) | ALSO.get(self.layout, {}) | {"remat": self.remat}
        return replace(experiment.load(self.layout).parameters, **sizes)


@dataclass(frozen=True)
class TimedStep:
    """Seconds of a step: measured, the best of a few chains of steps, and predicted, in all and by term."""

    setting: Setting
    measured: float
    predicted: float
    terms: dict[str, float]

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1

    def to_json(self) -> dict[str, Any]:
        return self.setting._asdict() | {"measured_s": self.measured, "predicted_s": self.predicted, "error": self.error, "terms_s": self.terms}


def settings(devices: int) -> tuple[Setting, ...]:
    """All sizes with full recomputation, other policies in the middle one; on one device, where layouts are all the same, all of both."""
    if devices == 1:
        return tuple(Setting(LAYOUTS[0], "explicit", size, remat) for size in SIZES for remat in ("full", *REMATS))
    sized = [Setting(layout, "explicit", size, "full") for size in SIZES for layout in LAYOUTS]
    some = ("ch14_data_parallel", "ch20_zero3", "ch15_tensor_parallel")
    declared = [Setting(layout, "declared", "middle", "full") for layout in some]
    policies = [Setting(layout, "explicit", "middle", remat) for layout in some for remat in REMATS]
    more = [Setting(layout, "explicit", "middle", "full") for layout in (*OF_PARTS, *(ON_TWO_AXES if devices > 3 else ()))]
    return (*sized, *declared, *policies, *more)


def timed_steps(target: Target, rates: Rates, watch: Callable[[Sequence[Setting]], Iterable[Setting]] = iter) -> list[TimedStep]:
    """Compiles several at once; then, since compilers try kernels on the card, runs one after the other."""
    wanted = settings(len(jax.devices()))
    with ThreadPoolExecutor(COMPILERS) as pool:
        compiling = {setting: pool.submit(_compiled, setting, target) for setting in wanted}
        programs = {setting: compiling[setting].result() for setting in watch(wanted)}
    return [_timed(setting, *programs.pop(setting), target, rates) for setting in watch(wanted)]


def _compiled(setting: Setting, target: Target) -> tuple[jax.stages.Compiled, tuple[Any, ...]]:
    step = experiment.load(setting.layout)
    function, args = step.build(setting.style, setting.shape, make_mesh(target, step.axes(target)))
    return function.lower(*args).compile(), args


def _timed(setting: Setting, compiled: jax.stages.Compiled, args: tuple[Any, ...], target: Target, rates: Rates) -> TimedStep:
    mesh = make_mesh(target, experiment.load(setting.layout).axes(target))
    ledger = inspect_program(compiled, (), mesh, target, source=str(setting))
    terms = asdict(step_time(compiled.as_text(), ledger, rates))
    return TimedStep(setting, min(_chains(compiled, args, setting.shape)), terms.pop("total"), terms)


def _chains(compiled: jax.stages.Compiled, args: tuple[Any, ...], shape: DecoderShape) -> Iterator[float]:
    """Seconds of a step, of each chain of steps; every step takes the state that the one before gave."""
    state = _numbers(args[0])
    batch = [jax.device_put(tokens, arg.sharding) for tokens, arg in zip(random_tokens(shape), args[1:], strict=True)]
    for count in (WARM_UPS, *[STEPS] * RUNS):
        state, seconds = timed(lambda state=state, count=count: _steps(compiled, state, batch, count))
        if count == STEPS:
            yield seconds / STEPS


def _steps(compiled: jax.stages.Compiled, state: Any, batch: list[jax.Array], count: int) -> Any:
    for _ in range(count):
        state, _ = compiled(state, *batch)
    return jax.block_until_ready(state)


def _numbers(shapes: Any) -> Any:
    """Random numbers of a small scale, made where they lie: zeros would draw less power, and so run faster."""
    leaves, tree = jax.tree.flatten(shapes)

    def entries(seed: int, array: jax.ShapeDtypeStruct) -> jax.Array:
        if not jnp.issubdtype(array.dtype, np.floating):
            return jnp.zeros(array.shape, array.dtype)
        return (0.02 * jnp.abs(jax.random.normal(jax.random.key(seed), array.shape))).astype(array.dtype)

    make = jax.jit(lambda: [entries(seed, array) for seed, array in enumerate(leaves)], out_shardings=[array.sharding for array in leaves])
    return jax.tree.unflatten(tree, make())
