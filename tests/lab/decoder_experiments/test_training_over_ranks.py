"""Trainings whose stages, sequences or experts lie on several ranks, and what takes a curve away from one device's."""

from dataclasses import replace

import jax

from experiments.ch16_training import EXPERIMENT as PIPELINES
from experiments.ch17_training import EXPERIMENT as SEQUENCES
from experiments.ch18_training import EXPERIMENT as EXPERTS
from lab import suite
from lab.decoder_experiments.training import Trained, Trainee, Training, as_they_come, train
from lab.settle import Verdict
from lab.strategies.update import is_weight
from meshes.targets import parse_target

TINY = {"embed": 32, "head_dim": 4, "kv_heads": 4, "mlp": 48, "steps": 4}


def trained(of: Training, target: str, *names: str, **how) -> Trained:
    where, layouts = parse_target(target), [replace(layout, **how) for layout in of.layouts if layout.name in names]
    assert len(layouts) == len(names)
    return train(of, where, suite.runs(layouts, [where], ["explicit"]), replace(of.parameters, **TINY))


def swapped(layout: Trainee):
    """Chunks of one stage on the other's place."""

    def start(shape, axes):
        state = layout.start(shape, axes)
        return jax.tree.map(lambda w: w.replace(w.get_value().swapaxes(0, 1)) if is_weight(w) and "stage" in w.dims else w, state, is_leaf=is_weight)

    return start


def test_three_schedules_and_chunks_train_as_one_device_does():
    found = trained(PIPELINES, "cpu:8", "1F1B", "ZB-H1", "interleaved 1F1B")
    assert (found.failures, found.verdict, found.claims[0].verdict) == ((), Verdict.EXACT, "confirmed")
    assert [curve.mesh["pipe"] for curve in found.curves] == [4, 4, 2]


def test_chunks_on_the_wrong_stages_leave_the_curve_at_the_first_step():
    (layout,) = [layout for layout in PIPELINES.layouts if layout.name == "interleaved 1F1B"]
    (curve,) = trained(PIPELINES, "cpu:2", layout.name, start=swapped(layout)).curves
    assert "at step 0" in curve.failure and curve.verdict is Verdict.EXACT


def test_sequences_on_two_ranks_train_as_on_one():
    found = trained(SEQUENCES, "cpu:2", "ring", "ring in zigzag order", "gathered keys", "Ulysses")
    assert (found.failures, found.verdict, found.claims[0].verdict) == ((), Verdict.EXACT, "confirmed")
    assert {tuple(curve.mesh.items()) for curve in found.curves} == {(("data", 1), ("context", 2))}


def test_tokens_that_do_not_come_in_zigzag_order_leave_the_curve_at_the_first_step():
    found = trained(SEQUENCES, "cpu:8", "ring in zigzag order", order=as_they_come)
    assert "at step 0" in found.curves[0].failure and found.claims[0].verdict == "refuted"


def test_experts_on_ranks_drop_what_one_device_drops():
    found = trained(EXPERTS, "cpu:8", "experts", "experts over two levels")
    assert (found.failures, found.verdict, found.claims[0].verdict) == ((), Verdict.EXACT, "confirmed")


def test_slots_for_all_tokens_leave_the_curve_of_one_device_that_drops():
    found = trained(EXPERTS, "cpu:2", "experts", sized=lambda shape: replace(shape, capacity_factor=shape.experts / shape.top_k))
    assert "at step 0" in found.curves[0].failure
