"""`lab schema`: the kept schemas are those of the types, what commands print fits them, and no key of before is gone."""

import json
from pathlib import Path

import pytest

from lab.cli.schema import described as every_schema
from lab.cli.schema import schema_text
from tests.json_keys import SCHEMAS, described, printed, schema_of, valid
from tests.paths import ROOT

NAMES = [each.name for each in every_schema()]
BEFORE = [line.split(" ", 1) for line in (ROOT / "tests/data/json_keys.txt").read_text().splitlines()]
"""Keys that commands printed, and that kept records have, at commit 8f3bb4f: the name of the schema, and a path."""
RECORDS = sorted((ROOT / "results").glob("*.json"))
OPTIONAL = ("lower_bound", "parts[].")
"""Keys that only some ledgers have."""

STEP = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def build(mesh):
    def step(w_DF, x_BD):
        def body(x_BD, _):
            return jax.lax.with_sharding_constraint(jnp.tanh(x_BD @ w_DF), NamedSharding(mesh, P("data"))), None
        return jax.lax.scan(body, x_BD, length=3)[0].sum()

    w_DF = jax.ShapeDtypeStruct((64, 64), jnp.float32, sharding=NamedSharding(mesh, P("data", "tensor")))
    x_BD = jax.ShapeDtypeStruct((16, 64), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    return jax.jit(jax.value_and_grad(step)), (w_DF, x_BD)
"""


def before(name: str) -> set[str]:
    return {path for of, path in BEFORE if of == name}


@pytest.mark.parametrize("of", every_schema(), ids=NAMES)
def test_the_kept_schema_is_that_of_the_type(of):
    kept = SCHEMAS / f"{of.name}.json"
    assert kept.read_text() == schema_text(of) + "\n", f"lab schema {of.name} > {kept.relative_to(ROOT)} writes it anew"


def test_no_schema_is_kept_that_nothing_prints():
    assert {path.stem for path in SCHEMAS.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_of_before_is_still_described(name):
    assert sorted(before(name) - described(schema_of(name))) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_kept_record_fits_the_schema_that_it_names(path):
    text = path.read_text()
    valid(json.loads(text)["schema"].split("/")[1], text)


def keys(name: str, *texts: str) -> set[str]:
    """Of what was printed, once it fits the schema."""
    known = described(schema_of(name))
    return {key for text in texts for key in printed(valid(name, text), known)}


def lost(name: str, found: set[str]) -> list[str]:
    return sorted(key for key in before(name) - found if not any(one in key for one in OPTIONAL))


@pytest.mark.compiles
def test_what_inspect_and_diff_print_fits_and_has_every_key_of_before(lab):
    Path("step.py").write_text(STEP)
    ledgers = []
    for mesh in ("data=4,tensor=2", "data=2,tensor=4"):
        answer = lab("inspect", "step.py:build", "--mesh", mesh, "--json")
        ledgers.append(answer.out)
        Path(f"{mesh}.json").write_text(answer.out)
    assert lost("ledger", keys("ledger", *ledgers)) == []
    kinds = json.loads(ledgers[0])["note_kinds"]
    assert kinds == ["not_scattered_by_cpu", "weights_gathered_again", "loops_counted_once"]
    answer = lab("diff", "data=4,tensor=2.json", "data=2,tensor=4.json", "--json")
    assert lost("diff", keys("diff", answer.out)) == []


@pytest.mark.compiles
@pytest.mark.parametrize("name", ["targets", "list", "plot"])
def test_what_lists_print_fits_and_has_every_key_of_before(lab, name):
    assert lost(name, keys(name, lab(name, "--json").out)) == []


@pytest.mark.slow
def test_what_the_pages_of_the_book_print_fits_and_has_every_key_of_before(lab):
    pages = (
        [],
        ["19"],
        ["ch19.model_state"],
        ["ch19.model_state", "--set", "parameters=70B"],
        ["ch19.model_state", "--set", "parameters=7B,70B"],
        ["--errata"],
        ["--coverage"],
    )
    assert lost("book", keys("book", *(lab("book", *page, "--json").out for page in pages))) == []


def test_what_explain_prints_fits(lab):
    for page in ([], ["reduced_twice"], ["X7"]):
        valid("explanation", lab("explain", *page, "--json").out)


def test_a_key_more_is_no_fault_and_a_key_less_is_one():
    saved = json.loads((ROOT / "tests/data/saved/ledger.json").read_text())
    valid("ledger", json.dumps(saved | {"new": 1}))
    with pytest.raises(AssertionError, match="'transfers' is a required property"):
        valid("ledger", json.dumps({key: value for key, value in saved.items() if key != "transfers"}))


def test_a_schema_is_found_by_the_name_of_its_command_too(lab):
    assert lab("schema", "inspect").out == lab("schema", "ledger").out
    assert lab("schema", "verify").out == lab("schema", "run").out


def test_schemas_are_listed_and_an_unknown_one_is_refused(lab):
    assert [row["name"] for row in json.loads(lab("schema", "--json").out)] == NAMES
    assert json.loads(lab("schema", "ledger").out) == schema_of("ledger")
    answer = lab("schema", "ledgers")
    assert (answer.status, answer.out) == (2, "") and "did you mean ledger?" in answer.err
