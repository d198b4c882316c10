"""Whether a sharded program computes what one device does, at sizes that run in no time."""

from __future__ import annotations

from typing import Any

import chex
import jax
import numpy as np
from jax.sharding import Mesh

from lab.core.known import known
from lab.harness.decoder.three_steps import compare_steps
from lab.harness.experiment import Experiment
from lab.harness.result import Numerics, WrongResults
from lab.meshes.processes import fetched

TOLERANCE = 1e-5


def numeric_sizes(experiment: Experiment, parameters: Any) -> Any:
    """The sizes at which numbers are checked, with the choices in which `parameters` differ from the experiment's own.

    Raises:
      UsageError: these choices need other sizes.
    """
    own = experiment.parameters
    chosen = {
        name: getattr(parameters, name)
        for name in getattr(parameters, "CHOICES", ())
        if getattr(parameters, name) != getattr(own, name)
    }
    return experiment.numeric_parameters.choosing(**chosen) if chosen else experiment.numeric_parameters


def numerics(experiment: Experiment, style: str, mesh: Mesh, parameters: Any) -> Numerics:
    """Runs an experiment's program, of small parameters, on `mesh`, and what it is to come to on one device: of a
    training step, three of them.

    Raises:
      WrongResults: a result differs by more than its tolerance, or at all where everything is integers; it tells the
        parameters.
    """
    if experiment.step:
        return compare_steps(experiment, style, mesh, parameters)
    if experiment.compare:
        return experiment.compare(style, parameters, mesh)
    function, shapes = experiment.build(style, parameters, mesh)
    inputs, shardings = _random(shapes), jax.tree.map(lambda shape: shape.sharding, shapes)
    with jax.default_matmul_precision("highest"):
        expected = jax.device_get(jax.jit(known(experiment.reference)(parameters))(*inputs))
        found = fetched(function(*jax.device_put(inputs, shardings)))
    if not all(np.isfinite(x).all() for x in jax.tree.leaves(expected)):
        raise WrongResults("the results of one device are not finite, so that nothing can be compared with them")
    scaled = [jax.tree.map(lambda x, unit: x / np.abs(unit).max(), tree, expected) for tree in (found, expected)]
    tolerance = TOLERANCE if any(np.issubdtype(x.dtype, np.inexact) for x in jax.tree.leaves(expected)) else 0.0
    try:
        chex.assert_trees_all_close(*scaled, rtol=0, atol=tolerance)
    except AssertionError as difference:
        raise WrongResults(f"results differ from one device's at {parameters}: {difference}") from None
    return Numerics(
        float(max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, scaled), strict=True))), tolerance
    )


def _random(shapes: Any) -> Any:
    """Integers of two digits; or normal entries, divided by the root of the rows, so that a product with a matrix keeps
    its scale."""
    draw = np.random.default_rng(0)

    def entries(array: jax.ShapeDtypeStruct) -> np.ndarray:
        if np.issubdtype(array.dtype, np.integer):
            return draw.integers(-99, 100, array.shape, array.dtype)
        return (draw.standard_normal(array.shape) * array.shape[-2] ** -0.5).astype(array.dtype)

    return jax.tree.map(entries, shapes)
