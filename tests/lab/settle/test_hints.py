"""What a prediction would have settled with: the rule and the provenance, where they were tried."""

import re
from dataclasses import replace

import pytest

from lab.core.ledger import Kind, Ledger, Provenance, Transfer
from lab.meshes.axes import Axes
from lab.report.verdicts import unsettled
from lab.settle import Context, Settlement, Status, Verdict, settle
from lab.settle.behaviours import emitted
from lab.settle.hints import _changes, _counts, change
from tests.lab.programs.strategies.layouts import LAYOUTS, SHAPE

CPU = Context("cpu", "declared", {"tensor": 4})
ENTER = Transfer(Kind.ALL_REDUCE, ("tensor",), 4, 2, "f32", 1024, scope="layers/attention/enter", phase="backward")


def settled(term: Transfer, *measured: Transfer, context: Context = CPU) -> Settlement:
    return settle(Ledger((term,), mesh=context.mesh), Ledger(measured, mesh=context.mesh), context)


def stated(hint: str) -> Provenance:
    """The provenance that a hint asks for."""
    return eval(re.search(r"Provenance\(.*\)$", hint)[0], {"Provenance": Provenance})


@pytest.mark.parametrize("rows", [(6,), (2, 4)], ids=["one row", "two rows, of which one is as predicted"])
def test_three_sums_for_one_are_said_to_need_three_partial_products(rows):
    measured = [replace(ENTER, executions=count, instruction=f"all-reduce.{count}") for count in rows]
    found = settled(ENTER, *measured)
    hint = "C3 would explain it if the prediction stated Provenance(partial_products=3)"
    assert (found.verdict, found.terms[0].hint) == (Verdict.REFUTED, hint)
    assert unsettled(found)[-1] == f"layers/attention/enter: {hint}"
    assert settled(replace(ENTER, provenance=stated(hint)), *measured).verdict is Verdict.EXPLAINED


@pytest.mark.parametrize(
    ("context", "measured"),
    [
        (CPU, (replace(ENTER, executions=6, payload_bytes=1023),)),
        (CPU, (ENTER, replace(ENTER, dtype="s32"))),
        (replace(CPU, style="explicit"), (replace(ENTER, executions=6),)),
        (CPU, (replace(ENTER, executions=6), replace(ENTER, payload_bytes=77))),
    ],
    ids=["another size", "another dtype", "another style", "only a part of what is left over"],
)
def test_what_no_provenance_explains_to_the_byte_has_no_hint(context, measured):
    found = settled(ENTER, *measured, context=context)
    assert (found.verdict, found.terms[0].hint) == (Verdict.REFUTED, None)


QUERY = Transfer(Kind.ALL_REDUCE, ("data",), 4, 8, "f32", 1024, scope="layers/attention/query", phase="backward")
KEY = replace(QUERY, scope="layers/attention/key")
GPU = Context("gpu", "declared", {"data": 4}, jax=(0, 10))


def without_names(executions: int) -> tuple[Transfer, ...]:
    """Stacks of four gradients, as X8 makes them, of which the text names no scope."""
    return (replace(QUERY, executions=executions, payload_bytes=4096, scope="", instruction="all-reduce.1"),)


def settled_terms(terms: tuple[Transfer, ...], measured: tuple[Transfer, ...], context: Context = GPU) -> Settlement:
    return settle(Ledger(terms, mesh=context.mesh), Ledger(measured, mesh=context.mesh), context)


@pytest.mark.parametrize(
    ("release", "executions", "said"),
    [((0, 10), 4, "iterations=4"), ((0, 11), 2, "iterations=4, repeats=2")],
    ids=["in each of two passes", "once for both"],
)
def test_terms_that_share_transfers_without_a_name_are_hinted_together(release, executions, said):
    context, measured = replace(GPU, jax=release), without_names(executions)
    found = settled_terms((QUERY, KEY), measured, context)
    hint = f"X8 would explain it if the prediction stated Provenance({said})"
    assert (found.verdict, [term.hint for term in found.terms]) == (Verdict.REFUTED, [hint, hint])
    following = tuple(replace(term, provenance=stated(hint)) for term in (QUERY, KEY))
    assert settled_terms(following, measured, context).verdict is Verdict.EXPLAINED


@pytest.mark.parametrize("terms", [(QUERY,), (QUERY, KEY)], ids=["one term", "two terms"])
def test_there_is_no_hint_that_would_leave_over_transfers_without_a_name_of_the_same_payload(terms):
    found = settled_terms(terms, without_names(2 * len(terms) + 1))
    assert (found.verdict, [term.hint for term in found.terms]) == (Verdict.REFUTED, [None] * len(terms))


def test_a_hint_with_which_the_run_would_be_refuted_all_the_same_is_not_given():
    other = replace(QUERY, dtype="s32", scope="loss", instruction="all-reduce.2")
    found = settled_terms((QUERY,), (*without_names(2), other))
    assert (found.verdict, found.terms[0].hint) == (Verdict.REFUTED, None)


def test_a_missing_transfer_is_not_said_to_be_saved():
    found = settled(ENTER)
    assert (found.terms[0].status, found.terms[0].hint) == (Status.MISSING, None)


@pytest.mark.parametrize(
    ("platform", "layout", "rules"),
    [
        ("cpu", "data x sequence", {"C3"}),
        ("cpu", "zero1", {"C3"}),
        ("gpu", "hybrid", {"X3", "X9, G6"}),
        ("gpu", "data", {"X9, G6", "X9"}),
        ("tpu", "zero3", {"X4", "X9"}),
    ],
)
def test_every_hint_about_a_layout_without_provenance_settles_its_term(platform, layout, rules):
    strategy, axes = LAYOUTS[layout][0], Axes.parse(LAYOUTS[layout][1])
    context, seen = Context(platform, "declared", axes.shape), set()
    for term in strategy.predict(replace(SHAPE, accumulation=2, tied=True, dtype="bf16"), axes).transfers:
        measured, _ = emitted(term, context)
        bare = replace(term, provenance=Provenance(made_in=term.provenance.made_in))
        if hint := settled(bare, *measured, context=context).terms[0].hint:
            complete = replace(stated(hint), made_in=term.provenance.made_in)
            again = settled(replace(bare, provenance=complete), *measured, context=context)
            assert again.verdict is Verdict.EXPLAINED, hint
            seen.add(hint.partition(" would")[0])
    assert rules <= seen


@pytest.mark.parametrize(
    ("there", "factors"),
    [
        # Three times as often, twice as large: 3 and 2; as large in 32 bits for 16 and in 16 for 32: 4; and products.
        ([(6, 2048)], (2, 3, 4, 6, 12)),
        ([(2, 6 * 1024)], (3, 6, 12)),
        ([(1, 1024)], (2, 4)),
        ([(2, 1024)], (2,)),
        # Rows of one size count together.
        ([(2, 1024), (8, 1024)], (2, 5, 10)),
        # No whole factor: 3/2 as often.
        ([(3, 1024)], (2, 3)),
        ([(2, 1024 * 2 * n) for n in range(1, 10)], (2, 3, 4, 5, 6, 7, 8, 9)),
    ],
)
def test_counts_are_whole_factors_of_executions_and_sizes_and_of_both_the_smallest_first(there, factors):
    found = tuple(
        replace(ENTER, executions=often, payload_bytes=size, instruction=f"{i}")
        for i, (often, size) in enumerate(there)
    )
    assert _counts(ENTER, found) == factors


def test_sums_over_each_axis_for_one_over_both_are_said_to_be_reduced_separately():
    context = Context("cpu", "declared", {"data": 2, "tensor": 4})
    norm = Transfer(Kind.ALL_REDUCE, ("data", "tensor"), 8, 1, "f32", 4, scope="norm", phase="update")
    measured = [replace(norm, axes=("data",), group_size=2), replace(norm, axes=("tensor",), group_size=4)]
    hint = settled(norm, *measured, context=context).terms[0].hint
    assert hint and stated(hint) == Provenance(reduced_separately_over=(("data",), ("tensor",)))


def test_two_fields_and_the_dtype_of_products_are_tried_together():
    tried = _changes(replace(ENTER, dtype="f32"), (replace(ENTER, executions=6),), replace(CPU, platform="gpu"))
    assert {len(change) for change in tried if "product" in change} >= {1, 2, 3}
    tried = _changes(replace(ENTER, dtype="bf16"), (replace(ENTER, executions=6),), replace(CPU, platform="gpu"))
    assert not [change for change in tried if "product" in change or len(change) > 2]


@pytest.mark.parametrize(("executions", "stated"), [(2, {"iterations": 4}), (3, None)])
def test_what_the_text_gives_no_name_has_to_be_explained_to_the_last_execution(executions, stated):
    assert change((QUERY,), (), without_names(executions), GPU) == stated
