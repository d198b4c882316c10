"""Programs that run, give right numbers and ignore a part of their layout."""

from dataclasses import replace
from functools import partial

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from experiments.ch20_zero1 import EXPERIMENT
from lab.experiment import Experiment
from lab.ledger import Kind, Ledger, Transfer
from lab.models.shape import DecoderShape
from lab.report.verdicts import result_text
from lab.run import Result, run
from lab.settle import Context, Verdict, settle
from lab.settle.no_ops import Held, not_scattered, not_split
from lab.strategies import program
from lab.strategies.zero1 import ZERO1
from meshes import plugins
from meshes.layouts import Layout
from meshes.targets import parse_target

SMALL = DecoderShape().shrunk()
IGNORED = replace(ZERO1, state=Layout())


def _run(experiment: Experiment, style: str = "declared", target: str = "cpu:8") -> Result:
    return run(replace(experiment, numeric_parameters=SMALL), target=parse_target(target), style=style, parameters=SMALL)


def _with_ignored_flag(style: str, shape: DecoderShape, mesh: jax.sharding.Mesh) -> program.Program:
    """ZeRO-1 in name: every device keeps and updates all of the state."""
    return program.step(IGNORED, style, shape, mesh)


def _given_back_whole(style: str, shape: DecoderShape, mesh: jax.sharding.Mesh) -> program.Program:
    """A step that takes split state, and whose results are left to one replicated sharding."""
    step, arguments = program.step(ZERO1, style, shape, mesh)
    return jax.jit(step, out_shardings=NamedSharding(mesh, PartitionSpec())), arguments


@pytest.mark.parametrize("style", ["declared", "explicit"])
def test_zero1_whose_state_is_split_over_8_devices_is_no_no_op(style):
    assert _run(EXPERIMENT, style).failure is None


def test_a_zero1_flag_that_does_nothing_fails_with_that_sentence_although_its_numbers_are_right():
    result = _run(replace(EXPERIMENT, build=_with_ignored_flag, build_numeric=partial(program.gradients, ZERO1)))
    sentence = "master/embedding [96, 48], taken by a step, is declared split over data, but each device holds all of it; so it is with 53 more"
    assert (result.verdict, result.failure) == (Verdict.FAILED, sentence)
    assert result.numerics is not None
    assert result.to_json()["failure"] == sentence
    assert f"ch20_zero1 declared cpu:8: failed: {sentence}" in result_text(result)


def test_state_that_a_step_takes_split_and_gives_back_whole_is_found():
    result = _run(replace(EXPERIMENT, build=_given_back_whole))
    assert result.failure.startswith("master/embedding [96, 48], given back by a step, is declared split over data, but each device holds all of it")


def _scatter_and(*measured: Transfer, platform: str = "gpu") -> str | None:
    return not_scattered(settle(Ledger((SCATTER,)), Ledger(measured), Context(platform, "declared")))


SCATTER = Transfer(Kind.REDUCE_SCATTER, ("data",), 8, 2, "f32", 1000, phase="backward", scope="layers/mlp/down")
SUM = replace(SCATTER, kind=Kind.ALL_REDUCE)


@pytest.mark.parametrize("measured", [SUM, replace(SUM, payload_bytes=2000, executions=1, scope="")])
def test_gradients_summed_in_full_where_a_scatter_was_declared_are_found_by_layers_or_stacked(measured):
    assert _scatter_and(measured) == "the gradient of layers/mlp/down is declared scattered over data, but each device sums all of it"


@pytest.mark.parametrize("measured", [SCATTER, replace(SCATTER, executions=1), replace(SUM, payload_bytes=500), replace(SUM, axes=("tensor",))])
def test_other_differences_are_no_no_ops(measured):
    assert _scatter_and(measured) is None


def test_on_cpus_that_never_scatter_and_on_tpus_that_sometimes_do_not_nothing_is_blamed_on_the_layout():
    assert _scatter_and(SUM, platform="cpu") is None
    assert _scatter_and(SUM, platform="tpu") is None


@pytest.mark.parametrize(("held", "words"), [(32, "all of it"), (16, "16 of its 32 entries, not 4")])
def test_what_a_device_holds_beyond_its_part_is_told(held, words):
    array = Held("master/up", "taken", (4, 8), ("fsdp", "tensor"), 4, held)
    assert not_split([array]) == f"master/up [4, 8], taken by a step, is declared split over fsdp and tensor, but each device holds {words}"
    assert not_split([replace(array, held=4)]) is None


@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
def test_on_16_gpus_a_zero1_flag_that_does_nothing_is_seen_by_its_gradients_alone():
    result = _run(replace(EXPERIMENT, build=_with_ignored_flag, state=None), target="gpu:h100:2x8")
    assert result.verdict is Verdict.FAILED
    assert "declared scattered over data, but each device sums all of it" in result.failure
