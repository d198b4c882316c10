"""Claims decided by hand-made ledgers: what theory asks for confirms them, and any other refutes them."""

from dataclasses import replace

import pytest

from lab.experiment import Claim, load
from lab.ledger import Kind, Ledger, Memory, Transfer
from meshes.axes import Axes

AXES = {
    "ch14_data_parallel": Axes.of({"data": 8}),
    "ch15_tensor_parallel": Axes.of({"data": 2, "tensor": 4}),
    "ch20_zero3": Axes.of({"fsdp": 8}),
    "ch24_fsdp_tensor_parallel": Axes.of({"fsdp": 2, "tensor": 4}),
}


def _ideal(name: str) -> Ledger:
    experiment = load(name)
    return experiment.predict(experiment.numeric_parameters, AXES[name])


def _claims(name: str, measured: Ledger) -> dict[str, Claim]:
    experiment = load(name)
    return {claim.id: claim for claim in experiment.claims(experiment.numeric_parameters, AXES[name], measured)}


def _verdicts(name: str, measured: Ledger) -> dict[str, str]:
    return {id: str(claim.verdict) for id, claim in _claims(name, measured).items()}


def _changed(ledger: Ledger, which, **change) -> Ledger:
    return replace(ledger, transfers=tuple(replace(t, **change) if which(t) else t for t in ledger.transfers))


def _sums(t: Transfer) -> bool:
    return t.phase == "backward" and t.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER) and t.axes != ("tensor",)


@pytest.mark.parametrize("name", ["ch14_data_parallel", "ch15_tensor_parallel"])
def test_what_theory_asks_for_confirms_every_claim(name):
    assert set(_verdicts(name, _ideal(name)).values()) == {"confirmed"}


def test_gradients_sent_twice_refute_the_volume_of_data_parallelism():
    twice = _changed(_ideal("ch14_data_parallel"), _sums, executions=6)
    assert _verdicts("ch14_data_parallel", twice) == {
        "ch14.dp_allreduce_volume": "refuted",
        "ch14.partition_theorem": "refuted",
        "ch14.sync_invariant": "confirmed",
    }


def test_a_gathered_weight_refutes_that_replicas_stay_equal_by_themselves():
    ideal = _ideal("ch14_data_parallel")
    gather = replace(ideal.transfers[-1], kind=Kind.ALL_GATHER, phase="forward")
    assert _verdicts("ch14_data_parallel", replace(ideal, transfers=(*ideal.transfers, gather)))["ch14.sync_invariant"] == "refuted"


def test_a_third_sum_a_layer_refutes_the_count_and_the_volume_of_tensor_parallelism():
    more = _changed(_ideal("ch15_tensor_parallel"), lambda t: t.axes == ("tensor",) and t.phase == "backward", executions=6)
    verdicts = _verdicts("ch15_tensor_parallel", more)
    assert (verdicts["ch15.ar_count"], verdicts["ch15.tp_allreduce_volume"]) == ("refuted", "refuted")


def test_a_backward_sum_of_the_row_parallel_matrix_refutes_the_table():
    moved = _changed(_ideal("ch15_tensor_parallel"), lambda t: t.axes == ("tensor",), scope="layers/mlp/down")
    assert _verdicts("ch15_tensor_parallel", moved)["ch15.tp_backward_table"] == "refuted"


def test_two_gathers_and_a_scatter_are_one_and_a_half_times_data_parallelism():
    claim = _claims("ch20_zero3", _ideal("ch20_zero3"))["ch20.comm"]
    assert claim.verdict == "confirmed" and "1.50 times what data parallelism does, each gathered 2 times" in claim.evidence


def test_one_gather_refutes_the_volume_of_zero3():
    once = _changed(_ideal("ch20_zero3"), lambda t: t.kind is Kind.ALL_GATHER and t.phase == "backward", executions=0)
    claim = _claims("ch20_zero3", once)["ch20.comm"]
    assert claim.verdict == "refuted" and "1.00 times what data parallelism does, each gathered 1 times" in claim.evidence


def test_gradients_summed_by_all_reduce_leave_zero3_undecided_at_two_times():
    claim = _claims("ch20_zero3", _changed(_ideal("ch20_zero3"), _sums, kind=Kind.ALL_REDUCE))["ch20.comm"]
    assert claim.verdict == "calculated" and "2.00 times what" in claim.evidence and claim.evidence.endswith("it is 1.50 times")


@pytest.mark.parametrize(("extra", "verdict"), [(0, "confirmed"), (4, "refuted")])
def test_arguments_hold_an_eighth_of_the_weights(extra, verdict):
    # 3 layers of 2 matrices of 48 x 64 f32 over 8 devices, and 4 of 32 tokens, twice.
    memory = Memory(arguments=3 * 2 * 48 * 64 * 4 // 8 + 2 * 4 * 48 * 4 + extra, outputs=0, temporaries=0, aliased=0, peak=None)
    assert _verdicts("ch20_zero3", replace(_ideal("ch20_zero3"), memory=memory))["ch20.stage_memory"] == verdict


def test_axes_on_their_links_confirm_the_order_and_swapped_links_refute_it():
    ideal = _ideal("ch24_fsdp_tensor_parallel")
    for inner, outer, verdict in (("host", "network", "confirmed"), ("network", "host", "refuted")):
        placed = _changed(_changed(ideal, lambda t: t.axes == ("tensor",), link=inner), lambda t: t.axes == ("fsdp",), link=outer)
        verdicts = _verdicts("ch24_fsdp_tensor_parallel", placed)
        assert (verdicts["ch24.order_3d"], verdicts["ch24.comm_per_axis"]) == (verdict, "confirmed")


def test_activations_that_grow_with_the_ranks_refute_that_they_do_not():
    grown = _changed(_ideal("ch24_fsdp_tensor_parallel"), lambda t: t.axes == ("tensor",), payload_bytes=4 * 16 * 48 * 4)
    verdicts = _verdicts("ch24_fsdp_tensor_parallel", grown)
    assert (verdicts["ch24.tp_scaling_claim"], verdicts["ch24.comm_per_axis"]) == ("refuted", "refuted")


@pytest.mark.parametrize("name", AXES)
def test_one_device_decides_nothing(name):
    experiment, alone = load(name), Axes(AXES[name].names, (1,) * len(AXES[name].names))
    assert experiment.claims(experiment.numeric_parameters, alone, experiment.predict(experiment.numeric_parameters, alone)) == ()
