"""Where a dim is after arrays are laid out anew."""

import pytest

from lab.diagnosis.dims import followed
from lab.hlo.text import Instruction

STEP = Instruction("bitcast.1", "f32[8192,256]{1,0}", "bitcast", False, "%gathered)")


@pytest.mark.parametrize("dim, is_outermost, position", [(0, False, None), (0, True, 0), (1, True, None)])
def test_of_two_merged_dims_the_outermost_alone_keeps_its_shards(dim, is_outermost, position):
    assert followed(dim, "f32[16,512,256]{2,1,0}", [STEP], is_outermost) == position


def test_a_dim_that_is_split_is_none_any_more():
    assert (
        followed(0, "f32[8192,256]{1,0}", [Instruction("b", "f32[16,512,256]{2,1,0}", "bitcast", False, "%x)")]) is None
    )
