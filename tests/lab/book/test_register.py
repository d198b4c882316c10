"""Every worked number of the register, as numbers, as arrays and over a million points; and that the register is
whole."""

import inspect
import re
import sys
from contextlib import suppress

import numpy as np
import pytest

from lab.book.register import (
    Formula,
    LeftOut,
    Part,
    Worked,
    evaluate,
    load,
    load_part,
    part_names,
    read_entry,
)
from tests.paths import ROOT, SHARED

CATALOGUE = SHARED / "formulas"
POINTS = 1_000_000


def readable() -> list[Part]:
    """Tables that can be read; the others fail a test of their own."""
    found = []
    for name in part_names():
        with suppress(ValueError):
            found.append(load_part(name))
    return found


def formulas() -> list[Formula]:
    return [formula for part in readable() for formula in part.formulas]


def worked() -> list:
    cases = [(formula, number, i) for formula in formulas() for i, number in enumerate(formula.worked)]
    return [pytest.param(formula, number, id=f"{formula.id}-{i}") for formula, number, i in cases]


def sweepable(number: Worked) -> bool:
    return not isinstance(number.gives, (str, bool, list)) and any(map(is_number, number.arguments.values()))


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def one_a_function() -> list:
    """The first worked number of each function that a sweep can take."""
    firsts = {
        f.function: (f, number)
        for f in reversed(formulas())
        for number in reversed(f.worked)
        if f.sweeps and sweepable(number)
    }
    return [pytest.param(*first, id=first[0].function) for first in firsts.values()]


def filled(number: Worked, points: int) -> dict:
    """Its arguments with every number as an array."""
    return {name: np.full(points, value) if is_number(value) else value for name, value in number.arguments.items()}


@pytest.mark.parametrize("name", part_names())
def test_every_table_can_be_read(name):
    load_part(name)


def test_no_id_is_in_the_register_twice():
    load()


def test_an_id_that_is_in_two_tables_is_refused(monkeypatch):
    first, *_ = part_names()
    monkeypatch.setattr("lab.book.register.part_names", lambda: [first, first])
    with pytest.raises(ValueError, match=rf"^{re.escape(load_part(first).ids[0])}, .*: in the register twice$"):
        load()


@pytest.mark.slow
@pytest.mark.parametrize("formula, number", worked())
def test_worked_number(formula, number):
    value = evaluate(formula, number.arguments)
    exact = isinstance(number.gives, (str, bool))
    found = value if exact else np.asarray(value, dtype=float) * number.times
    assert found == (number.gives if exact else pytest.approx(np.asarray(number.gives, dtype=float), rel=number.rel))


@pytest.mark.slow
@pytest.mark.parametrize(
    "formula, number", [case for case in worked() if case.values[0].sweeps and sweepable(case.values[1])]
)
def test_arrays_give_what_numbers_give(formula, number):
    values = np.asarray(formula.call(**filled(number, 3)))
    assert values.dtype != object
    assert values * number.times == pytest.approx(np.full(values.shape, number.gives, dtype=float), rel=number.rel)


# What may be below zero: exponents, losses, logarithms, weights, gradients, and times that a model predicts.
SIGNED = {"exponent", "loss", "critical_loss", "weight", "gradient", "best_s", "mean_s"}


# What is counted: half of one is not to be had.
COUNTED = {
    "ranks", "stages", "replicas", "shards", "hosts", "devices", "nodes", "pipe", "tensor", "context", "expert",
    "chunks", "tensor_ranks", "sequence_ranks", "pipe_now", "ranks_before", "ranks_now", "ranks_a_node",
    "ranks_per_domain",
}  # fmt: skip


def numbers_taken() -> list:
    """Each number that each function takes, with arguments that it takes."""
    firsts = {f.function: (f, number) for f in reversed(formulas()) for number in reversed(f.worked) if f.function}
    taken = [
        (f, {**{name: given for name, given in f.arguments.items() if is_number(given)}, **number.arguments})
        for f, number in firsts.values()
    ]
    return [
        pytest.param(f, given, name, id=f"{f.function}-{name}")
        for f, given in taken
        for name in given
        if is_number(given[name])
    ]


@pytest.mark.parametrize(
    "formula, given, name",
    [case for case in numbers_taken() if case.values[2] in COUNTED and case.values[1][case.values[2]] < np.inf],
)
def test_a_half_of_what_is_counted_is_refused_by_the_name_of_its_argument(formula, given, name):
    with pytest.raises(ValueError, match=rf"\b{name}={given[name] + 0.5}\b"):
        formula.call(**{**given, name: given[name] + 0.5})


@pytest.mark.slow
@pytest.mark.parametrize("formula, given, name", [case for case in numbers_taken() if case.values[2] not in SIGNED])
def test_minus_one_is_refused_by_the_name_of_its_argument(formula, given, name):
    with pytest.raises(ValueError, match=rf"\b{name}=-1\b"):
        formula.call(**{**given, name: -1})


@pytest.mark.slow
@pytest.mark.parametrize("formula, number", one_a_function())
def test_a_million_points_take_one_numpy_pass(formula, number):
    """Calls of functions are counted, Python's and C's: one pass makes as many of them for a million points as for
    one."""
    arguments, calls = filled(number, POINTS), 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        values = formula.call(**arguments)
    finally:
        sys.setprofile(None)
    assert calls < 1000
    assert np.shape(values) == (POINTS,)


def is_there(evidence: str) -> bool:
    """A file of the project, and in it the test or the claim after `::`."""
    path, _, name = evidence.partition("::")
    written = f'"{name}"' if path.startswith("experiments/") else f"def {name}("
    return (ROOT / path).is_file() and (not name or written in (ROOT / path).read_text())


@pytest.mark.parametrize("name", part_names())
def test_evidence_is_a_file_of_the_project_and_a_test_or_a_claim_in_it(name):
    named = {
        (formula.id, evidence)
        for formula in load_part(name).formulas
        for evidence in formula.evidence
        if formula.evidence != (formula.kind,)
    }
    assert [(id, evidence) for id, evidence in named if not is_there(evidence)] == []


def test_a_table_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.book.register.files", lambda _package: tmp_path)
    for text, problem in (
        ("[[formula]\n", "line 1"),
        ("formula = 3", "int"),
        ("[[formula]]\nid = 'ch12.ring'", "ch12.ring"),
        ("[[chapter]]", "unknown chapter"),
    ):
        (tmp_path / "part9.toml").write_text(text)
        load_part.cache_clear()
        with pytest.raises(ValueError, match=rf"^part9\.toml: .*{problem}"):
            load_part("part9")


@pytest.mark.parametrize("name", part_names())
def test_a_function_has_a_docstring_and_no_letter_that_is_another_argument(name):
    for formula in load_part(name).formulas:
        if formula.function:
            assert inspect.getdoc(formula.call), formula.function
            assert not [
                letter for letter, meant in formula.symbols.items() if letter in formula.arguments and letter != meant
            ]


def catalogue_ids(text: str) -> set[str]:
    """What stands in bold or in a heading, and is not merely mentioned: `ch12.ring`, `app.qr.sanity`,
    `ml.04_young_daly`, `A7`."""
    heads = [" ".join(head) for head in re.findall(r"\*\*(.+?)\*\*|^#{3,} (.+)$", text, re.M)]
    rows = re.findall(r"^\| (A\d+) \|", text, re.M)
    named = r"^A\d+\b|\b(?:ch\d+a?|app|ml)\.\d*[A-Za-z_]\w*(?:\.\w+)?"
    return {*rows, *(id for head in heads for id in re.findall(named, head.strip()))}


def test_ids_of_a_catalogue_are_those_in_bold_in_headings_and_in_rows_and_not_those_mentioned():
    text = """### A7 and `ch12.ring`: rings
**`ch13.levels`, app.qr.sanity** as in ch14.mentioned
| A9 | a row |
- **no id** but ml.04_mentioned, and **ml.22_chances**
"""
    assert catalogue_ids(text) == {"A7", "A9", "ch12.ring", "ch13.levels", "app.qr.sanity", "ml.22_chances"}


OWN = ("alg.", "law.")  # Algorithms and laws of the lab, which no catalogue has.


def entries() -> list[Formula | LeftOut]:
    return [entry for part in readable() for entry in (*part.formulas, *part.left_out)]


@pytest.mark.parametrize("style", ["**{}**", "### {}"])
def test_every_id_of_the_register_is_one_that_a_catalogue_can_have(style):
    ids = [entry.id for entry in entries() if not entry.id.startswith(OWN)]
    assert [id for id in ids if catalogue_ids(style.format(id)) != {id}] == []


def test_an_id_names_the_chapter_that_its_entry_says():
    chapters = {formula.id: formula.chapter for formula in formulas()}
    numbered = {id: found[1] for id in chapters if (found := re.match(r"ch0*(\d+a?)\.", id))}
    assert numbered and {id: chapters[id] for id in numbered} == numbered


def test_what_is_left_out_has_a_reason():
    left_out = [entry for part in readable() for entry in part.left_out]
    assert left_out and [entry.id for entry in left_out if not entry.reason.strip()] == []


@pytest.mark.parametrize("file", ["parts-1-3.md", "parts-4-5.md", "parts-6-8.md", "second-source.md"])
def test_every_entry_of_the_catalogue_is_in_the_register_or_left_out_with_a_reason(file):
    if not (CATALOGUE / file).is_file():
        pytest.skip("the catalogue of the book's formulas, ../shared/formulas, is absent")
    missing = catalogue_ids((CATALOGUE / file).read_text()) - {entry.id for entry in entries()}
    assert not missing, f"{len(missing)} missing: {', '.join(sorted(missing))}"


ENTRY = {
    "id": "ch12.ring",
    "chapter": "12",
    "title": "ring all-reduce",
    "prints": "2(P-1)(alpha + n/(P beta))",
    "verdict": "right",
    "function": "lab.book.collectives:ring_all_reduce_s",
    "symbols": {"p": "ranks", "n": "payload_bytes"},
    "kind": "calculated",
    "evidence": ["calculated"],
}
RING = {"ranks": 2, "payload_bytes": 2, "alpha_s": 1, "bytes_per_s": 1}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"colour": "red"}, "ch12.ring: unknown colour"),
        ({"verdict": "fine"}, "ch12.ring: verdict 'fine'"),
        ({"kind": "guessed"}, "kind 'guessed'"),
        ({"verdict": "wrong", "right": "n"}, "without reason"),
        ({"severity": 2.0}, "severity 2.0 with verdict 'right'"),
        ({"fails": True}, "fails with verdict 'right'"),
        ({"kind": "open", "evidence": ["open"]}, "open, but without the reason"),
        ({"kind": "published", "evidence": ["published"]}, "published, but without the reason"),
        ({"evidence": []}, "kind 'calculated' with evidence"),
        ({"kind": "compiled"}, "kind 'compiled' with evidence"),
        ({"evidence": ["calculated", "README.md"]}, "kind 'calculated' with evidence"),
        ({"function": "lab.book.collectives:ring"}, "no function 'lab.book.collectives:ring'"),
        ({"function": "lab.book.rings:ring"}, "no function 'lab.book.rings:ring'"),
        ({"symbols": {"p": "rank"}}, "rank is no argument of lab.book.collectives:ring_all_reduce_s"),
        ({"worked": [{"set": {"size": 8}, "gives": 1}]}, "size is no argument"),
        ({"worked": [{"set": {}, "gives": 1, "tolerance": 1}]}, "worked: unknown tolerance"),
        ({"worked": [{"set": {}}]}, "worked: .*gives"),
    ],
)
def test_an_entry_that_says_too_much_or_too_little_is_refused(change, problem):
    read_entry(ENTRY)
    with pytest.raises(ValueError, match=problem):
        read_entry(ENTRY | change)


def test_letters_and_names_of_arguments_give_the_same():
    ring = read_entry(ENTRY)
    assert evaluate(ring, RING) == evaluate(ring, {"p": 2, "n": 2, "alpha_s": 1, "bytes_per_s": 1}) == 4


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rank": 2}, "no argument 'rank'; expected ranks"),
        ({"payload_bits": 2}, "no argument 'payload_bits'; expected payload_bytes"),
        ({"ranks": 2, "p": 2}, "ranks set twice"),
        ({"p": 2, "n": 2}, r"alpha_s, bytes_per_s not given; it takes payload_bytes \(n\), ranks \(p\)"),
        (RING | {"ranks": 0}, "ranks=0: expected a whole number above 0"),
        (RING | {"ranks": 2.5}, "ranks=2.5: expected a whole number above 0"),
    ],
)
def test_unusable_settings_are_refused_by_name(settings, problem):
    with pytest.raises(ValueError, match=problem):
        evaluate(read_entry(ENTRY), settings)


def test_a_statement_has_nothing_to_set():
    statement = {key: value for key, value in ENTRY.items() if key not in ("function", "symbols")}
    with pytest.raises(ValueError, match="without a function"):
        evaluate(read_entry(statement), {})
