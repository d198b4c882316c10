"""Steps that train otherwise than one device does: each ran as exact once, or could have."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh

from lab.attention.mask import Mask
from lab.core.codec import to_json
from lab.harness.registry import load
from lab.harness.result import Result
from lab.harness.run import run
from lab.meshes.targets import parse_target
from lab.programs.models import routers
from lab.programs.models.decoder import total_loss
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines import program as pipelines
from lab.programs.strategies import program, update
from lab.programs.strategies.program import TrainState, each, in_use
from lab.report.verdicts import result_text
from lab.settle import Verdict

pytestmark = pytest.mark.compiles


def result_of(name: str, style: str, **choices: Any) -> Result:
    experiment = load(name)
    parameters = experiment.numeric_parameters.choosing(**choices)
    return run(experiment, target=parse_target("cpu:8"), style=style, parameters=parameters)


def failure_of(name: str, style: str = "explicit", **choices: Any) -> str:
    result = result_of(name, style, **choices)
    assert result.verdict is Verdict.FAILED
    lead = "3 steps do not equal those of one device: "
    assert result.failure.startswith(lead) and "\n" not in result.failure
    return result.failure.removeprefix(lead)


def test_a_right_step_says_what_was_compared():
    result = result_of("ch20_zero1", "explicit")
    assert (result.verdict, result.failure) == (Verdict.EXACT, None)
    line = (
        "3 steps in float32: losses, gradient norms, parameters, moments and weights in use equal those of one device: "
    )
    assert line in result_text(result)
    assert to_json(result)["numerics"]["steps"] == 3
    assert to_json(result)["numerics"]["compared"][:2] == ["losses", "gradient norms"]


@pytest.mark.parametrize(("name", "style"), [("ch20_zero1", "declared"), ("ch20_zero2", "explicit")])
def test_weights_renewed_from_the_old_master_are_found(name, style, monkeypatch):
    right = program.update

    def stale(placed: Any, state: TrainState, gradients: Any, square: Any, renew: Callable[..., Any]) -> Any:
        new, norm = right(placed, state, gradients, square, renew)
        old = each(
            in_use(state.master, placed.shape),
            lambda w: renew(w.get_value(), w.dims) if placed.strategy.splits_further(w.dims) else w.get_value(),
        )
        return new._replace(weights=old), norm

    monkeypatch.setattr(program, "update", stale)
    assert failure_of(name, style).startswith("the loss of step 2 is ")


def test_a_loss_divided_by_the_tokens_of_a_micro_batch_is_found(monkeypatch):
    monkeypatch.setattr(
        program,
        "mean_loss",
        lambda state, tokens_BS, targets_BS, shape, *hooks, **named: (
            total_loss(state, tokens_BS, targets_BS, shape, *hooks, **named) / float(shape.micro_batch * shape.length)
        ),
    )
    assert failure_of("ch14_data_parallel", accumulation=2).startswith("the loss of step 1 is 9.")


def test_a_window_of_one_token_too_many_is_found(monkeypatch):
    right = Mask.seen
    monkeypatch.setattr(Mask, "seen", lambda mask, *at: right(replace(mask, window=mask.window + 1), *at))
    assert failure_of("ch17_window").startswith("the loss of step 1 is ")


def test_a_router_without_gradient_is_found(monkeypatch):
    right = routers.softmax_gates
    monkeypatch.setattr(routers, "softmax_gates", lambda logits: jax.lax.stop_gradient(right(logits)))
    failure = failure_of("ch18_expert_parallel")
    assert failure.startswith("the gradient norm of step 1 is ") and "moment of layers/router[" in failure


def test_a_routers_bias_that_moves_twice_as_far_is_found(monkeypatch):
    monkeypatch.setattr(update, "BIAS_STEP", 2e-3)
    assert "layers/bias[" in failure_of("ch18_fsdp_experts", "declared", router="sigmoid_bias")


@pytest.mark.parametrize("share", [lambda norm: 1.0, lambda norm: 1 / norm], ids=["never clipped", "always scaled"])
def test_gradients_that_are_clipped_otherwise_are_found(share, monkeypatch):
    """Of the second batch they have a norm above 1, of the others one below."""
    monkeypatch.setattr(program, "clipped", lambda gradients, norm: jax.tree.map(lambda g: g * share(norm), gradients))
    assert failure_of("ch20_zero3").startswith("the gradient norm of step ")


def test_a_pipeline_with_the_targets_of_another_micro_batch_is_found(monkeypatch):
    right = pipelines.split

    def shifted(shape: DecoderShape, tokens_BS: jax.Array, targets_BS: jax.Array) -> list[jax.Array]:
        tokens_mBS, targets_mBS = right(shape, tokens_BS, targets_BS)
        return [tokens_mBS, jnp.roll(targets_mBS, 1, axis=0)]

    monkeypatch.setattr(pipelines, "split", shifted)
    assert failure_of("ch16_pipeline").startswith("the loss of step 1 is ")


def test_a_step_that_keeps_its_old_state_is_found():
    experiment = load("ch14_data_parallel")

    def not_donating(style: str, shape: DecoderShape, mesh: Mesh) -> program.Program:
        step, arguments = experiment.build(style, shape, mesh)
        return jax.jit(lambda *given: step(*given)), arguments

    parameters = experiment.numeric_parameters
    result = run(
        replace(experiment, build=not_donating),
        target=parse_target("cpu:8"),
        style="explicit",
        parameters=parameters,
    )
    state = 12 * parameters.parameters + 4
    assert result.numerics is not None and result.verdict is Verdict.FAILED
    assert result.failure == (
        f"the state is not donated: the compiled step reuses 0 B of {state:,} B on each device for its results "
        "(input_output_alias); pass donate_argnums for the state to jax.jit"
    )
