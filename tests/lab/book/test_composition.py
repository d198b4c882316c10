"""Chapters 24 and 25: worked examples that take several formulas, and published figures."""

from fractions import Fraction

import numpy as np
import pytest

from lab.book.collectives import ring_all_reduce_s, tree_all_reduce_s
from lab.book.composition import (
    composed_efficiency,
    data_parallel_growth,
    expert_bytes,
    gpt_parameters,
    pipelined_step_s,
    saved_activation_bytes,
    split_state_bytes,
    stage_compute_s,
    trained_flops_per_s,
    with_experts_bytes,
)
from lab.book.context import hybrid_hop_bytes, ring_bytes
from lab.book.experts import capacity
from lab.book.parallelism import activation_bytes, dp_volume_bytes, tp_volume_bytes
from lab.book.pipeline import bubble_share, stage_volume_bytes

# Billions of parameters, heads, embed, layers, t, p, GPUs, sequences a batch (Narayanan et al. 2021, Table 1;
# vocabulary 51200, length 2048).
MEGATRON = [
    ("1.7", 24, 2304, 24, 1, 1, 32, 512),
    ("3.6", 32, 3072, 30, 2, 1, 64, 512),
    ("7.5", 32, 4096, 36, 4, 1, 128, 512),
    ("18.4", 48, 6144, 40, 8, 1, 256, 1024),
    ("39.1", 64, 8192, 48, 8, 2, 512, 1536),
    ("76.1", 80, 10240, 60, 8, 4, 1024, 1792),
    ("145.6", 96, 12288, 80, 8, 8, 1536, 2304),
    ("310.1", 128, 16384, 96, 8, 16, 1920, 2160),
    ("529.6", 128, 20480, 105, 8, 35, 2520, 2520),
    ("1008.0", 160, 25600, 128, 8, 64, 3072, 3072),
]


@pytest.mark.parametrize(("billions", "heads", "embed", "layers", "tensor", "pipe", "gpus", "batch"), MEGATRON)
def test_the_parameters_of_ten_published_models_come_out_to_the_printed_digit(
    billions, heads, embed, layers, tensor, pipe, gpus, batch
):
    assert f"{gpt_parameters(layers, embed, 51200, 2048) / 1e9:.1f}" == billions
    replicas = gpus // (tensor * pipe)
    assert replicas * tensor * pipe == gpus and layers % pipe == heads % tensor == batch % replicas == 0


def test_mt_nlg_reaches_124_teraflops_with_recomputation_in_240_micro_batches():
    assert trained_flops_per_s(530e9, 1920 * 2048, 2240, 60.1, 8) == pytest.approx(123.8e12, rel=1e-3)
    assert trained_flops_per_s(530e9, 1920 * 2048, 2240, 60.1) == pytest.approx(92.9e12, rel=1e-3)
    assert 1 - bubble_share(35, 1920 // 8) == pytest.approx(0.876, abs=1e-3)


def test_on_8_by_4_by_4_tensor_parallelism_takes_573_ms_data_131_and_pipeline_86():
    message = activation_bytes(2 * 2048, 8192, 2)
    tensor = tp_volume_bytes(2 * 2048, 8192, 2, ranks=4, blocks=2 * 20 * 32)
    data, pipe = dp_volume_bytes(30_000_000_000 // 16, 2, 8), stage_volume_bytes(message, 32)
    assert (tensor, pipe, data) == (257_698_037_760, 4_294_967_296, 6_562_500_000)
    assert (tensor / 450e9, pipe / 50e9, data / 50e9) == pytest.approx((0.573, 0.0859, 0.13125), rel=1e-3)


def test_zero1_frees_63_57_of_87_5_gigabytes():
    whole, parted = (split_state_bytes(175_000_000_000, 8, 4, 32, stage) for stage in (0, 1))
    assert whole == 87_500_000_000 and (whole - parted) / 1e9 == pytest.approx(63.574, rel=1e-4)


def test_70_billion_over_8_by_8_by_8_by_8_take_17_5_gigabytes_6_02_with_zero1_and_4_58_over_64():
    states = [float(split_state_bytes(70_000_000_000, 8, 8, *zero)) / 1e9 for zero in ((1, 0), (8, 1), (64, 1))]
    assert states == pytest.approx([17.5, 6.016, 4.580], rel=1e-3)
    activations = float(saved_activation_bytes(2 * 8 * 32768, 8192, 10, tensor=8, context=8)) / 1e9
    assert (activations, activations / 3) == pytest.approx((22.82, 7.606), rel=1e-3)
    block = hybrid_hop_bytes(2 * 8 * 32768, 8192, 2, ulysses=8, ring=8)
    assert (block, 2 * block) == (pytest.approx(268.4e6, rel=1e-3), pytest.approx(536.9e6, rel=1e-3))
    assert states[1] + activations / 3 + 2 * block / 1e9 == pytest.approx(14.16, rel=1e-3)


def test_a_ring_of_8_holds_blocks_of_1_07_gigabytes_twice_a_quarter_of_a_gather():
    block = 2 * 2 * 16384 * 8192 * 2
    assert block == pytest.approx(1.074e9, rel=1e-3)
    queries_and_outputs = 2 * 2 * 16384 * 8192 * 2
    assert ring_bytes(2 * 131072, 8192, 8192, 2, 8) - queries_and_outputs == 2 * block
    assert 8 * block == 4 * 2 * block == pytest.approx(8.59e9, rel=1e-3)


def test_an_expert_without_gate_takes_16_h_squared_bytes():
    assert expert_bytes(1, 2 * 12288 * 4 * 12288, 2) == 16 * 12288**2


def test_dense_and_experts_of_a_trillion_take_50_gigabytes_of_state_on_2048_ways():
    assert with_experts_bytes(200_000_000_000, 800_000_000_000, 16, 8, 4, 16) == 50_000_000_000


def test_1000_tokens_lose_238_at_156_slots_236_at_157_and_none_at_300():
    arrived = 10 * np.array([30, 5, 25, 10, 5, 10, 10, 5])
    slots = [156, capacity(1000, 8, 1, 1.25), capacity(1000, 8, 1, 2.4)]
    assert [np.maximum(0, arrived - held).sum() for held in slots] == [238, 236, 0]


def test_latency_of_a_ring_grows_4_2_times_from_16_to_64_ranks_and_its_bytes_by_a_twentieth():
    ring, tree = (
        [model(1, ranks, 1.0, 1e12) for ranks in (16, 64)] for model in (ring_all_reduce_s, tree_all_reduce_s)
    )
    assert (ring[1] / ring[0], tree[1] / tree[0]) == pytest.approx((4.2, 1.5))
    assert data_parallel_growth(16, 4) == dp_volume_bytes(1, 1, 64) / dp_volume_bytes(1, 1, 16) == Fraction(21, 20)


def test_efficiency_is_the_product_of_bubble_tensor_and_data_shares():
    step = (6 + 2) / (1 - 0.2)
    assert composed_efficiency(0.2, 6.0, 2.0, 5.0) == pytest.approx((1 - 0.2) * 6 / (6 + 2) * step / (step + 5))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: split_state_bytes(-1, 8, 4), "parameters=-1"),
        (lambda: split_state_bytes(1, 0, 4), "pipe=0"),
        (lambda: split_state_bytes(1, 8, 4, 8, stage=4), "stage=4"),
        (lambda: data_parallel_growth(1, 4), "replicas=1: expected 2 or above"),
        (lambda: with_experts_bytes(1, -1, 1, 1, 1, 2), "expert_parameters=-1"),
        (lambda: pipelined_step_s(1, 1, 1, -1), "exposed_s=-1"),
        (lambda: composed_efficiency(0, 1, -1, 0), "tensor_s=-1"),
        (lambda: stage_compute_s(1e9, 1, 1, 1, 0), "flops_per_s=0"),
        (lambda: saved_activation_bytes(0, 1, 1), "tokens=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()


def test_a_forward_pass_that_is_run_twice_makes_a_micro_batch_a_third_longer():
    once, twice = (stage_compute_s(175e9, 2048, 8, 8, 989e12, 0.6, flops) for flops in (6, 8))
    assert twice / once == pytest.approx(4 / 3)
