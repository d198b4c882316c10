"""A program for a kind of kernel is a chain of as many calls as it says, each after the one before."""

import jax
import jax.numpy as jnp
import pytest

from lab.core.codec import from_json, to_json
from lab.hlo.kernels import Does, Kernel
from lab.measure.bench import card, kernel_times
from lab.measure.bench.kernel_programs import families
from lab.measure.bench.kernel_times import Array, Program, lowered, observed
from lab.measure.rates.table import Basis, ChipRates, Source
from lab.report.rates import rates_text

pytestmark = pytest.mark.compiles
DEVICE = jax.devices("cpu")[0]
ROWS = Program("sums", lambda x: jnp.sum(x, -1), (Array((64, 64), "float32"),), call_s=1e-4)
SOURCE = Source(Basis.MEASURED, "a test", "", "")


@pytest.fixture(autouse=True)
def few_numbers(monkeypatch):
    monkeypatch.setattr(kernel_times, "BASE", 1 << 14)
    kernel_times._base.cache_clear()
    yield
    kernel_times._base.cache_clear()


def test_every_call_of_a_chain_is_compiled():
    dots = Program("dots", jnp.dot, (Array((64, 64), "float32"),) * 2, call_s=1e-4)
    assert lowered(dots, DEVICE).compile().as_text().count(" dot(") == dots.calls == 8


def test_a_chain_changes_one_element_and_takes_its_array_over():
    text = lowered(ROWS, DEVICE).compile().as_text()
    assert "input_output_alias={ {}: (0, {}, may-alias) }" in text.splitlines()[0]
    x = jnp.arange(64.0 * 64).reshape(64, 64) + 3
    (after,) = lowered(ROWS, DEVICE).compile()(x + 0)
    assert int((after != x).sum()) == 1


def test_what_is_timed_took_time_and_says_what_ran():
    (one,) = observed([ROWS], DEVICE)
    assert one.seconds > 0 and not one.why_not
    assert any(isinstance(step, Kernel) for step in one.steps)


def test_a_program_that_cannot_be_compiled_does_not_end_the_others():
    broken = Program("broken", lambda x: x @ x, (Array((3, 4), "float32"),))
    found = list(observed([broken, ROWS], DEVICE))
    assert found[0].why_not and not found[0].seconds
    assert found[1].seconds > 0


def test_programs_have_names_of_their_own():
    names = [program.name for _, programs in families() for program in programs]
    assert len(names) == len(set(names))


def test_kinds_of_kernels_are_seen_in_the_text_that_ran():
    sort = Program("sort", lambda x: jnp.sort(x, -1), (Array((64, 64), "float32"),), call_s=1e-3, alone=True)
    (one,) = observed([sort], DEVICE)
    assert Does.SORT in {step.does for step in one.steps if isinstance(step, Kernel)}


def test_a_card_has_rates_of_the_kinds_that_ran():
    memory = [
        Program(f"memory {size}", lambda x: x + 1, (Array((size,), "float32"),), call_s=1e-5, carries=1)
        for size in (1 << 8, 1 << 12, 1 << 14)
    ]
    sorts = [
        Program(f"sort {size}", lambda x: jnp.sort(x, -1), (Array((size, 64), "float32"),), call_s=1e-3, alone=True)
        for size in (256, 1024, 2048)
    ]
    broken = Program("broken", lambda x: x @ x, (Array((3, 4), "float32"),))
    found = card.measured("h200", DEVICE, 4, SOURCE, [("memory", memory), ("sorts", [*sorts, broken])])
    assert from_json(ChipRates, to_json(found.rates)) == found.rates
    assert [work.does for work in found.rates.work] == [Does.SORT]
    assert len(found.left_out) == 1 and found.left_out[0].startswith("broken: ")
    assert "sort (short rows)" in rates_text(found)
