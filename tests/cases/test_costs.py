"""Cases c21, c23, c24, c44: what a program costs beside communication, and what the environment decides.

Of c23 and c44 the ledger tells what was aliased and multiplied; that a donation is in vain or work is repeated is for a
reader to conclude.
"""

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import lab
from tests.cases.compiling import (
    ahead_of_time_tpu,
    array,
    compiled,
    cpu,
    pinned,
    read,
    rows,
    tpu,
)
from tests.paths import ROOT

pytestmark = pytest.mark.compiles

L, B, D = 12, 256, 256
FLOPS = 2 * B * D * D * L // 8


def step(h_BD, w_DD):
    return jnp.tanh(h_BD @ w_DD), None


def unrolled(w_LDD, h_BD):
    for w_DD in w_LDD:
        h_BD, _ = step(h_BD, w_DD)
    return h_BD


def scanned(w_LDD, h_BD):
    return jax.lax.scan(step, h_BD, w_LDD)[0]


def scanned_by_four(w_LDD, h_BD):
    return jax.lax.scan(step, h_BD, w_LDD, unroll=4)[0]


def layers(mesh: Mesh, function, *scalars):
    return compiled(mesh, function, array(mesh, (L, D, D), None, None, "m"), array(mesh, (B, D)), *scalars)


on_both = pytest.mark.parametrize("on", [cpu, pytest.param(tpu, marks=ahead_of_time_tpu)], ids=["cpu", "tpu"])


@on_both
@pytest.mark.parametrize(("function", "seen"), [(unrolled, 12), (scanned, 1), (scanned_by_four, 4)])
def test_flops_count_all_12_iterations_where_cost_analysis_counts_a_body_once(on, function, seen):
    """c21: XLA sees 1 of 12 layers of a scan, 4 of one unrolled by 4."""
    mesh = on(m=8)
    program = layers(mesh, function)
    assert lab.inspect(program, mesh=mesh).flops == FLOPS
    assert program.cost_analysis()["flops"] == pytest.approx(FLOPS * seen / L, rel=0.03)


@on_both
@pytest.mark.parametrize(
    ("function", "gathers", "executions"), [(unrolled, 11, 1), (scanned, 1, 12), (scanned_by_four, 4, 3)]
)
def test_a_scan_of_12_layers_gathers_12_times_and_unrolled_layers_11(on, function, gathers, executions):
    """c21: the last gather of the scan is in vain. TPU prints no trip count, and gathers in bf16."""
    mesh = on(m=8)
    payload = B * D * (4 if on is cpu else 2)
    assert rows(lab.inspect(layers(mesh, function), mesh=mesh)) == gathers * [("all_gather", "m", executions, payload)]


@on_both
def test_a_traced_bound_leaves_executions_unknown_and_totals_a_lower_bound(on):
    """c21."""
    mesh = on(m=8)

    def looped(w_LDD, h_BD, bound):
        return jax.lax.fori_loop(0, bound, lambda i, h_BD: step(h_BD, w_LDD[i])[0], h_BD)

    ledger = lab.inspect(layers(mesh, looped, jax.ShapeDtypeStruct((), jnp.int32)), mesh=mesh)
    assert [t.executions for t in ledger.transfers] == [None]
    assert ledger.totals().lower_bound and ledger.totals().payload_bytes == 0
    assert any("cannot be known" in note for note in ledger.notes)


def difference(a, g):
    return a - g


@pytest.mark.parametrize(
    ("function", "spec", "out", "aliased"),
    [
        (difference, P("x"), None, 32_768),
        (difference, P("x"), P(), 0),
        (lambda a, g: pinned(cpu(x=8), a - g, "x"), P(), None, 0),
        (lambda a, g: (a - g).astype(jnp.bfloat16), P("x"), P("x"), 0),
    ],
    ids=["same sharding", "replicated output", "sharded inside", "another dtype"],
)
@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_a_donated_shard_of_32768_bytes_is_aliased_only_where_the_output_is_like_it(function, spec, out, aliased):
    """c23: JAX warns of the second only."""
    mesh = cpu(x=8)
    state = array(mesh, (1024, 64), *spec)
    assert read(mesh, function, state, state, out=out, donate_argnums=0).memory.aliased == aliased


def test_the_fake_devices_asked_for_after_jax_has_started_are_refused_in_one_line():
    """c24: XLA's flag would have no effect, without a word."""
    late = (
        "import jax; jax.devices(); from lab.meshes.backends import prepare; "
        "from lab.meshes.targets import parse_target; prepare([parse_target('cpu:8')])"
    )
    environment = {"JAX_PLATFORMS": "cpu", "PATH": ""}
    refused = subprocess.run([sys.executable, "-c", late], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert (
        refused.returncode
        and "UsageError: target cpu:8 needs 8 fake CPU devices and JAX has started with 1" in refused.stderr
    )


def test_a_replicated_matmul_does_eight_times_the_flops_of_a_sharded_one_and_moves_nothing():
    """c44: 2.15e9 on every device; split by rows 2.68e8, and 8,388,608 B to gather."""
    mesh = cpu(d=8)
    x, w = array(mesh, (4096, 512)), array(mesh, (512, 512))
    replicated = read(mesh, jnp.matmul, x, w, out=P())
    split = read(mesh, lambda x, w: pinned(mesh, x, "d") @ w, x, w, out=P())
    assert (rows(replicated), replicated.flops) == ([], 2 * 4096 * 512 * 512)
    assert (rows(split), split.flops) == ([("all_gather", "d", 1, 8_388_608)], 2 * 4096 * 512 * 512 // 8)


def test_a_replicated_sum_stays_replicated_and_a_constrained_one_all_reduces_4_bytes():
    """c44."""
    mesh = cpu(d=8)
    x = array(mesh, (4096, 512))
    assert rows(read(mesh, lambda x: jnp.sum(jnp.abs(x)), x, out=P())) == []
    assert rows(read(mesh, lambda x: jnp.sum(jnp.abs(pinned(mesh, x, "d"))), x, out=P())) == [("all_reduce", "d", 1, 4)]
