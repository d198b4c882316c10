"""A state saved on one mesh is, to the bit, the state restored on another; twenty pairs of meshes and layouts, six of them each time."""

import pytest

from lab.experiments.ch26_restore import EXPERIMENT, Restores, measured
from lab.harness.question import answer
from tests.long_tests import long

pytestmark = pytest.mark.compiles

PAIRS = (
    ("fsdp=8", "fsdp=6"),
    ("pipe=2,fsdp=2,tensor=2", "pipe=4"),
    ("fsdp=2,expert=4", "expert=6"),
)
MORE = (
    ("fsdp=8", "fsdp=2,tensor=4"),
    ("fsdp=2,tensor=4", "fsdp=6"),
    ("pipe=4", "pipe=2,fsdp=2,tensor=2"),
    ("fsdp=8", "fsdp=3,tensor=2"),
    ("fsdp=8", "fsdp=4"),
    ("fsdp=8", "data=2,tensor=2"),
    ("fsdp=8", "pipe=2,fsdp=2,tensor=2"),
    ("fsdp=8", "pipe=4"),
    ("fsdp=2,tensor=4", "fsdp=8"),
    ("fsdp=2,tensor=4", "fsdp=4"),
    ("fsdp=2,tensor=4", "pipe=4"),
    ("pipe=2,fsdp=2,tensor=2", "fsdp=8"),
    ("pipe=2,fsdp=2,tensor=2", "fsdp=6"),
    ("fsdp=4", "fsdp=8"),
    ("fsdp=2,expert=4", "fsdp=2,expert=2,tensor=2"),
    ("fsdp=2,expert=4", "pipe=2,expert=2"),
    ("pipe=2,expert=2", "fsdp=2,expert=4"),
)
SMALL = {"embed": 96, "mlp": 192, "vocab": 192, "chunk_bytes": 4096}
"""With experts, of which there are twelve."""


@pytest.mark.parametrize(("saved", "loaded"), [*PAIRS, *(pytest.param(*pair, marks=long) for pair in MORE)])
def test_every_array_is_equal_to_the_bit_and_what_is_read_and_sent_is_within_5_percent_of_the_least(saved, loaded):
    found = measured(Restores(saved, loaded, moments=False, **SMALL if "expert" in saved else {}))
    assert found.equal == found.arrays
    # An index is read besides, and what lies between two chunks where that is little.
    assert found.part <= found.read_in_parts <= 1.05 * found.part
    assert found.state <= found.read <= 1.05 * found.state
    assert found.least <= found.sent <= 1.05 * found.least
    assert found.shards <= found.read_straight


@long
def test_ch26_restore_answers():
    result = answer(EXPERIMENT, {})
    assert result.is_fine and [claim.verdict for claim in result.claims] == ["confirmed"]
