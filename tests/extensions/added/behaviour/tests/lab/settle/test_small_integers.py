import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import lab
from lab.core.ledger import Kind, Ledger, Transfer
from lab.settle import Context, Verdict, settle
from tests.cases.compiling import array, cpu

pytestmark = pytest.mark.compiles


def test_a_gather_of_64_integers_of_4_bits_moves_64_bytes_on_cpus():
    mesh = cpu(data=8)
    x = jax.ShapeDtypeStruct((64,), jnp.int4, sharding=array(mesh, (64,), "data").sharding)
    gathered = jax.shard_map(
        lambda x: jax.lax.all_gather(x, "data", tiled=True),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P(),
        check_vma=False,
    )
    predicted = Ledger((Transfer(Kind.ALL_GATHER, ("data",), 8, 1, "s4", 32),), devices=8, mesh={"data": 8})
    found = settle(predicted, lab.inspect(gathered, x, mesh=mesh), Context("cpu", "explicit", {"data": 8}))
    assert (found.verdict, found.terms[0].explanation[:3]) == (Verdict.EXPLAINED, "C9:")
