"""What `lab diff` takes of a saved ledger, and refuses with the key named."""

import json
from copy import deepcopy

import pytest

from lab.compile.sources import saved_ledger
from lab.core.ledger import Kind, Transfer
from lab.meshes.errors import UsageError
from tests.lab.ledgers import ledger

SAVED = ledger(Transfer(Kind.ALL_GATHER, ("data",), 8, 3, "f32", 800, groups=1)).to_json()


def saved(tmp_path, change) -> str:
    found = deepcopy(SAVED)
    change(found, found["transfers"][0])
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(found))
    return str(path)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda whole, _: whole.update(schema="sharding-lab/ledger/9"), "schema: .*'sharding-lab/ledger/9'"),
        (lambda whole, _: whole.pop("schema"), "missing required field schema"),
        (lambda _, row: row.update(payload_bytes=-800), r"transfers\[0\]\.payload_bytes: expected int >= 0"),
        (lambda _, row: row.update(executions=-1), r"executions: expected int >= 0"),
        (lambda whole, _: whole.update(complete="no"), "complete: expected bool, got str"),
        (lambda _, row: row.update(axes="data"), r"axes: expected array \| null, got str"),
        (lambda _, row: row.update(axes=["date"]), r"transfers\[0\]\.axes: no axis 'date' in the mesh; .*data"),
        (lambda _, row: row.update(wire_bytes="1/0"), "wire_bytes: expected a finite number"),
        (lambda whole, _: whole.update(mesh={"data": 0}), "mesh.*expected int >= 1"),
        (lambda whole, _: whole.update(target="gpu:h100:2x8"), r"mesh data=8 has 8 devices .* gpu:h100:2x8 has 16"),
        (
            lambda _, row: row.update(payload_bytes=8000, wire_bytes=7000),
            r"totals\.all\.payload_bytes: found 2,400, but its transfers add up to 24,000",
        ),
        (
            lambda whole, _: whole["totals"]["all"].update(sites=2),
            r"totals\.all\.sites: found 2, but its transfers add up to 1",
        ),
        (
            lambda whole, _: whole["totals"]["all"].update(executions=4),
            r"totals\.all\.executions: found 4, but its transfers add up to 3",
        ),
        (
            lambda whole, _: whole["totals"]["all"].update(wire_bytes=2101),
            r"wire_bytes: found 2,101, but its transfers add up to 2,100",
        ),
    ],
    ids=(
        "schema,no-schema,bytes,executions,complete,axes,unknown-axis,wire,mesh,another-target,"
        "another-payload,more-sites,more-executions,more-wire"
    ).split(","),
)
def test_a_saved_ledger_is_refused_with_the_key_that_is_wrong(tmp_path, change, said):
    with pytest.raises(UsageError, match=f"saved.json: not a ledger .*{said}"):
        saved_ledger(saved(tmp_path, change))


def test_fields_that_a_later_release_added_are_passed_over(tmp_path):
    def change(whole, row):
        whole["of_later"], row["of_later"] = {"a": 1}, 3

    assert saved_ledger(saved(tmp_path, change)).to_json() == SAVED
