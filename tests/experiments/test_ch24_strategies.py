"""The strategies of Chapter 24 in numbers."""

from lab.experiments import ch24_strategies
from lab.experiments.ch24_strategies import Assumed
from lab.harness.question import answer


def test_zero_3_on_8_devices_holds_a_quarter_of_data_parallelism_and_sends_1_4_times_as_much():
    values = {row.what: row.value for row in answer(ch24_strategies.EXPERIMENT, {}).rows}
    held, sent = (
        values[f"ZeRO-3 8: {what}"] / values[f"DP 8: {what}"]
        for what in ("held by a device", "sent by a device a step")
    )
    assert (round(held, 2), round(sent, 2)) == (0.23, 1.43)


def test_the_least_stands_first_and_what_is_left_out_says_why():
    rows = answer(ch24_strategies.EXPERIMENT, {}).rows
    held = [row.value for row in rows if row.what.endswith(": held by a device")]
    assert held == sorted(held) and len(held) == len(Assumed().lattice.points)
    last = rows[-1]
    assert last.what.startswith("left out: EP 8, DP 4 x EP 2") and "set experts to a multiple" in last.value
