"""JSON of dataclasses, and back."""

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET, UnsetType

from lab.core.codec import from_json, schema, to_json, to_text
from lab.core.ledger import Kind, Ledger, Transfer
from lab.core.note import Note, NoteKind, note_kinds
from lab.guard import snapshot
from lab.meshes.errors import UsageError
from tests.paths import ROOT

SAVED = ROOT / "tests/data/saved"
"""What `lab inspect --json` and `--update-communication` wrote at commit 8f3bb4f, for 8 H100s."""


@dataclass(frozen=True)
class Inner:
    share: Fraction
    kind: Kind = Kind.ALL_GATHER


@dataclass(frozen=True)
class Outer:
    inner: tuple[Inner, ...]
    sizes: Mapping[str, int]
    anything: Any = None
    later: int | UnsetType = UNSET


def test_whole_fractions_are_integers_and_what_is_unset_is_left_out():
    found = to_json(Outer((Inner(Fraction(4, 2)), Inner(Fraction(1, 2))), MappingProxyType({"data": 8})))
    assert found == {
        "inner": [{"share": 2, "kind": "all_gather"}, {"share": 0.5, "kind": "all_gather"}],
        "sizes": {"data": 8},
        "anything": None,
    }
    assert type(found["inner"][0]["share"]) is int


@pytest.mark.parametrize("value, text", [(np.float64(0.5), "0.5"), (float("inf"), "null"), (10**30, f"{10**30}")])
def test_numbers_of_numpy_infinite_ones_and_long_ones_are_json(value, text):
    assert json.loads(to_text(Outer((), {}, [value])))["anything"] == [json.loads(text)]


def test_an_object_is_read_with_keys_that_nobody_knows():
    read = from_json(Outer, {"inner": [{"share": 0.5, "more": 1}], "sizes": {"data": 8}, "new": []})
    assert read == Outer((Inner(Fraction(1, 2)),), {"data": 8})


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"inner": [{}], "sizes": {}}, "inner[0]: object missing required field share"),
        ({"inner": [], "sizes": {"data": "8"}}, "sizes[...]: expected int, got str"),
        ({"inner": [{"share": 1, "kind": "gather"}], "sizes": {}}, "inner[0].kind: invalid enum value 'gather'"),
        ([], "the whole: expected object, got array"),
    ],
)
def test_what_is_no_such_object_is_refused_in_a_line_that_names_the_key(wrong, said):
    with pytest.raises(UsageError) as refusal:
        from_json(Outer, wrong)
    assert str(refusal.value) == said


def test_a_schema_requires_what_has_no_default():
    found = schema(Outer)["$defs"]
    assert found["Outer"]["required"] == ["inner", "sizes"]
    assert found["Inner"]["properties"]["share"] == {"type": "number"}


def test_a_ledger_that_was_saved_before_is_read_and_printed_with_every_value():
    saved = json.loads((SAVED / "ledger.json").read_text())
    del saved["findings"]
    assert _is_within(saved, Ledger.from_json(saved).to_json())


def test_a_snapshot_that_was_written_before_holds_the_same_transfers():
    ledger, versions = snapshot.read(SAVED / "snapshot.toml")
    assert versions == {"jax": "0.10.2", "jaxlib": "0.10.2"} and ledger.mesh == {"data": 4, "tensor": 2}
    saved = Ledger.from_json(json.loads((SAVED / "ledger.json").read_text()))
    assert ledger.totals().wire_bytes == saved.totals().wire_bytes


def test_a_snapshot_is_written_as_it_was(tmp_path: Path, monkeypatch):
    ledger, versions = snapshot.read(SAVED / "snapshot.toml")
    monkeypatch.setattr(snapshot, "_versions", lambda: versions)
    assert snapshot.write(ledger, tmp_path / "new.toml") == "new"
    assert (tmp_path / "new.toml").read_text() == (SAVED / "snapshot.toml").read_text()


def test_what_theory_alone_knows_of_a_transfer_is_not_printed():
    assert "provenance" not in to_json(Transfer(Kind.ALL_REDUCE, ("data",), 8, 1, "f32", 64))


def test_notes_keep_their_kinds_in_json_and_in_another_process():
    ledger = Ledger((), notes=(Note(NoteKind.ONE_DEVICE, "one"), "two"))
    assert ledger.to_json()["note_kinds"] == ["one_device", None]
    for copy in (Ledger.from_json(ledger.to_json()), pickle.loads(pickle.dumps(ledger))):
        assert (copy, note_kinds(copy.notes)) == (ledger, ("one_device", None))


def test_notes_that_were_saved_before_have_no_kind():
    saved = json.loads((SAVED / "ledger.json").read_text())
    notes = Ledger.from_json(saved).notes
    assert list(notes) == saved["notes"] != [] and set(note_kinds(notes)) == {None}


def _is_within(old: Any, new: Any) -> bool:
    """Every key and value of the one is in the other."""
    if isinstance(old, dict):
        return all(key in new and _is_within(value, new[key]) for key, value in old.items())
    if isinstance(old, list):
        return len(old) == len(new) and all(map(_is_within, old, new))
    return old == new
