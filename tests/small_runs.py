"""Experiments on fake CPU devices at the sizes at which their numbers are compared."""

from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import jax

from lab.harness.decoder import three_steps
from lab.harness.experiment import Experiment
from lab.harness.result import Result
from lab.harness.run import run
from lab.meshes.targets import parse_target


def small_run(experiment: Experiment, style: str, target: str = "cpu:8", parameters: Any = None) -> Result:
    """As `run`, but the program whose numbers are compared is the one that is read: it is built and compiled once, since
    neither precision nor options of the compiler tell the two apart."""
    with mock.patch.object(three_steps, "FAST", None), jax.default_matmul_precision("highest"):
        return run(
            replace(experiment, build=cache(experiment.build)),
            target=parse_target(target),
            style=style,
            parameters=parameters or experiment.numeric_parameters,
        )
