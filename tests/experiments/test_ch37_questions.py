"""The final exercises: numbers that the chapter prints and the catalogue recomputed, and programs where they decide."""

from dataclasses import replace
from math import exp, isfinite

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import lab
from lab.core.codec import to_json
from lab.core.ledger import Totals
from lab.core.room import Room
from lab.experiments import (
    ch37_batch,
    ch37_capacity,
    ch37_case_studies,
    ch37_checkpoint,
    ch37_chip,
    ch37_local_attention,
    ch37_placement,
    ch37_scale_up,
)
from lab.harness.question import Question, answer
from lab.harness.registry import load, names
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.composed.step import predict
from lab.programs.models.shape import DecoderShape

QUESTIONS = [name for name in names() if name.startswith("ch37_")]


def values(module, **settings) -> dict[str, float]:
    return {
        row.what: row.value
        for row in answer(module.EXPERIMENT, {name: str(value) for name, value in settings.items()}).rows
    }


@pytest.mark.parametrize("name", QUESTIONS)
def test_each_exercise_is_answered_in_numbers_and_surprises_nobody(name):
    question = load(name)
    found = answer(question, {})
    assert isinstance(question, Question) and found.is_fine and found.claims
    assert all(isinstance(row.value, str) or isfinite(row.value) for row in found.rows)
    assert to_json(found)["verdict"] == "answered"


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_is_json(name):
    rows = to_json(answer(load(name), {}))["rows"]
    assert [row["what"] for row in rows] == [row.what for row in answer(load(name), {}).rows]


def test_gpt3_needs_33_devices_of_85_gb_and_35_of_80():
    assert values(ch37_capacity)["devices that hold these and nothing else, at least"] == 33
    assert "35 GPUs" in ch37_capacity.claims(ch37_capacity.Assumed())[0].evidence


def fastest(**settings) -> dict[str, float]:
    """Rows of the fastest configuration."""
    first = "number 1: "
    return {
        what.removeprefix(first): value
        for what, value in values(ch37_capacity, **settings).items()
        if what.startswith(first)
    }


def test_175b_on_512_gpus_is_fastest_with_t4_p8_and_selective_recomputation():
    found = fastest()
    assert found["configuration"] == "t4 p8 d16 v2, ZeRO-1, remat selective"
    assert found["MFU"] == pytest.approx(49.3, abs=0.05)
    assert found["bottleneck"].startswith("computation (83.7 % of the step), then tensor parallelism (7.62 %")
    assert found["faster with one change"] == "remat=none: 13.15 s and 125.6 GB, more than the 63.76 GB here"


def test_what_fits_is_what_jax_takes_of_the_chip_and_terabytes_are_told_as_such():
    takes = "memory that JAX takes of each"
    assert values(ch37_capacity)[takes] == Room.of(parse_target("gpu:h100:64x8")).usable_bytes
    assert values(ch37_capacity, cluster="v5p-pod")[takes] == Room.of(parse_target("tpu:v5p:8x8x8")).usable_bytes
    rows = values(ch37_capacity, batch=12288, micro_batch=24)
    assert any(" TB" in value for what, value in rows.items() if what.endswith("faster with one change"))
    assert all(isfinite(value) and value <= rows[takes] for what, value in rows.items() if what.endswith("a device"))


def test_full_recomputation_costs_175b_a_quarter_of_its_mfu():
    full, selective = fastest(remat="full"), fastest()
    assert full["MFU"] / selective["MFU"] == pytest.approx(0.77, abs=0.01)
    assert full["MFU"] == pytest.approx(37.95, abs=0.05)
    assert full["memory a device"] < 0.6 * selective["memory a device"]


def test_parts_of_memory_and_step_add_up():
    for prefix in ("number 2: ", "fastest with ZeRO-3: ", "fastest with t8 p8: "):
        found = {what: value for what, value in values(ch37_capacity).items() if what.startswith(prefix)}
        held, taken = found[f"{prefix}memory a device"], found[f"{prefix}step"]
        parts = [value for what, value in found.items() if what.startswith(f"{prefix}of it")]
        assert sum(parts) == pytest.approx(held + taken)


def test_zero3_is_tried_beside_zero1_with_the_micro_batches_that_suit_it_and_is_slower():
    rows = values(ch37_capacity)
    assert rows["fastest with ZeRO-3: configuration"] == "t8 d8 f8, ZeRO-3, remat full"
    assert rows["fastest with ZeRO-3: step"] > 1.4 * rows["number 1: step"]
    tried = [each.configuration for each in ch37_capacity.tried(ch37_capacity.Assumed())]
    assert {(each.zero, each.fsdp > 1) for each in tried} == {(0, False), (1, False), (2, False), (0, True)}
    assert {each.micro_batches for each in tried if (each.fsdp, each.tensor, each.pipe) == (64, 8, 1)} == {
        1, 2, 3, 4, 6, 8, 12, 24
    }  # fmt: skip


def test_llama_3s_own_layout_on_16384_gpus_with_126_layers_on_16_stages_is_found_and_the_fastest():
    found = fastest(model="llama3-405b", devices=16384, batch=2048)
    assert found["configuration"] == "t8 p16 d128 v2, ZeRO-1, remat full, layers Et*3|(t*4|)*30t*3L"
    assert found["bottleneck"].endswith("then bubble (31.5 % of the step)")


def test_the_labs_own_step_takes_the_configuration_that_is_found():
    assumed = ch37_capacity.Assumed(model="llama3-405b", devices=16384, batch=2048)
    best = ch37_capacity.fitting(assumed)[0].configuration
    ledger = predict(best, replace(DecoderShape.preset("llama3-405b"), batch=2048))
    assert dict(ledger.mesh) == {"data": 128, "pipe": 16, "tensor": 8}


def test_stages_that_are_not_equal_say_so_and_interleave_only_where_chunks_are_alike():
    tried = [each.configuration for each in ch37_capacity.tried(ch37_capacity.Assumed(devices=64, batch=64))]
    assert {each.pipe for each in tried if each.stage_layers} == {64}
    assert {each.pipe for each in tried if each.chunks > 1} == {2, 4, 8, 16}


def test_every_configuration_tried_has_the_devices_and_the_batch_and_each_mesh_is_shown_once():
    assumed = ch37_capacity.Assumed(devices=48, batch=48)
    tried = ch37_capacity.tried(assumed)
    assert {each.configuration.devices for each in tried} == {48} and {each.batch for each in tried} == {48}
    assert any(each.configuration.pipe == 16 for each in tried) and any(
        each.configuration.tensor == 6 for each in tried
    )
    assert max(each.configuration.tensor for each in tried) == 8
    chunked = [each.configuration for each in tried if each.configuration.chunks > 1]
    assert chunked and all(each.micro_batches % each.pipe == 0 for each in chunked)
    best = ch37_capacity.best_of_meshes(ch37_capacity.fitting(assumed))
    assert len({each.configuration.axes for each in best}) == len(best)
    assert [each.step_s for each in best] == sorted(each.step_s for each in best)
    assert max(each.memory_bytes for each in best) <= assumed.room.usable_bytes


def test_slower_links_cost_tensor_parallelism_more_than_pipelines():
    tensor = "fastest with t8 p8: of it tensor parallelism"
    newer, older = (
        values(ch37_capacity, cluster=name, remat="full", devices=64, batch=64)[tensor]
        for name in ("dgx-h100", "dgx-a100")
    )
    assert older / newer == pytest.approx(450 / 300, rel=0.05)


def test_a_batch_that_no_layout_divides_is_refused():
    with pytest.raises(UsageError, match="devices=512 and batch=1: no degrees divide gpt3-175b's heads and the batch"):
        values(ch37_capacity, batch=1, devices=512, micro_batch=7)


def test_a_recomputation_that_is_not_priced_is_refused():
    with pytest.raises(UsageError, match="no remat 'dots'"):
        values(ch37_capacity, remat="dots")


def test_saves_of_5_minutes_and_72_h_between_failures_ask_for_one_every_3_46_h():
    found = values(ch37_checkpoint)
    assert found["interval (Young)"] == pytest.approx(3.464, rel=1e-3)
    assert found["failures"] == pytest.approx(4.67, abs=5e-3)
    assert found["lost to saving"] == pytest.approx(2.4, abs=0.05)
    recovery = found["recovery after each: restart and half an interval again"]
    assert recovery * 3600 == pytest.approx(12471 / 2 + 300, abs=1)
    assert found["lost to recovery: both"] == pytest.approx(2.5, abs=0.05)


@pytest.mark.parametrize("factor", [0.3, 1, 3])
def test_the_simulation_loses_what_the_exact_expectation_says(factor):
    save, mtbf = 300.0, 72 * 3600.0
    interval = factor * 12471
    exact = mtbf * (exp((interval + save) / mtbf) - 1) / interval - 1
    assert ch37_checkpoint.simulated_overhead(interval, save, mtbf) == pytest.approx(exact, rel=0.02)


def test_ten_times_the_model_on_ten_times_the_devices_takes_70_days():
    assert values(ch37_scale_up)["days of the larger run"] == 70
    assert values(ch37_scale_up, kept_utilisation=0.7)["days of the larger run"] == 100


def test_a_doubled_batch_at_20_percent_more_samples_costs_120_000_hours_and_means_a_critical_batch_of_4():
    found = values(ch37_batch)
    assert found["device hours with the larger batch"] == 120_000
    assert found["hours with the larger batch"] == 60
    costs = [found[what] for what in ("cost", "cost with the larger batch", "dearer by")]
    assert costs == pytest.approx([300_000, 360_000, 60_000])
    critical = found["critical batch, in old batches"]
    assert (2 + critical) / (1 + critical) == pytest.approx(1.2)


def test_a_batch_that_saves_no_time_is_never_worth_it():
    assert values(ch37_batch, more_samples=2.0)["worth it if an hour earlier is worth"] == "never: it is not faster"


def test_half_the_memory_bandwidth_moves_its_ridge_4_times_up_and_those_of_links_twice():
    found = values(ch37_chip)
    assert found["new: ridge of the memory"] == 4 * found["ridge of the memory"] == pytest.approx(1181, abs=0.5)
    assert found["new: ridge of the network"] == 2 * found["ridge of the network"] == pytest.approx(39_580, abs=0.5)
    assert found["new: ridge of the fast link"] == 2 * found["ridge of the fast link"] == pytest.approx(4_398, abs=0.5)
    tokens = "tokens a replica that hide its gradient sync"
    assert found[f"new: {tokens}"] == pytest.approx(2 * found[tokens])


def test_each_of_the_three_factors_moves_its_own_ridges_alone():
    base = values(ch37_chip, flops_factor=1, memory_factor=1, link_factor=1)
    for name, moved in (("memory_factor", ["the memory"]), ("link_factor", ["the fast link", "the network"])):
        factors = {"flops_factor": 1, "memory_factor": 1, "link_factor": 1, name: 0.5}
        found = values(ch37_chip, **factors)
        for what in ("the memory", "the fast link", "the network"):
            factor = 2 if what in moved else 1
            assert found[f"new: ridge of {what}"] == pytest.approx(factor * base[f"ridge of {what}"])


def test_on_the_new_chip_products_of_inference_wait_for_memory_and_all_reduces_for_their_links():
    expected = {
        "an MLP's product at inference": "the memory",
        "all_reduces of tensor parallelism, forward": "the fast link",
        "all_reduce of gradients": "the network",
    }
    assert ch37_chip.becoming_bottlenecks(ch37_chip.Assumed()) == expected
    found = values(ch37_chip)
    assert all(found[f"becomes a bottleneck: {what}"] == by for what, by in expected.items())
    assert not ch37_chip.becoming_bottlenecks(ch37_chip.Assumed(flops_factor=1, memory_factor=1))
    assert ch37_chip.product_intensity(1, 8192, 28672) == pytest.approx(1, abs=1e-3)


def attention(window):
    """One attention under tensor parallelism: heads split, one sum where it leaves."""

    def program(x_SH, w_HAD, o_ADH):
        q, k, v = (jnp.einsum("sh,had->sad", x_SH, w) for w in w_HAD)
        apart = jnp.arange(64)[:, None] - jnp.arange(64)
        scores = jnp.where((apart >= 0) & (apart < window), jnp.einsum("sad,tad->ast", q, k), -1e9)
        return jnp.einsum("sad,adh->sh", jnp.einsum("ast,tad->sad", jax.nn.softmax(scores), v), o_ADH)

    mesh = make_mesh(parse_target("cpu:8"), Axes.of({"tensor": 8}))
    replicated, heads_second, heads_first = (
        NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((), (None, "tensor"), ("tensor",))
    )
    w = jax.ShapeDtypeStruct((32, 8, 4), jnp.float32, sharding=heads_second)
    args = (
        jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=replicated),
        (w, w, w),
        jax.ShapeDtypeStruct((8, 4, 32), jnp.float32, sharding=heads_first),
    )
    compiled = jax.jit(program, out_shardings=replicated)
    return lab.inspect(compiled, *args)


@pytest.mark.compiles
def test_a_window_leaves_what_tensor_parallelism_sends_to_the_byte():
    full, local = attention(64), attention(4)
    assert Totals.of(local.transfers) == Totals.of(full.transfers)
    assert Totals.of(full.transfers).payload_bytes == 64 * 32 * 4


def test_a_window_of_256_leaves_one_hop_of_context_parallelism():
    found = values(ch37_local_attention)
    assert (found["context parallelism: hops a layer"], found["local: context parallelism: hops a layer"]) == (7, 1)
    assert found["local: context parallelism sends a rank and layer forward"] == 256 * 2 * 8 * 128 * 2
    assert found["context parallelism sends a rank and layer forward"] == 7 / 8 * 131072 * 2 * 8 * 128 * 2
    assert values(ch37_local_attention, window=10**9) == values(ch37_local_attention, window=131072)


def test_a_window_of_256_saves_scores_by_512_and_flash_attention_has_none_to_save():
    found = values(ch37_local_attention)
    scores = 131072 * 32 * 256 * (4 + 2)  # Softmax in float32, and rounded to bf16, of 32 heads.
    assert found["local: of them scores"] == scores and found["of them scores"] == 512 * scores
    flash = "activations saved a layer by flash attention"
    assert found[f"local: {flash}"] == found[flash]


def test_mixtral_8x22b_weighs_281_gb_and_has_more_active_parameters_than_deepseek_v3():
    found = values(ch37_case_studies)
    assert found["mixtral-8x22b: weights"] == pytest.approx(281.2e9, rel=1e-3)
    assert (
        found["mixtral-8x22b: of them active"]
        > found["deepseek-v3: of them active"]
        == pytest.approx(37.55e9, rel=1e-3)
    )


def test_stages_of_llama_3_lie_in_16_nodes_since_a_tensor_group_fills_each():
    found = values(ch37_placement)
    assert (
        found["llama3-405b: tensor of 8 spans"],
        found["llama3-405b: pipe of 16 spans"],
        found["llama3-405b: data of 128 spans"],
    ) == (1, 16, 128)


def test_experts_of_deepseek_v3_lie_in_8_nodes_but_in_one_nvl72():
    assert values(ch37_placement)["deepseek-v3: expert of 64 spans"] == 8
    assert values(ch37_placement, cluster="gb200-nvl72")["deepseek-v3: expert of 64 spans"] == 1


@pytest.mark.parametrize("setting", [{"devices": 0}, {"micro_batch": 0}, {"efficiency": -0.5}])
def test_counts_of_zero_and_negative_measures_are_refused_by_name(setting):
    with pytest.raises(UsageError, match=f"ch37_capacity: {next(iter(setting))}="):
        values(ch37_capacity, **setting)


def test_a_model_with_experts_is_refused_where_no_degree_splits_them():
    with pytest.raises(UsageError, match="model=mixtral-8x7b: has 8 experts a layer, and this search splits none"):
        values(ch37_capacity, model="mixtral-8x7b")


@pytest.mark.parametrize(
    "module, settings, said",
    [
        (ch37_capacity, {"model": "llama3-70b", "devices": 64}, "How is llama3-70b trained on 64 chips of dgx-h100?"),
        (ch37_scale_up, {"days": 3, "larger_devices": 2000}, "7B model took 3 days on 64 GPUs; how long does 70B take on 2,000"),
        (ch37_batch, {"times": 4, "more_samples": 1.5}, "a batch 4 times as large worth it if it takes 50 % more"),
        (ch37_local_attention, {"window": 4096}, "If attention sees only 4,096 tokens"),
        (ch37_chip, {"flops_factor": 3}, "3 times the FLOP/s and 0.5 times the memory bandwidth"),
    ],
)  # fmt: skip
def test_a_question_asks_for_the_numbers_that_were_set(module, settings, said):
    found = answer(module.EXPERIMENT, {name: str(value) for name, value in settings.items()})
    assert said in found.question and said not in module.EXPERIMENT.question
