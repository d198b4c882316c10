"""Programs that run, give right numbers and ignore a part of their layout."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from lab.core.codec import to_json
from lab.core.ledger import Kind, Ledger, Transfer
from lab.experiments.ch20_zero1 import EXPERIMENT
from lab.harness.experiment import Experiment
from lab.harness.registry import load
from lab.harness.result import Result
from lab.harness.run import ineffective_sharding
from lab.meshes import plugins
from lab.meshes.backends import make_mesh
from lab.meshes.layouts import Layout
from lab.meshes.targets import parse_target
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.fsdp_tensor import FSDP_TENSOR
from lab.programs.strategies.hybrid import HYBRID
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.zero1 import ZERO1, ZERO2
from lab.programs.strategies.zero3 import ZERO3
from lab.report.verdicts import result_text
from lab.settle import Context, Settlement, Verdict, settle
from lab.settle.ineffective_sharding import StateShard, not_scattered, state_not_split
from tests.small_runs import small_run

pytestmark = pytest.mark.compiles

SMALL = DecoderShape().shrunk()
IGNORED = replace(ZERO1, state=Layout())


def _run(experiment: Experiment, target: str = "cpu:8") -> Result:
    return small_run(replace(experiment, numeric_parameters=SMALL), "declared", target)


def _told(experiment: Experiment, build: Callable[..., program.Program]) -> str | None:
    """Of a program's state, as compiled for 8 CPU devices."""
    target = parse_target("cpu:8")
    mesh = make_mesh(target, experiment.axes(target))
    function, arguments = build("declared", SMALL, mesh)
    compiled = function.lower(*arguments).compile(compiler_options={"xla_backend_optimization_level": 0})
    return ineffective_sharding(experiment, SMALL, mesh, compiled, Settlement((), ()))


def _with_ignored_flag(style: str, shape: DecoderShape, mesh: jax.sharding.Mesh) -> program.Program:
    """ZeRO-1 in name: every device keeps and updates all of the state."""
    return program.step(IGNORED, style, shape, mesh)


def _given_back_whole(style: str, shape: DecoderShape, mesh: jax.sharding.Mesh) -> program.Program:
    """A step that takes split state, and whose results are left to one replicated sharding."""
    step, arguments = program.step(ZERO1, style, shape, mesh)
    return jax.jit(step, out_shardings=NamedSharding(mesh, PartitionSpec())), arguments


def test_a_zero1_flag_that_does_nothing_fails_with_that_sentence_although_its_numbers_are_right():
    result = _run(replace(EXPERIMENT, build=_with_ignored_flag))
    sentence = (
        "master/embedding [96, 48], an input of a step, is declared sharded over data, but each device holds all of it; "
        "the same holds for 53 more"
    )
    assert (result.verdict, result.failure) == (Verdict.FAILED, sentence)
    assert result.numerics is not None
    assert to_json(result)["failure"] == sentence
    assert f"ch20_zero1 declared cpu:8: failed: {sentence}" in result_text(result)


TENSOR = DATA_PARALLEL | TENSOR_PARALLEL
NO_HEADS = Layout.of(mlp="tensor", vocab="tensor")
NO_FSDP = TENSOR_PARALLEL.weights


@pytest.mark.parametrize(
    ("name", "ignored", "array", "axes", "held", "others"),
    [
        ("ch20_zero2", replace(ZERO2, state=Layout()), "embedding [96, 48]", "data", "all of it", 53),
        ("ch20_zero3", replace(ZERO3, weights=Layout()), "embedding [96, 48]", "fsdp", "all of it", 53),
        ("ch24_hybrid", replace(HYBRID, weights=Layout()), "embedding [96, 48]", "fsdp", "all of it", 53),
        ("ch15_tensor_parallel", replace(TENSOR, weights=Layout()), "embedding [96, 48]", "tensor", "all of it", 53),
        (
            "ch15_tensor_parallel",
            replace(TENSOR, weights=NO_HEADS),
            "layers/key [2, 48, 8, 4]",
            "tensor",
            "all of it",
            23,
        ),
        (
            "ch24_fsdp_tensor_parallel",
            replace(FSDP_TENSOR, weights=NO_FSDP),
            "embedding [96, 48]",
            "tensor and fsdp",
            "1,152 of its 4,608 entries, not 576",
            53,
        ),
    ],
    ids=["zero2", "zero3", "hybrid", "tensor", "heads", "fsdp x tensor"],
)
def test_state_of_which_a_step_splits_less_than_was_declared_is_found(name, ignored, array, axes, held, others):
    sentence = (
        f"master/{array}, an input of a step, is declared sharded over {axes}, but each device holds {held}; the same "
        f"holds for {others} more"
    )
    assert _told(load(name), partial(program.step, ignored)) == sentence


def test_state_that_a_step_takes_split_and_gives_back_whole_is_found():
    sentence = _told(EXPERIMENT, _given_back_whole)
    assert sentence.startswith(
        "master/embedding [96, 48], an output of a step, is declared sharded over data, but each device holds all of it"
    )


def _scatter_and(*measured: Transfer, platform: str = "gpu") -> str | None:
    return not_scattered(settle(Ledger((SCATTER,)), Ledger(measured), Context(platform, "declared")))


SCATTER = Transfer(Kind.REDUCE_SCATTER, ("data",), 8, 2, "f32", 1000, phase="backward", scope="layers/mlp/down")
SUM = replace(SCATTER, kind=Kind.ALL_REDUCE)


@pytest.mark.parametrize("measured", [SUM, replace(SUM, payload_bytes=2000, executions=1, scope="")])
def test_gradients_summed_in_full_where_a_scatter_was_declared_are_found_by_layers_or_stacked(measured):
    assert (
        _scatter_and(measured)
        == "the gradient of layers/mlp/down is declared reduce-scattered over data, but each device all-reduces it in full"
    )


@pytest.mark.parametrize(
    "measured",
    [SCATTER, replace(SCATTER, executions=1), replace(SUM, payload_bytes=500), replace(SUM, axes=("tensor",))],
)
def test_other_differences_are_no_no_ops(measured):
    assert _scatter_and(measured) is None


def test_on_cpus_that_never_scatter_and_on_tpus_that_sometimes_do_not_nothing_is_blamed_on_the_layout():
    assert _scatter_and(SUM, platform="cpu") is None
    assert _scatter_and(SUM, platform="tpu") is None


@pytest.mark.parametrize(("held", "words"), [(32, "all of it"), (16, "16 of its 32 entries, not 4")])
def test_what_a_device_holds_beyond_its_part_is_told(held, words):
    array = StateShard("master/up", "taken", (4, 8), ("fsdp", "tensor"), 4, held)
    assert (
        state_not_split([array])
        == f"master/up [4, 8], an input of a step, is declared sharded over fsdp and tensor, but each device holds {words}"
    )
    assert state_not_split([replace(array, held=4)]) is None


@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
def test_on_16_gpus_a_zero1_flag_that_does_nothing_is_seen_by_its_gradients_alone():
    result = _run(replace(EXPERIMENT, build=_with_ignored_flag, state=None), target="gpu:h100:2x8")
    assert result.verdict is Verdict.FAILED
    assert "declared reduce-scattered over data, but each device all-reduces it in full" in result.failure
