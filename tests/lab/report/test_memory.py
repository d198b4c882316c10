from dataclasses import replace

import pytest

from lab.core.codec import to_json
from lab.core.ledger import Ledger, Memory
from lab.core.room import Room
from lab.harness.result import Result, Seconds
from lab.programs.memory.parts import Part, PartOff
from lab.programs.memory.terms import MemoryTerm
from lab.report.memory import memory_text
from lab.report.verdicts import result_text
from lab.settle import Context, settle

HELD = {"arguments": 12_000, "saved_activations": 0, "layers_grads": 4_000}


def result(target: str, peak: int | None, held: dict[str, int] | None = HELD, padding: int = 0) -> Result:
    measured = Ledger((), memory=Memory(12_000 + padding, 0, 0, 0, peak, padding))
    settlement = settle(Ledger(()), measured, Context("gpu", "declared"))
    return Result("ch20", "declared", target, {"data": 16}, {}, Seconds(1.0, 0.1, 2.0), measured, settlement, held=held)


def rows(text: str) -> list[list[str]]:
    return [
        line.split()[-2:]
        for line in text.splitlines()
        if line.split()[-1].replace(",", "").isdigit() or line.endswith(" -")
    ]


def test_terms_that_are_not_zero_sum_up_beside_the_planned_peak():
    text = memory_text(result("gpu:h100:2x8", 15_000))
    assert rows(text) == [["12,000", "12,000"], ["4,000", "-"], ["16,000", "15,000"]]
    assert text.endswith("the peak that XLA plans is 6.25 % below the sum of the terms and the padding")


def test_a_peak_of_151_gb_does_not_fit_an_h100_and_one_of_40_does():
    (too_much, fits) = (
        memory_text(result("gpu:h100:2x8", peak)).splitlines()[-2] for peak in (151_334_969_672, 40_402_575_704)
    )
    assert too_much.startswith(
        "it does not fit: the peak of 151.3 GB is 178 % of the 85.02 GB of NVIDIA H100 SXM 80 GB; take"
    )
    assert fits == (
        "it fits: the peak of 40.4 GB is 63.4 % of 63.76 GB: by default JAX preallocates 75 % of the chip's memory "
        "(NVIDIA H100 SXM 80 GB, 85.02 GB)"
    )


def test_a_peak_between_three_quarters_and_all_of_a_gpu_fits_at_a_fraction_that_is_named():
    room = Room("a card", 100 * 10**9, 0.75)
    assert room.fits(75 * 10**9) and not room.fits(75 * 10**9 + 1)
    assert room.sentence(82_100_000_000) == (
        "it does not fit: the peak of 82.1 GB is 109 % of 75 GB: by default JAX preallocates 75 % of the chip's memory "
        "(a card, 100 GB); it would with XLA_PYTHON_CLIENT_MEM_FRACTION=0.83, which leaves at most 17.9 GB to CUDA and NCCL"
    )
    assert room.sentence(99_100_000_000) == "it does not fit: the peak of 99.1 GB is 99.1 % of the 100 GB of a card"


def test_a_tpu_that_lists_two_devices_has_half_of_its_memory_for_each():
    assert "it fits: the peak of 51.54 GB is 50 % of the 103.1 GB of" in memory_text(
        result("tpu:7x:2x2x4", 206_158_430_208 // 4)
    )


@pytest.mark.parametrize(("peak", "said"), [(17_333, "5 % above"), (14_857, "10 % below")])
def test_padding_of_a_tpu_is_told_apart_and_its_plan_by_how_far_it_is_from_the_terms_of_gpus(peak, said):
    text = memory_text(result("tpu:v5p:2x2x4", peak, padding=508))
    assert rows(text)[0] == ["12,000", "12,000"]
    assert "arguments take another 508 B of padding" in text and text.endswith(
        f"TPU compiler makes others\nthe peak that XLA plans is {said} the sum of the terms and the padding"
    )


def test_a_tpu_without_a_plan_has_the_terms_of_gpus_alone():
    assert memory_text(result("tpu:v5p:2x2x4", None)).endswith(
        "those of XLA's GPU compiler; its TPU compiler makes others"
    )


def test_a_part_that_is_off_is_named_with_its_terms_and_the_scopes_that_hold_most():
    off = PartOff(Part.LAYER, 4000, 9000, (MemoryTerm.LAYER_ACTIVATIONS,), (("layers/mlp/up", 6000), ("", 3000)))
    found = replace(result("gpu:h100:2x8", 21_000), off=(off,))
    assert memory_text(found).splitlines()[-1] == (
        "off: one layer's attention and MLP: 4 kB predicted (one layer's tensors), 9 kB planned, most in layers/mlp/up "
        "(6 kB), no scope (3 kB)"
    )
    assert to_json(found)["memory"]["off"] == [
        {
            "part": "layer",
            "label": "one layer's attention and MLP",
            "predicted": 4000,
            "measured": 9000,
            "terms": ["layer_activations"],
            "largest": [{"scope": "layers/mlp/up", "bytes": 6000}, {"scope": "", "bytes": 3000}],
        }
    ]


def test_cpus_report_no_peak_and_none_is_compared():
    assert rows(memory_text(result("cpu:8", None)))[1:] == [["4,000", "-"], ["16,000", "-"]]


def test_a_program_that_xla_refuses_still_has_its_terms_and_what_to_do():
    refused = replace(
        result("gpu:h100:2x8", None),
        measured=None,
        settlement=None,
        held={"arguments": 12_000, "layer_activations": 200_000_000_000},
    )
    text = result_text(replace(refused, failure="RESOURCE_EXHAUSTED: Ran out of memory"))
    assert (
        "one layer's tensors   200,000,000,000" in text and "take fewer sequences at once (batch, accumulation)" in text
    )
    memory = to_json(refused)["memory"]
    assert memory["measured"] is None and memory["predicted"]["peak"] == 200_000_012_000
    assert (
        memory["predicted"]["terms"]["one layer's tensors"] == memory["predicted"]["terms_by_id"]["layer_activations"]
    )


def test_without_terms_nothing_is_said_and_with_them_a_run_shows_them():
    assert memory_text(result("gpu:h100:2x8", 15_000, held=None)) == ""
    assert memory_text(result("gpu:h100:2x8", 15_000)) in result_text(result("gpu:h100:2x8", 15_000))
