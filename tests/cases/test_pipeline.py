"""Case c32: pipeline stages as a dim of an array, shifted by one stage a tick."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from lab.core.ledger import Ledger
from tests.cases.compiling import array, cpu, pinned, read, rows

pytestmark = pytest.mark.compiles

STAGES, ROWS, WIDTH, TICKS = 4, 32, 64, 7


def first_stage(x_RD, others_SRD):
    """`x` enters the first stage."""
    return jnp.where((jnp.arange(STAGES) == 0)[:, None, None], x_RD[None], others_SRD)


def by_concatenation(mesh, state_SRD, x_RD):
    return jnp.concatenate([x_RD[None], state_SRD[:-1]])


def by_roll(mesh, state_SRD, x_RD):
    return jnp.roll(state_SRD, 1, 0).at[0].set(x_RD)


def by_padding(mesh, state_SRD, x_RD):
    return first_stage(x_RD, jnp.pad(state_SRD, ((1, 0), (0, 0), (0, 0)))[:-1])


def by_permute(mesh, state_SRD, x_RD):
    ring = [(i, (i + 1) % STAGES) for i in range(STAGES)]
    spec = P("stage", "data")
    permute = jax.shard_map(lambda a: jax.lax.ppermute(a, "stage", ring), mesh=mesh, in_specs=spec, out_specs=spec)
    return first_stage(x_RD, permute(state_SRD))


def pipeline(mesh: Mesh, shift) -> Ledger:
    """Seven ticks of four stages; each tick gives the last stage's output."""

    def run(w_SDE, xs_TRD):
        def tick(state_SRD, x_RD):
            state_SRD = jnp.tanh(jnp.einsum("srd,sde->sre", shift(mesh, state_SRD, x_RD), w_SDE))
            state_SRD = pinned(mesh, state_SRD, "stage", "data")
            return state_SRD, state_SRD[-1]

        return jax.lax.scan(tick, pinned(mesh, jnp.zeros((STAGES, ROWS, WIDTH)), "stage", "data"), xs_TRD)[1]

    weights, inputs = array(mesh, (STAGES, WIDTH, WIDTH), "stage"), array(mesh, (TICKS, ROWS, WIDTH), None, "data")
    return read(mesh, run, weights, inputs, out=P(None, "data"))


PERMUTE, REDUCTION, EXCHANGE = (
    (kind, "stage", TICKS, ROWS * WIDTH * 4 // 2) for kind in ("collective_permute", "all_reduce", "all_to_all")
)
TAKING_THE_LAST_STAGE = [REDUCTION, PERMUTE]


@pytest.mark.parametrize("shift", [by_roll, by_padding, by_permute])
def test_a_shift_is_one_permute_a_tick_and_taking_the_last_stage_another_and_an_all_reduce(shift):
    """c32: each of 4,096 B, in each of 7 ticks."""
    ledger = pipeline(cpu(stage=4, data=2), shift)
    assert rows(ledger) == [*TAKING_THE_LAST_STAGE, PERMUTE]
    assert {t.shift for t in ledger.transfers if t.kind == "collective_permute"} == {1}


def test_a_shift_by_concatenation_is_three_all_to_alls_a_tick():
    """c32."""
    assert rows(pipeline(cpu(stage=4, data=2), by_concatenation)) == sorted([*TAKING_THE_LAST_STAGE, *3 * [EXCHANGE]])
