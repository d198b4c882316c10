"""A snapshot as a file holds what its program sends, and nothing less."""

import pytest

from lab.core.ledger import Kind
from lab.guard import snapshot
from tests.lab.ledgers import ledger, transfer

IN_A_LOOP = transfer(Kind.ALL_REDUCE, ("data",), 64, executions=None)


@pytest.mark.parametrize("sites", [1, 2])
def test_sites_in_loops_of_unknown_length_are_counted_one_by_one(tmp_path, sites):
    path = tmp_path / "snapshot.toml"
    assert snapshot.write(ledger(*[IN_A_LOOP] * sites), path) == "new"
    assert snapshot.compared(ledger(*[IN_A_LOOP] * sites), path) is None
    assert "differs" in snapshot.compared(ledger(*[IN_A_LOOP] * (3 - sites)), path)
