"""Pipelines by simulation: what chapters 16, 24 and 31a print, decided without the formulas that it is compared
with."""

from collections import Counter
from fractions import Fraction
from itertools import chain, product

import pytest

from lab.experiments import (
    ch16_interleaving,
    ch16_load_balance,
    ch16_printed_schedules,
    ch16_schedules,
    ch16_zero_bubble,
    ch31a_dualpipe,
)
from lab.harness.claim import ClaimVerdict
from lab.harness.question import Answer, Row, answer
from lab.harness.sweep import Point, swept
from lab.meshes.errors import UsageError
from lab.programs.pipelines.orders import gpipe, one_f_one_b, zb_h1
from lab.programs.pipelines.schedule import ticks
from lab.programs.pipelines.simulation import Durations, simulate
from tests.test_rooms import importers

# One worker answers the questions once for all tests.
pytestmark = pytest.mark.xdist_group("schedules")

CONFIRMED, REFUTED = ClaimVerdict.CONFIRMED, ClaimVerdict.REFUTED
MODULES = (
    ch16_interleaving,
    ch16_load_balance,
    ch16_printed_schedules,
    ch16_schedules,
    ch16_zero_bubble,
    ch31a_dualpipe,
)


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    return {module.EXPERIMENT.name: answer(module.EXPERIMENT, {}) for module in MODULES}


def rows(found: Answer) -> dict[str, float | str]:
    return {row.what: row.value for row in found.rows}


def verdicts(found: Answer, id: str) -> Counter:
    return Counter(claim.verdict for claim in found.claims if claim.id == id)


def test_what_is_simulated_knows_no_formula_of_the_book():
    for module in ("schedule", "orders", "simulation"):
        assert importers(f"lab.programs.pipelines.{module}", "lab.book", "jax") == []


@pytest.mark.slow
def test_only_what_the_catalogue_disputes_is_refuted_and_every_theory_beside_a_number_is_met(answers):
    assert all(found.is_fine and found.claims for found in answers.values())
    beside = {name: [row for row in found.rows if row.predicted is not None] for name, found in answers.items()}
    assert all(beside[name] for name in ("ch16_schedules", "ch16_interleaving", "ch16_zero_bubble"))
    for row in chain(*beside.values()):
        assert row.value == pytest.approx(row.predicted), row.what


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "id", "confirmed", "refuted"),
    [
        ("ch16_schedules", "ch16.gpipe_bubble", 1, 0),
        ("ch16_interleaving", "ch16.interleaved_bubble", 2, 1),
        ("ch16_interleaving", "ch16.interleaved_memory", 2, 1),
        ("ch16_zero_bubble", "ch16.zb_bubble", 2, 1),
        ("ch16_zero_bubble", "ch16.zb_memory", 1, 1),
        ("ch16_printed_schedules", "ch16.1f1b_order", 1, 2),
        ("ch16_printed_schedules", "ch24.schedule_1f1b", 1, 2),
        ("ch16_load_balance", "ch16.load_balance", 2, 2),
        ("ch31a_dualpipe", "ch31a.dualpipe", 3, 2),
        ("ch31a_dualpipe", "ch35.dualpipe_variants", 0, 2),
    ],
)
def test_what_is_confirmed_and_what_is_refuted(answers, name, id, confirmed, refuted):
    assert verdicts(answers[name], id) == +Counter({CONFIRMED: confirmed, REFUTED: refuted})


def test_a_formula_that_is_wrong_at_one_size_is_refuted_there():
    right = Point("P 2, m 4", 0.2, 0.2)
    assert swept("ch16.gpipe_bubble", [right], statement="").verdict is CONFIRMED
    claim = swept("ch16.gpipe_bubble", [right, Point("P 4, m 4", 0.43, 0.42), right], statement="")
    assert claim.verdict is REFUTED and claim.evidence == "1 of 3 simulations differ: 0.43 at P 4, m 4, not 0.42"


@pytest.mark.slow
def test_the_exercise_of_zb_h1_idles_13_92_percent_and_not_3_5_and_all_weights_last_hold_32(answers):
    found = rows(answers["ch16_zero_bubble"])
    assert found["zb_h1: idle share of the step"] == pytest.approx(13.92, abs=5e-3)
    assert found["1f1b with all weights last: most in flight"] == 32
    assert found["1f1b with all weights last: idle share of the step"] == pytest.approx(15.98, abs=5e-3)


def test_longer_weights_than_forwards_leave_zb_h1_longer_than_its_formula():
    """W no longer fits into the gaps: (P - 1)(1 + 1 - 2) would be no bubble."""
    assert simulate(zb_h1(4, 8), Durations(1, 1, 2)).makespan > 8 * 4


def test_p_minus_1_forwards_ahead_on_every_stage_take_46_ticks_instead_of_22():
    cases = ch16_printed_schedules.cases(ch16_printed_schedules.Assumed())
    assert [len(ticks(cases[f"1f1b, {first} first"])) for first in ("P - 1", "P - s - 1")] == [46, 22]


@pytest.mark.slow
def test_two_chunks_save_160_of_1000_ms_where_the_difference_of_the_bubbles_says_129(answers):
    (claim,) = [claim for claim in answers["ch16_interleaving"].claims if claim.id == "ch24.interleave_breakeven"]
    assert (
        claim.evidence == "two chunks save 159.6 of 1,000 ms, by formula 159.6; the difference of the shares says 129.3"
    )


@pytest.mark.slow
def test_where_a_hop_takes_a_fifth_of_a_forward_four_chunks_are_slower_than_two(answers):
    two, four = (
        rows(answers["ch16_interleaving"])[f"{v} chunks a stage: step, a hop takes 0.2 of a forward"] for v in (2, 4)
    )
    assert two < four


@pytest.mark.parametrize("P, m", [(4, 8), (4, 16), (8, 32)])
def test_messages_that_take_t_cost_gpipe_2_p_minus_1_of_them_and_1f1b_a_round_trip_for_every_p_micro_batches(P, m):
    """1F1B has P micro-batches under way, each of which goes there and back before its place is free."""
    hop = Fraction(1, 10)
    extra = [
        simulate(make(P, m), Durations(1, 2, transfer=hop)).makespan - 3 * (m + P - 1) for make in (gpipe, one_f_one_b)
    ]
    assert extra == [2 * (P - 1) * hop, (2 * (P - 1) * Fraction(m, P) + 2 * (P - 2)) * hop]


@pytest.mark.slow
def test_pairs_of_a_fast_and_a_slow_layer_idle_a_thirteenth_of_the_time_for_ever(answers):
    found = rows(answers["ch16_load_balance"])
    assert found["the same: idle for each further micro-batch"] == pytest.approx(100 / 13)
    assert found["slowest stage of the best split into contiguous stages"] == 40


@pytest.mark.slow
def test_dual_pipe_idles_12_7_percent_at_p_16_m_32_and_1f1b_31_9(answers):
    found = rows(answers["ch31a_dualpipe"])
    shares = [round(found[f"{name}: idle share of all stages"], 1) for name in ("1f1b", "zb_h1", "dual_pipe")]
    assert shares == [31.9, 13.5, 12.7]


def test_sizes_without_an_order_have_the_reason_for_a_row():
    found = rows(answer(ch16_schedules.EXPERIMENT, {"stages": "3", "micro_batches": "8"}))
    assert {what for what, value in found.items() if isinstance(value, str)} == {"dual_pipe", "interleaved"}
    assert (
        found["dual_pipe"] == "8 micro-batches on 3 stages; expected even numbers of both and at least 6 micro-batches"
    )


def assumptions():
    """Few micro-batches and many, and times in every order."""
    for sizes in product((1, 2, 4), (1, 4, 6, 8)):
        yield ch16_schedules.Assumed(*sizes)
    for forward, backward, weight in product((1, 2), (1, 3), (0, 1, 2)):
        yield ch16_schedules.Assumed(4, 8, 2, forward, backward, weight)
        yield ch16_zero_bubble.Assumed(4, 8, forward, backward, weight)
        yield ch31a_dualpipe.Assumed(4, 8, backward + weight, weight, forward + backward + weight)


def answered(assumed) -> tuple[Row, ...]:
    (module,) = [module for module in MODULES if isinstance(assumed, module.Assumed)]
    return module.answer(assumed)


@pytest.mark.slow
def test_theory_beside_a_schedule_is_met_or_refused_with_the_reason():
    for assumed in assumptions():
        beside = [row for row in answered(assumed) if row.predicted is not None]
        assert [row.value for row in beside] == pytest.approx([row.predicted for row in beside]), assumed


@pytest.mark.parametrize(
    ("assumed", "refused"),
    [
        (ch16_schedules.Assumed(4, 4), {"zb_h2": "4 micro-batches never fill 4 stages; expected 7 or more"}),
        (
            ch16_zero_bubble.Assumed(4, 8, 1, 2, 1.5),
            dict.fromkeys(
                ("zb_h1", "zb_h2"), "a weight gradient of length 1.5 does not fit into gaps of 1; expected no more"
            ),
        ),
        (
            ch31a_dualpipe.Assumed(4, 8, both=2.5),
            {"dual_pipe": "an overlapped pair of length 2.5; expected 3, the sum of both"},
        ),
    ],
)
def test_a_formula_outside_its_domain_is_refused_beside_what_was_simulated(assumed, refused):
    found = {
        row.what.split(":")[0]: str(row.value) for row in answered(assumed) if str(row.value).startswith("refused: ")
    }
    assert found == {name: f"refused: {reason}" for name, reason in refused.items()}


@pytest.mark.parametrize(
    ("module", "settings", "problem"),
    [
        (ch16_load_balance, {"stages": "3"}, "fast_layers=4 on stages=3: expected a multiple of 3"),
        (
            ch16_load_balance,
            {"stages": "20", "micro_batches": "40", "fast_layers": "40"},
            "80 layers on stages=20 split in .* ways; expected 1 to 100,000",
        ),
        (ch16_load_balance, {"fast_layers": "1000000000"}, "fast_layers=1000000000: expected 1,000 at most"),
        (
            ch16_schedules,
            dict.fromkeys(("forward_s", "input_backward_s", "weight_s"), "0"),
            "forward_s_and_backward_s=0.0: expected a number above 0",
        ),
        (
            ch16_schedules,
            {"forward_s": "1e308", "weight_s": "1e308"},
            "forward_s_and_backward_s=inf: expected a finite number",
        ),
        (
            ch16_schedules,
            {"stages": "1", "micro_batches": "1", "forward_s": "1e307"},
            "the length of the step overflows a float",
        ),
        (ch16_printed_schedules, {"stages": "1"}, "stages=1: expected 2 or above"),
        (ch16_zero_bubble, {"input_backward": "0"}, "input_backward=0.0: expected a number above 0"),
        (ch16_interleaving, {"micro_batches": "7"}, "expected a multiple of 16 micro-batches"),
        (ch16_interleaving, {"stages": "1"}, "stages=1: expected 2 or above"),
        (ch31a_dualpipe, {"stages": "5"}, "32 micro-batches on 5 stages; expected even numbers"),
    ],
)
def test_sizes_that_a_question_cannot_take_are_refused(module, settings, problem):
    with pytest.raises(UsageError, match=problem):
        answer(module.EXPERIMENT, settings)
