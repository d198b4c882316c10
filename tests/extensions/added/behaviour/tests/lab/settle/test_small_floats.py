import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import lab
from lab.core.ledger import Kind, Ledger, Transfer
from lab.settle import Context, Verdict, settle
from tests.cases.compiling import array, cpu

pytestmark = pytest.mark.compiles


def test_a_gather_of_64_numbers_in_f8_moves_128_bytes_on_cpus():
    mesh = cpu(data=8)
    x = jax.ShapeDtypeStruct((64,), jnp.float8_e4m3fn, sharding=array(mesh, (64,), "data").sharding)
    gathered = jax.shard_map(
        lambda x: jax.lax.all_gather(x, "data", tiled=True),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P(),
        check_vma=False,
    )
    predicted = Ledger((Transfer(Kind.ALL_GATHER, ("data",), 8, 1, "f8e4m3fn", 64),), devices=8, mesh={"data": 8})
    found = settle(predicted, lab.inspect(gathered, x, mesh=mesh), Context("cpu", "explicit", {"data": 8}))
    assert (found.verdict, found.terms[0].explanation[:3]) == (Verdict.EXPLAINED, "C8:")
