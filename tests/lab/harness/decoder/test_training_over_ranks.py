"""Trainings whose stages, sequences or experts lie on several ranks, and what takes a curve away from one device's."""

from dataclasses import replace

import jax
import pytest

from lab.experiments.ch16_training import EXPERIMENT as PIPELINES
from lab.experiments.ch17_training import EXPERIMENT as SEQUENCES
from lab.experiments.ch18_dropless_training import EXPERIMENT as DROPLESS
from lab.experiments.ch18_training import EXPERIMENT as EXPERTS
from lab.experiments.ch35_training import EXPERIMENT as FEW_NODES
from lab.harness import suite
from lab.harness.decoder.training import LayoutUnderTraining, Training, TrainingResult, train
from lab.harness.experiment import as_they_come
from lab.meshes.targets import parse_target
from lab.programs.strategies.update import is_weight
from lab.settle import Verdict
from tests.long_tests import long

pytestmark = pytest.mark.compiles

TINY = {"embed": 32, "head_dim": 4, "kv_heads": 4, "mlp": 48, "steps": 4}


def named(of: Training, *names: str) -> list[LayoutUnderTraining]:
    layouts = {layout.name: layout for layout in of.layouts}
    return [layouts[name] for name in names]


def trained(of: Training, target: str, right: list[LayoutUnderTraining], *wrong: LayoutUnderTraining) -> TrainingResult:
    """All in the explicit style; right ones have no failure and the ledger of theory, wrong ones leave the curve at the
    first step."""
    where = parse_target(target)
    found = train(of, where, suite.runs([*right, *wrong], [where], ["explicit"]), replace(of.parameters, **TINY))
    failures = [curve.failure and curve.failure.partition(":")[0] for curve in found.curves]
    assert failures == [None] * len(right) + ["losses diverge from one device's at step 0"] * len(wrong)
    assert {curve.verdict for curve in found.curves} == {Verdict.EXACT}
    assert found.claims[0].verdict == ("refuted" if wrong else "confirmed")
    return found


def swapped(layout: LayoutUnderTraining):
    """Chunks of one stage on the other's place."""

    def start(shape, axes, weights):
        state = layout.step.start(shape, axes, weights)
        return jax.tree.map(
            lambda w: w.replace(w.get_value().swapaxes(0, 1)) if is_weight(w) and "stage" in w.dims else w,
            state,
            is_leaf=is_weight,
        )

    return replace(layout, step=replace(layout.step, start=start))


def test_four_stages_train_as_one_device_does_with_split_backwards():
    (curve,) = trained(PIPELINES, "cpu:8", named(PIPELINES, "ZB-H1")).curves
    assert curve.mesh["pipe"] == 4


def test_two_stages_train_as_one_device_does_and_chunks_on_the_wrong_stages_do_not():
    (interleaved,) = named(PIPELINES, "interleaved 1F1B")
    trained(PIPELINES, "cpu:2", named(PIPELINES, "interleaved 1F1B"), swapped(interleaved))


def test_sequences_on_two_ranks_train_as_on_one_and_tokens_that_do_not_come_in_zigzag_order_do_not():
    (zigzag,) = named(SEQUENCES, "ring in zigzag order")
    found = trained(
        SEQUENCES,
        "cpu:2",
        [zigzag],
        replace(zigzag, step=replace(zigzag.step, order=as_they_come)),
    )
    assert {tuple(curve.mesh.items()) for curve in found.curves} == {(("data", 1), ("context", 2))}


@long
def test_experts_on_ranks_drop_what_one_device_drops_and_slots_for_all_drop_less():
    (experts,) = named(EXPERTS, "experts")
    without_drops = replace(experts, sized=lambda shape: replace(shape, capacity_factor=shape.experts / shape.top_k))
    trained(EXPERTS, "cpu:8", named(EXPERTS, "experts over two levels"), without_drops)


@long
def test_experts_without_slots_train_as_on_one_device():
    found = trained(DROPLESS, "cpu:2", named(DROPLESS, "no slots"))
    assert "layers/mlp/visit" in {term.predicted.scope for term in found.curves[0].settlement.terms}


def test_experts_on_two_of_four_nodes_train_as_on_one_device_and_with_twice_the_slots_they_do_not():
    (once,) = named(FEW_NODES, "a copy a node")
    found = trained(FEW_NODES, "cpu:8", [once], replace(once, sized=lambda shape: replace(shape, capacity_factor=2.0)))
    assert found.curves[0].mesh == {"data": 2, "expert": 4}
