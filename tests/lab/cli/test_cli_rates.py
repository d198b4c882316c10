"""`lab bench rates` where there is no card."""

import pytest

from tests.lab.cli.test_cli import assert_refused


@pytest.mark.parametrize(
    "more, why",
    [
        (("all_reduce",), "expected only --save or --json"),
        (("--sizes", "1KiB"), "expected only --save or --json"),
        (("--target", "cpu:2"), "expected only --save or --json"),
        ((), "expected an attached GPU"),
    ],
)
def test_rates_are_of_one_attached_gpu(lab, more, why):
    assert_refused(lab("bench", "rates", *more), why)
