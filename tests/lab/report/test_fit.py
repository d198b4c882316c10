"""What `lab fit` prints, of tries that are made up."""

from dataclasses import replace
from fractions import Fraction

from lab.core.room import Room
from lab.harness.experiment import Run
from lab.harness.fit.cost import Cost
from lab.harness.fit.fitting import Fitting
from lab.harness.fit.levers import Change, Lever
from lab.harness.fit.search import Compiled, Try
from lab.harness.registry import load
from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target
from lab.report.fit import fit_text

GB = 10**9
AXES = Axes.parse("data=16")
FULL = Change(Lever.REMAT, (("remat", "full"),))
SHARDS = Change(Lever.SHARDING, (("zero", "0"),), Axes.parse("fsdp=16"))
ASKED = Try((), Cost(), 90 * GB, Compiled(100 * GB, 4_000, Fraction(10 * GB), "exact"))
SKIPPED = Try((SHARDS,), Cost(seconds=0.1), 80 * GB)
ENOUGH = Try(
    (FULL, SHARDS),
    Cost(900, Fraction(GB), 0, 0.25),
    58 * GB,
    Compiled(60 * GB, 5_000, Fraction(12 * GB), "explained"),
)


def fitting(*tries):
    run = Run(load("ch24_3d"), parse_target("gpu:h100:2x8"), "explicit")
    room = Room("a card", 85 * GB, 0.75)
    return Fitting(
        run,
        AXES,
        {"layers": "4", "zero": "1"},
        room,
        tries,
        {Lever.STATE_ON_HOST: "nothing moves"},
        {"arguments": 50 * GB},
    )


def test_a_step_that_fits_is_one_line_with_its_numbers():
    small = replace(ASKED, compiled=Compiled(20 * GB, verdict="exact"))
    text = fit_text(fitting(small))
    assert text == (
        "ch24_3d explicit on gpu:h100:2x8, mesh data=16: it fits: the peak of 20 GB is 31.4 % of 63.75 GB: by default JAX "
        "preallocates 75 % of the chip's memory (a card, 85 GB)"
    )


def test_every_compiled_try_is_a_row_with_what_it_adds_as_compiled():
    rows = [line.split() for line in fit_text(fitting(ASKED, SKIPPED, ENOUGH)).splitlines()]
    asked, enough = (
        next(row for row in rows if row[:2] == start) for start in (["as", "asked"], ["remat=full,", "mesh"])
    )
    assert " ".join(asked[2:]) == "100 GB 90 GB 157 % no 0 0 0 0 exact"
    assert " ".join(enough[2:]) == "fsdp=16 zero=0 60 GB 58 GB 94.1 % yes +1 kFLOP +2 GB 0 +250 ms explained"
    assert not any(row[:2] == ["mesh", "fsdp=16"] for row in rows)


def test_fewer_flops_than_as_asked_are_xlas_own_only_where_it_is_told_which_products_it_ran_again():
    fewer = replace(ENOUGH, compiled=Compiled(60 * GB, 3_500, Fraction(GB), "exact"))
    said = "fewer FLOPs than as asked: XLA runs products again by itself in a step that has no room (G10)"
    assert said not in fit_text(fitting(ASKED, fewer))
    compiled = Compiled(100 * GB, 4_000, Fraction(10 * GB), "exact", flops_rematerialized=1_000)
    assert said in fit_text(fitting(replace(ASKED, compiled=compiled), fewer))


def test_the_answer_comes_with_the_command_that_runs_it():
    text = fit_text(fitting(ASKED, SKIPPED, ENOUGH))
    assert "no offload of state: nothing moves" in text
    assert "1 cheaper combination not compiled: peaks of 80 GB by theory" in text
    assert text.endswith(
        "\nwith remat=full, mesh fsdp=16 zero=0 it fits: the peak of 60 GB is 94.1 % of 63.75 GB: by default JAX preallocates 75 % "
        "of the chip's memory (a card, 85 GB)\n  lab run ch24_3d --target gpu:h100:2x8 --style explicit --mesh fsdp=16 "
        "--set layers=4 --set zero=0 --set remat=full"
    )


def test_where_nothing_fits_it_says_how_much_is_missing_and_what_is_largest():
    found = fitting(ASKED, replace(ENOUGH, compiled=Compiled(70 * GB)))
    assert fit_text(found).endswith(
        "nothing made it fit: the smallest peak, with remat=full, mesh fsdp=16 zero=0, is 70 GB, 6.25 GB more than the "
        "63.75 GB that JAX takes; the largest of it by theory: arguments 50 GB"
    )
    assert found.answer is None and found.json_object().missing_bytes == 6_250_000_000


def test_of_a_refused_step_what_is_added_is_theory():
    refused = replace(ASKED, compiled=Compiled(None, failure="RESOURCE_EXHAUSTED: 46 GB", verdict="failed"))
    text = fit_text(fitting(refused, ENOUGH))
    assert "XLA refuses it; theory's terms are 90 GB, and the chip has 63.75 GB\n" in text
    assert "as asked: RESOURCE_EXHAUSTED: 46 GB\nwhat is added is by theory, since XLA refuses" in text
    assert "+900 FLOP" in text and "+1 GB" in text


def test_where_xla_refuses_all_what_is_missing_is_theory():
    refused = Compiled(None, failure="RESOURCE_EXHAUSTED", verdict="failed")
    text = fit_text(fitting(replace(ASKED, compiled=refused), replace(ENOUGH, predicted=70 * GB, compiled=refused)))
    assert (
        "nothing made it fit: XLA refuses every try: the smallest peak, by theory, with remat=full, mesh fsdp=16 "
        "zero=0, is 70 GB, 6.25 GB more than the 63.75 GB that JAX takes; the largest" in text
    )
