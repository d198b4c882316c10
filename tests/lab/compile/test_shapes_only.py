"""Arrays without values have the parts that arrays with values have."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lab.compile.shapes_only import array_of
from lab.compile.sources import ValueNeeded
from tests.cases.compiling import cpu


@pytest.mark.parametrize("spec", [P("a"), P("b", "a"), P(None, ("a", "b")), P()])
def test_its_shards_are_those_of_an_array_with_values_without_the_values(spec):
    placed = NamedSharding(cpu(a=2, b=4), spec)
    real = jax.device_put(np.ones((8, 16), np.float32), placed)
    shape = array_of(jax.ShapeDtypeStruct((8, 16), np.float32, sharding=placed))

    def told(shards):
        return {s.device.id: (s.index, s.data.shape, s.data.dtype) for s in shards}

    assert told(shape.addressable_shards) == told(shape.global_shards) == told(real.addressable_shards)
    copies = [sum(s.replica_id == number for s in shape.addressable_shards) for number in range(8)]
    assert copies == [sum(s.replica_id == number for s in real.addressable_shards) for number in range(8)]
    with pytest.raises(ValueNeeded):
        np.asarray(shape.addressable_shards[0].data)
