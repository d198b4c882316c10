"""Laws of forty programs, each held against four sizes; `python -m tests.lab.laws.sweep` prints a row of each."""

from functools import cache

import pytest

from lab.laws.question import answered
from lab.meshes import plugins
from tests.lab.laws.corpus import BY_RATIO, CASES, EXPERIMENTS, ON_TPUS, REFUSED, USERS
from tests.long_tests import long

pytestmark = [pytest.mark.compiles, pytest.mark.xdist_group("corpus of laws"), long]
LEAST = 0.95
"""Of all wire bytes, under exact laws."""
PROGRAMS = (*EXPERIMENTS, *CASES, *USERS)
SETTLED = {"exact", "explained"}


law = cache(answered)
"""Of a program of the corpus; derived once."""


def title(asked):
    return f"{asked.source.rpartition('/')[2]}-{asked.style}-{asked.target.platform}"


def test_the_corpus_has_layouts_in_two_styles_ten_of_the_cases_and_five_programs_of_users():
    styles = [(asked.source, asked.style) for asked in EXPERIMENTS]
    both = {name for name, style in styles if style == "declared"} & {
        name for name, style in styles if style != "declared"
    }
    assert len(both) >= 10 and len(CASES) >= 10 and len(USERS) >= 5
    assert len({(asked.source, asked.style) for asked in PROGRAMS}) >= 40


@pytest.mark.parametrize(
    "asked",
    [
        *PROGRAMS,
        *(
            pytest.param(asked, marks=pytest.mark.skipif(not plugins.installed("tpu"), reason="no libtpu"))
            for asked in ON_TPUS
        ),
    ],
    ids=title,
)
def test_no_law_is_wrong_at_sizes_that_it_was_not_derived_from(asked):
    found = law(asked)
    assert [check.differences for check in found.checks] == [()] * 4
    assert all(check.under_law >= LEAST * check.wire_bytes for check in found.checks)


@pytest.mark.parametrize("asked", EXPERIMENTS, ids=title)
def test_the_laws_of_layouts_settle_with_theory_term_by_term(asked):
    settled = law(asked).theory.settled
    assert len(settled) == 5
    assert {(one.verdict, one.findings) for one in settled} <= {(verdict, ()) for verdict in SETTLED}


def test_what_the_data_decides_is_refused_by_name():
    reasons = {each.reason for each in law(REFUSED).refused if each.kind}
    assert reasons == {"how often it runs depends on the data"}


def test_a_choice_by_the_ratio_of_two_arrays_is_refused_by_name():
    found = law(BY_RATIO)
    assert all(check.is_equal for check in found.checks)
    assert {each.kind for each in found.refused if each.kind} >= {"all_reduce", "all_gather"}


def test_forty_programs_have_laws_of_nearly_all_wire_bytes_and_none_is_wrong_where_it_was_not_derived():
    """Those without a law among them."""
    laws = [law(asked) for asked in (*PROGRAMS, BY_RATIO, REFUSED)]
    checks = [check for each in laws for check in each.checks]
    assert len(laws) >= 40 and min(len(each.checks) for each in laws) >= 3
    assert [check.differences for check in checks if not check.is_equal] == []
    shares = [check.under_law / check.wire_bytes for check in checks if check.wire_bytes]
    assert sum(shares) >= LEAST * len(shares)
    # Nothing that has no law is without a name and a reason.
    short = [each for each in laws if any(check.under_law < check.wire_bytes for check in each.checks)]
    assert all(any(one.kind and one.what and one.reason for one in each.refused) for each in short)
