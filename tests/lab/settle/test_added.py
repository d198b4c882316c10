"""What a compiler sends beside what is asked for, as terms of their own."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from lab.core.ledger import Kind, Ledger, Transfer
from lab.settle import Context, Settlement, Status, Verdict, settle
from lab.settle.behaviours import INSTALLED
from tests.cases.compiling import ahead_of_time_gpu, array, mesh_on, read

GPU, TPU = Context("gpu", "explicit", {"fsdp": 16}), Context("tpu", "explicit", {"fsdp": 16})
GATHER = Transfer(
    Kind.ALL_GATHER, ("fsdp",), 16, 4, "bf16", 1024, groups=1, scope="layers/mlp/up", instruction="gather.5"
)
CLONE = replace(GATHER, instruction="gather.5.remat", repeats="gather.5")


def settled(measured: list[Transfer], context: Context = GPU) -> Settlement:
    return settle(Ledger((replace(GATHER, instruction=None),)), Ledger(tuple(measured)), context)


def test_a_clone_is_attributed_beside_an_exact_term_with_its_own_bytes_alone():
    found = settled([CLONE, GATHER])
    assert [(t.status, t.predicted.executions, t.measured, t.behaviours) for t in found.terms] == [
        (Status.EXACT, 4, (GATHER,), ()),
        (Status.ATTRIBUTED, 0, (CLONE,), ("G13",)),
    ]
    assert (found.verdict, found.unexplained) == (Verdict.ATTRIBUTED, ())
    assert (found.predicted_wire_bytes, found.attributed_wire_bytes) == (3840, 3840)


def test_every_clone_of_one_gather_is_attributed():
    found = settled([GATHER, CLONE, replace(CLONE, instruction="gather.5.remat2")])
    assert (found.verdict, found.attributed_wire_bytes) == (Verdict.ATTRIBUTED, 7680)


@pytest.mark.parametrize(
    "second",
    [
        replace(GATHER, instruction="gather.6"),
        replace(CLONE, repeats="gather.7"),
        replace(CLONE, payload_bytes=2048),
        replace(CLONE, group_size=8, groups=2),
        replace(CLONE, executions=5),
        replace(CLONE, kind=Kind.ALL_REDUCE),
    ],
    ids=["the program's own", "of another", "more bytes", "other groups", "more often", "another kind"],
)
def test_what_is_no_clone_of_what_a_term_claims_stays_unexplained(second):
    found = settled([GATHER, second])
    assert (found.verdict, found.terms[0].status) == (Verdict.REFUTED, Status.EXACT)
    assert [t.instruction for t in found.unexplained] == [second.instruction]


def test_a_clone_carries_out_no_term():
    assert settled([CLONE]).verdict is Verdict.REFUTED


def test_clones_are_a_behaviour_of_gpus_alone():
    assert settled([GATHER, CLONE], TPU).verdict is Verdict.REFUTED


def compiled(gathers: int) -> tuple[Transfer, ...]:
    """A step whose products of 64 GiB leave no room: its input is gathered, and used before and after them."""
    mesh = mesh_on("gpu:h100:1x8", fsdp=8)

    def step(x_BD, w_DF, v_FD):
        x_ND = jax.lax.all_gather(x_BD, "fsdp", tiled=True)
        y_NF = x_ND @ w_DF
        for _ in range(3):
            y_NF = jnp.tanh(y_NF) @ v_FD @ w_DF
        last_ND = x_ND if gathers == 1 else jax.lax.all_gather(jnp.tanh(x_BD), "fsdp", tiled=True)
        return last_ND.T @ y_NF

    mapped = jax.shard_map(step, mesh=mesh, in_specs=(P("fsdp"), P(), P()), out_specs=P(), check_vma=False)
    x_ND = array(mesh, (1 << 18, 4096), "fsdp", dtype=jnp.bfloat16)
    weights = (array(mesh, dims, dtype=jnp.bfloat16) for dims in ((4096, 1 << 17), (1 << 17, 4096)))
    return read(mesh, mapped, x_ND, *weights).transfers


@pytest.mark.compiles
@ahead_of_time_gpu
@pytest.mark.parametrize("gathers", [1, 2])
def test_xla_gathers_again_for_lack_of_room_and_a_program_that_gathers_twice_is_refuted(gathers):
    measured = Ledger(compiled(gathers), mesh={"fsdp": 8})
    asked = Transfer(Kind.ALL_GATHER, ("fsdp",), 8, 1, "bf16", 1 << 31)
    verdict = settle(Ledger((asked,), mesh={"fsdp": 8}), measured, Context("gpu", "explicit", {"fsdp": 8})).verdict
    again = Verdict.ATTRIBUTED if INSTALLED >= (0, 11) else Verdict.EXACT
    assert verdict is (again if gathers == 1 else Verdict.REFUTED)
    assert sum(t.repeats is None for t in measured.transfers) == gathers
