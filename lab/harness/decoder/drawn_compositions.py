"""Compositions that nobody looked at before: which axes a mesh has, in which order, and what a step does along each,
drawn by a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from random import Random
from typing import Any

from lab.harness.decoder.composed import ComposedShape
from lab.harness.experiment import Experiment, Run
from lab.meshes.attached import device_count
from lab.meshes.axes import AXIS_ORDER, CONTEXT, DATA, EXPERT, PIPE, TENSOR, Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.composed.configuration import OVER_CONTEXT, ZERO_STAGES
from lab.programs.models.shape import DISPATCHES, REMATS

TARGETS = ("cpu:8", "gpu:h100:2x8", "gpu:h100:4x8")
SCHEDULES = ("gpipe", "1f1b", "eager_1f1b", "zb_h1", "interleaved")
TRIES = 1000


def drawn_compositions(experiments: Sequence[Experiment], count: int, seed: int = 0) -> list[Run[Experiment]]:
    """So many runs of experiments on the step of a `Configuration`; what is refused is drawn again.

    Raises:
      RuntimeError: nearly all that is drawn is refused.
    """
    draw, runs = Random(seed), list[Run[Experiment]]()
    if not experiments:
        return runs
    for _ in range(TRIES):
        if len(runs) == count:
            return runs
        experiment, target = draw.choice(experiments), parse_target(draw.choice(TARGETS))
        axes = _axes(draw, device_count(target))
        try:
            shape = replace(_shape(draw, axes), dtype="f32" if target.platform == "cpu" else "bf16")
            experiment.predict(shape, axes)
        except UsageError:
            continue
        runs.append(Run(replace(experiment, parameters=shape), target, "explicit", axes))
    raise RuntimeError(f"of {TRIES} compositions {len(runs)} run; expected {count}")


def _axes(draw: Random, devices: int) -> Axes:
    """Two or more of them, in any order."""
    names = draw.sample(AXIS_ORDER, len(AXIS_ORDER))[: draw.randint(2, 5)]
    sizes = dict.fromkeys(names, 1)
    while prod(sizes.values()) < devices:
        sizes[draw.choice(names)] *= 2
    return Axes.of({name: size for name, size in sizes.items() if size > 1})


def _choices(draw: Random, axes: Axes) -> dict[str, Any]:
    """All that is no size."""
    found: dict[str, Any] = {
        "zero": draw.choice(ZERO_STAGES) if DATA in axes.names else 0,
        "attention": draw.choice(list(OVER_CONTEXT)),
        "sequence": draw.random() < 0.7,
        "remat": draw.choice(REMATS),
        "tied": draw.random() < 0.3,
        "accumulation": draw.choice((1, 2, 4)),
        "layers": draw.randint(2, 4),
        # Where sequences are sharded it is refused.
        "mtp": int(CONTEXT not in axes.names and draw.random() < 0.3),
    }
    if EXPERT in axes.names:
        dense = draw.choice((0, 2))
        found |= {
            "layers": dense + found["layers"],
            "dense_layers": dense,
            "experts": axes[EXPERT] * draw.choice((1, 2)) * 2,
            "shared": draw.randrange(2),
            "router": draw.choice(("softmax", "sigmoid_bias")),
            "dispatch": draw.choice(DISPATCHES[:2]),
        }
    return found | (
        _of_pipeline(draw, axes[PIPE], found.get("dense_layers", 0), found["mtp"]) if PIPE in axes.names else {}
    )


def _of_pipeline(draw: Random, stages: int, dense_layers: int, mtp: int) -> dict[str, Any]:
    """Dense layers have to be in the first chunk, at the small sizes as well at which numbers are checked: stages of
    their own text have as many layers there."""
    schedule = draw.choice(SCHEDULES)
    chunks = 2 if schedule == "interleaved" else 1
    layers = [draw.randint(1, 3) for _ in range(stages * chunks)]
    is_even = draw.random() < 0.5
    layers = [max(2, *layers)] * len(layers) if is_even else [2, *layers[1:]]
    return {
        "schedule": schedule,
        "chunks": chunks,
        "accumulation": stages * draw.choice((1, 2)),
        "layers": sum(layers),
        "stage_layers": ""
        if is_even and not dense_layers
        else f"E{'|'.join('t' * count for count in layers)}{'m' * mtp}L",
    }


def _shape(draw: Random, axes: Axes) -> ComposedShape:
    """Every dim splits over what a layout may split it over."""
    choices = _choices(draw, axes)
    tensor, context = (axes.shape.get(name, 1) for name in (TENSOR, CONTEXT))
    ranks = axes.size // axes.shape.get(PIPE, 1) // tensor
    sizes = {
        "batch": ranks * choices["accumulation"] * draw.randint(1, 2),
        "length": 256 * context * tensor * draw.randint(1, 2),
        "embed": 64 * ranks * draw.randint(2, 6),
        "kv_heads": tensor * context * draw.randint(1, 2),
        "queries": draw.randint(1, 2),
        "head_dim": 32 * draw.randint(1, 4),
        "mlp": 64 * tensor * ranks * draw.randint(3, 9),
        "vocab": 64 * tensor * ranks * draw.randint(5, 11),
    }
    return ComposedShape(**sizes | choices)
