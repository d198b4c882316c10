"""A state saved on one mesh is, to the bit, the state restored on another; twenty pairs of meshes and layouts."""

import pytest

from lab.experiments.ch26_restore import EXPERIMENT, Restores, measured
from lab.harness.question import answer
from tests.long_tests import long

pytestmark = pytest.mark.compiles

PAIRS = (
    ("fsdp=8", "fsdp=2,tensor=4"),
    ("fsdp=8", "fsdp=6"),
    ("fsdp=8", "fsdp=3,tensor=2"),
    ("fsdp=8", "fsdp=4"),
    ("fsdp=8", "data=2,tensor=2"),
    ("fsdp=8", "pipe=2,fsdp=2,tensor=2"),
    ("fsdp=8", "pipe=4"),
    ("fsdp=2,tensor=4", "fsdp=8"),
    ("fsdp=2,tensor=4", "fsdp=6"),
    ("fsdp=2,tensor=4", "fsdp=4"),
    ("fsdp=2,tensor=4", "pipe=4"),
    ("pipe=2,fsdp=2,tensor=2", "pipe=4"),
    ("pipe=2,fsdp=2,tensor=2", "fsdp=8"),
    ("pipe=2,fsdp=2,tensor=2", "fsdp=6"),
    ("pipe=4", "pipe=2,fsdp=2,tensor=2"),
    ("fsdp=4", "fsdp=8"),
    ("fsdp=2,expert=4", "fsdp=2,expert=2,tensor=2"),
    ("fsdp=2,expert=4", "expert=6"),
    ("fsdp=2,expert=4", "pipe=2,expert=2"),
    ("pipe=2,expert=2", "fsdp=2,expert=4"),
)


@pytest.mark.parametrize(("saved", "loaded"), PAIRS)
def test_every_array_is_equal_to_the_bit_and_no_more_is_read_or_sent_than_must_be(saved, loaded):
    found = measured(Restores(saved, loaded, moments=False))
    assert (found.equal, found.received) == (found.arrays, found.least)
    # TensorStore reads an index besides, and what lies between two chunks where that is little.
    assert found.part <= found.chunks <= found.read_in_parts <= 1.05 * found.chunks
    assert found.read_straight >= found.shards
    assert found.read_at_once >= found.state


@long
def test_ch26_restore_answers():
    result = answer(EXPERIMENT, {})
    assert result.is_fine and [claim.verdict for claim in result.claims] == ["confirmed"]
