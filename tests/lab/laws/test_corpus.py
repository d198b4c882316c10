"""Laws of forty programs, each held against four sizes; `python -m tests.lab.laws.sweep` prints a line of each."""

import pytest

from lab.laws.question import answered
from lab.meshes import plugins
from tests.lab.laws.corpus import BY_RATIO, EXPERIMENTS, ON_TPUS, OWN, REFUSED
from tests.long_tests import long

pytestmark = [pytest.mark.compiles, long]
LEAST = 0.95
"""Of all wire bytes, under exact laws."""


@pytest.mark.parametrize(
    "asked",
    [
        *OWN,
        *EXPERIMENTS,
        *(
            pytest.param(asked, marks=pytest.mark.skipif(not plugins.installed("tpu"), reason="no libtpu"))
            for asked in ON_TPUS
        ),
    ],
    ids=lambda asked: f"{asked.source.rpartition('/')[2]}-{asked.style}-{asked.target.platform}",
)
def test_no_law_is_wrong_at_sizes_that_it_was_not_derived_from(asked):
    law = answered(asked)
    assert [check.differences for check in law.checks] == [()] * 4
    assert all(check.under_law >= LEAST * check.wire_bytes for check in law.checks)


def test_what_the_data_decides_is_refused_by_name():
    law = answered(REFUSED)
    reasons = {each.reason for each in law.refused if each.kind}
    assert reasons == {"how often it runs depends on the data"}


def test_a_choice_by_the_ratio_of_two_arrays_is_refused_by_name():
    law = answered(BY_RATIO)
    assert all(check.is_equal for check in law.checks)
    assert {each.kind for each in law.refused if each.kind} >= {"all_reduce", "all_gather"}
