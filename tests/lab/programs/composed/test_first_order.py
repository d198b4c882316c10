"""First-order times and memory of a configuration: against arithmetic, the simulation of its schedule, and the ledgers
of the lab's own strategies."""

from dataclasses import replace

import numpy as np
import pytest

from lab.book.collectives import ring_all_reduce_s
from lab.book.composition import pipelined_step_s
from lab.meshes.errors import UsageError
from lab.programs.composed.configuration import Configuration
from lab.programs.composed.first_order import FirstOrder, Held, Part
from lab.programs.composed.step import predict
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines.orders import interleaved, one_f_one_b
from lab.programs.pipelines.simulation import Durations, simulate
from lab.zoo import cluster, model

H100, GPT3, LLAMA = cluster("dgx-h100"), model("gpt3-175b"), model("llama3-405b")
PEAK = H100.chip.flops_per_s["bf16"].value


def on_512(tensor: int, pipe: int, data: int, **choices) -> FirstOrder:
    """GPT-3 with 1,536 sequences a step, a sequence a micro-batch."""
    configuration = Configuration(
        tensor=tensor, pipe=pipe, data=data, zero=1, micro_batches=1536 // data, **{"remat": "full"} | choices
    )
    return FirstOrder(configuration, GPT3, H100, 1, 0.6, 1e-6, 5e-6)


def of_405b(**choices) -> FirstOrder:
    degrees = {"tensor": 8, "pipe": 16, "data": 128, "zero": 1, "micro_batches": 16}
    return FirstOrder(Configuration(**degrees | choices), LLAMA, H100, 1, 0.5)


@pytest.mark.parametrize(("degrees", "percent"), [((4, 32, 4), 38.3), ((4, 8, 16), 37.8), ((8, 8, 8), 35.8)])
def test_full_recomputation_leaves_38_and_36_percent_even_where_stages_are_equal_and_messages_hidden(degrees, percent):
    (tensor, pipe, data), found = degrees, on_512(*degrees)
    mean = dict(zip(Part, found.stages_s.mean(0), strict=True))
    equal = mean[Part.PRODUCTS] + mean[Part.RECOMPUTED] + mean[Part.TENSOR]
    gradients = 2 * GPT3.parameters // (tensor * pipe)
    step_s = pipelined_step_s(1536 // data, pipe, equal, ring_all_reduce_s(gradients, data, 5e-6, 50e9))
    assert 100 * found.mfu * found.step_s / step_s == pytest.approx(percent, abs=0.05)
    assert step_s < 0.98 * found.step_s


def test_a_layer_that_is_computed_again_costs_a_third_of_its_products_and_a_fifth_of_its_transfers_more():
    parts = {remat: on_512(8, 8, 8, remat=remat).parts_s for remat in ("full", "selective")}
    of_layers = parts["selective"][Part.PRODUCTS] * (1 - GPT3.vocab * GPT3.embed / GPT3.active_without_lookup)
    assert parts["full"][Part.RECOMPUTED] == pytest.approx(of_layers / 3)
    assert parts["full"][Part.TENSOR] / parts["selective"][Part.TENSOR] == pytest.approx(1.2, abs=0.005)
    assert parts["selective"][Part.RECOMPUTED] == 0
    assert parts["full"][Part.ATTENTION] == parts["selective"][Part.ATTENTION]


def test_what_is_not_computed_again_spares_a_fourth_of_attention():
    again, once = (on_512(8, 8, 8, remat=remat).parts_s[Part.ATTENTION] for remat in ("selective", "none"))
    assert once / again == pytest.approx(3 / 4)


@pytest.mark.parametrize("remat", ["none", "selective", "full"])
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_step_is_what_the_simulation_of_its_schedule_takes_or_a_little_more(remat, chunks):
    found = of_405b(remat=remat, chunks=chunks)
    stages_s = found.stages_s.sum(1)[:, None] / chunks * np.ones(chunks)
    message_s = 2 * 8192 * 16384 / 8 / 50e9
    schedule = one_f_one_b(16, 16) if chunks == 1 else interleaved(16, 16, chunks)
    durations = Durations((stages_s / 3).tolist(), (stages_s * 2 / 3).tolist(), transfer=message_s)
    simulated = simulate(schedule, durations).makespan
    told = found.step_s - found.parts_s[Part.GRADIENTS]
    assert simulated <= told * (1 + 1e-9) and told == pytest.approx(simulated, rel=0.04)


def test_llama_405b_on_126_layers_and_16_stages_by_hand():
    found = of_405b(remat="none")
    layer = (LLAMA.parameters - 2 * 128256 * 16384) / 126
    rate = 8 * PEAK * 0.5
    products = 6 * layer * 8192 / rate
    attention = 3 * 2 * 8192 * 8192 * 16384 / rate
    gather = 7 / 8 * 2 * 8192 * 16384 / 450e9
    message = 2 * 8192 * 16384 / 8 / 50e9
    inner = 8 * (products + attention + 10 * gather)
    last = 7 * (products + attention + 10 * gather) + 6 * 128256 * 16384 * 8192 / rate + 2 * gather
    first = 7 * (products + attention + 10 * gather) + 2 * gather
    assert found.stages_s.sum(1) == pytest.approx([first, *[inner] * 14, last])
    gradients = 2 * 127 / 128 * 2 * (8 * layer / 8) / 50e9
    assert found.step_s == pytest.approx(16 * inner + 13 * inner + first + last + 58 * message + gradients)


def test_memory_of_llama_405b_by_hand_lies_on_the_second_stage():
    held = of_405b(remat="full").held_bytes
    parameters = 8 * (LLAMA.parameters - 2 * 128256 * 16384) / 126 / 8
    stream = 2 * 8192 * 16384 / 8
    assert held[Held.WEIGHTS] == held[Held.GRADIENTS] == pytest.approx(2 * parameters)
    assert held[Held.OPTIMIZER] == pytest.approx(12 * parameters / 128)
    assert held[Held.ACTIVATIONS] == pytest.approx(15 * 8 * stream)
    assert held[Held.WORKING] == pytest.approx((20 + 4 / 16 + 12 * 3.25) * stream / 2 - stream)


def test_a_tied_table_lies_on_both_ends_and_once_where_they_are_one():
    whole = FirstOrder(Configuration(remat="full"), GPT3, H100)
    assert whole.held_bytes[Held.WEIGHTS] == 2 * GPT3.parameters
    assert whole.parts_s[Part.BUBBLE] == whole.parts_s[Part.GRADIENTS] == whole.parts_s[Part.MESSAGES] == 0
    two = FirstOrder(Configuration(pipe=2, remat="full"), GPT3, H100)
    assert two.held_bytes[Held.WEIGHTS] == 2 * (GPT3.non_embedding / 2 + GPT3.vocab * GPT3.embed)
    assert two.parts_s[Part.GRADIENTS] == pytest.approx(2 * 50257 * 12288 / 450e9)


def test_each_stage_of_zero_divides_one_thing_more_and_the_third_moves_half_again_as_much_a_micro_batch():
    def over_8(**choices) -> FirstOrder:
        return FirstOrder(Configuration(remat="full", **choices), LLAMA, H100)

    plain, sharded, scattered, all_of_it = (
        over_8(data=8, zero=0), over_8(data=8, zero=1), over_8(data=8, zero=2), over_8(fsdp=8)
    )  # fmt: skip
    whole = 2 * LLAMA.parameters
    expected = [(whole, whole, 6 * whole), (whole, whole, 6 * whole / 8), (whole, whole / 8, 6 * whole / 8),
                (whole / 8, whole / 8, 6 * whole / 8)]  # fmt: skip
    state = (Held.WEIGHTS, Held.GRADIENTS, Held.OPTIMIZER)
    found = [tuple(each.held_bytes[part] for part in state) for each in (plain, sharded, scattered, all_of_it)]
    assert np.array(found) == pytest.approx(np.array(expected))
    sent = [each.parts_s[Part.SHARDS] + each.parts_s[Part.GRADIENTS] for each in (plain, sharded, scattered, all_of_it)]
    once = 2 * 7 / 8 * whole / 450e9
    tables = 2 * 128256 * 16384 / LLAMA.parameters
    assert sent == pytest.approx([once, once, once, once * (3 - tables) / 2])


def test_stages_have_the_layers_that_the_configuration_says():
    found = FirstOrder(Configuration(pipe=3, stage_layers="Et*50|t*46|t*30L"), LLAMA, H100).stages_s
    attention = dict(zip(Part, found.T, strict=True))[Part.ATTENTION]
    assert attention / attention[2] == pytest.approx([50 / 30, 46 / 30, 1])
    chunks = "Et*20|t*10|t*30|t*66L"
    twice = FirstOrder(Configuration(pipe=2, chunks=2, schedule="interleaved", stage_layers=chunks), LLAMA, H100)
    assert twice.stages_s[1, 1] / twice.stages_s[0, 1] == pytest.approx(76 / 50)


def test_zero3_works_with_two_gathered_layers_and_a_whole_gradient():
    working = [FirstOrder(c, LLAMA, H100).held_bytes[Held.WORKING] for c in (Configuration(fsdp=8), Configuration())]
    assert working[0] - working[1] == pytest.approx(3 * 2 * LLAMA.non_embedding / 126)


def test_twice_the_micro_batches_gather_and_scatter_twice_as_much():
    def sent(micro_batches: int, **choices) -> float:
        c = Configuration(remat="full", micro_batches=micro_batches, **choices)
        return FirstOrder(c, LLAMA, H100).parts_s[Part.SHARDS]

    for choices in ({"fsdp": 8}, {"data": 8, "zero": 2}):
        assert sent(2, **choices) == pytest.approx(2 * sent(1, **choices)) != 0
    hybrid = sent(1, data=4, fsdp=2, zero=2) - sent(1, data=4, fsdp=2)
    assert hybrid == pytest.approx(3 / 4 * (2 * LLAMA.parameters / 2) / 450e9)
    assert sent(2, data=8, zero=1) == 0


@pytest.mark.parametrize(
    ("choices", "parts", "told"),
    [
        ({"tensor": 8, "remat": "none"}, (Part.TENSOR,), (10 * 32 + 4) / (8 * 32 + 4)),
        ({"tensor": 8, "remat": "full"}, (Part.TENSOR,), (12 * 32 + 4) / (11 * 32 + 4)),
        ({"fsdp": 8, "remat": "full"}, (Part.SHARDS,), 1),
        ({"data": 8, "remat": "none"}, (Part.GRADIENTS,), 1),
        ({"data": 8, "zero": 1, "remat": "none"}, (Part.GRADIENTS,), 1),
        ({"data": 8, "zero": 2, "remat": "none"}, (Part.SHARDS, Part.GRADIENTS), 1),
    ],
)
def test_transfers_are_those_of_the_labs_own_step_but_for_what_it_keeps_or_leaves_out(choices, parts, told):
    """It keeps gathered inputs, and a layer that is computed again sends nothing for what its last product gives."""
    configuration = Configuration(**choices)
    ledger = predict(configuration, replace(DecoderShape.preset("llama3-8b"), batch=8))
    sent = sum(
        t.executions * float(t.wire_bytes)
        for t in ledger.transfers
        if not t.scope.endswith(("norm", "clip")) and not t.scope.startswith("loss")
    )
    micro_batch = 8 // (configuration.data * configuration.fsdp)
    found = FirstOrder(configuration, model("llama3-8b"), H100, micro_batch)
    assert sum(found.parts_s[part] for part in parts) * 450e9 / sent == pytest.approx(told, rel=2e-4)


def test_axes_that_lie_inside_a_domain_have_its_links():
    inside, across = (FirstOrder(Configuration(data=size), LLAMA, H100).parts_s[Part.GRADIENTS] for size in (8, 16))
    assert across / inside == pytest.approx((15 / 16) / (7 / 8) * 9)
    within = FirstOrder(Configuration(pipe=4, tensor=2, data=16), LLAMA, H100).parts_s[Part.MESSAGES]
    beyond = FirstOrder(Configuration(pipe=4, tensor=4, data=16), LLAMA, H100).parts_s[Part.MESSAGES]
    assert beyond / within == pytest.approx(9 / 2)


@pytest.mark.parametrize(
    ("choices", "name", "message"),
    [
        ({"context": 2}, "llama3-405b", "context=2, expert=1, sequence=True, schedule=1f1b: expected neither axis"),
        ({"schedule": "gpipe"}, "llama3-405b", "schedule=gpipe: expected neither axis, sequence=True, and schedule=1f1b"),
        ({"remat": "dots"}, "llama3-405b", "no remat 'dots'"),
        ({}, "deepseek-v3", "model=deepseek-v3: expected one of Llama's or GPT's layers, without experts"),
    ],
)  # fmt: skip
def test_what_no_formula_here_tells_of_is_refused(choices, name, message):
    with pytest.raises(UsageError, match=message):
        FirstOrder(Configuration(**choices), model(name), H100)


def test_a_layer_that_is_neither_llamas_nor_gpts_is_refused():
    with pytest.raises(UsageError, match="model=llama3-405b: expected one of Llama's or GPT's layers"):
        FirstOrder(Configuration(), replace(LLAMA, activation="relu2"), H100)
