"""`lab explain`: a page for each kind of finding and each compiler behaviour."""

import json
from pathlib import Path

import pytest

from lab.diagnosis import KINDS, examples
from lab.settle import CATALOGUE, NOTES


def test_all_are_listed_in_a_line_each(lab):
    answer = lab("explain")
    names = [line.split()[0] for line in answer.out.splitlines() if line and " " in line]
    ids = {entry.id for entry in (*CATALOGUE, *NOTES)}
    assert answer.status == 0 and {kind.name for kind in KINDS} | ids <= set(names)
    listed = json.loads(lab("explain", "--json").out)
    assert [row["name"] for row in listed["findings"]] == [kind.name for kind in KINDS]
    assert {row["id"] for row in listed["behaviours"]} == ids
    assert {row["id"] for row in listed["behaviours"] if row["rule"]} == {behaviour.id for behaviour in CATALOGUE}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_finding_has_a_page_with_the_program_that_the_tests_compile(lab, kind):
    program = (Path(examples.__file__).parent / f"{kind.name}.py").read_text()
    page = lab("explain", kind.name).out
    assert page.startswith(f"{kind.name}: {kind.what}\n\nWhat it costs: {kind.costs}\n\nWhat to do: {kind.cure}\n\n")
    assert "\n".join(f"    {line}".rstrip() for line in program.splitlines()) in page
    assert f"lab inspect lab.diagnosis.examples.{kind.name}:build --mesh {kind.mesh}" in page
    assert json.loads(lab("explain", kind.name, "--json").out)["example"] == program


@pytest.mark.compiles
def test_the_command_of_a_page_finds_what_the_page_explains(lab):
    (command,) = [line for line in lab("explain", "reduced_twice").out.splitlines() if line.startswith("Try it: lab ")]
    answer = lab(*command.removeprefix("Try it: lab ").split(), "--fail-on", "reduced_twice")
    assert answer.status == 1 and "1 finding\n\n1. reduced_twice: " in answer.out


@pytest.mark.parametrize("behaviour", [*CATALOGUE, *NOTES], ids=lambda behaviour: behaviour.id)
def test_a_behaviour_has_a_page_with_its_condition(lab, behaviour):
    page = lab("explain", behaviour.id).out
    assert page.startswith(f"{behaviour.id}: {behaviour.effect}\n")
    assert behaviour.when and f"\nWhen: {behaviour.when}\n" in page
    assert f"\nCertainty: {behaviour.certainty}: " in page
    assert ("What to do: " in page) == bool(behaviour.remedy) and behaviour.remedy in page


def test_no_line_is_longer_than_columns_says(lab, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert max(map(len, (lab("explain").out + lab("explain", "T14").out).splitlines())) <= 100


def test_what_counts_as_predicted_is_said_of_behaviours_with_a_rule_alone(lab):
    assert "counts as predicted" in lab("explain", "X7").out and "counts as" not in lab("explain", "G1").out


def test_a_behaviour_that_does_not_happen_on_cpus_names_the_others(lab):
    assert "\nCompiler: GPU, TPU\n" in lab("explain", "X8").out and "\nCompiler: any\n" in lab("explain", "X7").out


def test_an_id_that_was_withdrawn_is_said_to_be(lab):
    assert lab("explain", "g8").err == "lab: G8 was withdrawn; lab explain lists the behaviours that are known\n"


def test_a_claim_of_the_book_is_told_where_it_is_explained(lab):
    answer = lab("explain", "ch28.ratio")
    assert (answer.status, answer.err) == (
        2,
        "lab: ch28.ratio is of the book; lab book ch28.ratio tells what it claims\n",
    )


def test_a_behaviour_that_a_rule_predicts_says_so_and_letters_may_be_small(lab):
    assert "\nRule: predicts what the compiler emits\n" in lab("explain", "x7").out
    assert json.loads(lab("explain", "T15", "--json").out)["rule"] == "recognises"
    assert json.loads(lab("explain", "G1", "--json").out)["rule"] is None


def test_a_misspelt_name_gets_close_ones(lab):
    answer = lab("explain", "reduced_twic")
    said = "lab: no kind of finding or compiler behaviour 'reduced_twic'; did you mean reduced_twice? (lab explain shows all)\n"
    assert (answer.status, answer.err) == (2, said)
