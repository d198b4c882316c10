"""Cases c11, c14, c15, c28: gradients, gathered weights and optimizer state under data parallelism."""

from dataclasses import replace
from functools import cache, partial, reduce

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import lab
from lab.core.known import known
from lab.core.ledger import Ledger
from lab.meshes.axes import Axes
from lab.settle import Context, settle
from tests.cases.compiling import (
    Row,
    ahead_of_time_gpu,
    ahead_of_time_tpu,
    array,
    compiled,
    cpu,
    mesh_on,
    pinned,
    read,
    rows,
    tpu,
)
from tests.long_tests import long

pytestmark = pytest.mark.compiles

MICRO_BATCHES = 4
FSDP = P("fsdp")


def step_in_bf16(mesh: Mesh) -> Ledger:
    """One step of f32 weights [256, 512] that multiplies in bf16."""

    def step(w_DF, x_BD):
        def loss(w_DF):
            return jnp.sum((x_BD @ w_DF.astype(jnp.bfloat16)).astype(jnp.float32) ** 2)

        return w_DF - 0.1 * jax.grad(loss)(w_DF)

    return read(mesh, step, array(mesh, (256, 512)), array(mesh, (64, 256), "data", dtype=jnp.bfloat16), out=P())


def test_cpu_promotes_the_reduction_of_a_bf16_gradient_to_f32():
    """c11: 524,288 B, twice what the program asks for; a note says so."""
    ledger = step_in_bf16(cpu(data=8))
    assert rows(ledger) == [("all_reduce", "data", 1, 524_288)]
    assert ledger.transfers[0].dtype == "f32"
    assert "1 reduction runs in f32: the program reduces a narrower type, and the compiler promoted it" in ledger.notes


@pytest.mark.parametrize(("is_cast_first", "verdict"), [(True, "explained"), (False, "refuted")])
def test_master_weights_that_are_gathered_in_f32_are_not_taken_for_promoted_ones(is_cast_first, verdict):
    """Both move 524,288 B in f32 where 262,144 B of bf16 are predicted: one because the CPU's compiler widens them, the
    other because the program does."""
    mesh = cpu(data=8)

    @partial(jax.shard_map, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P("data"))
    def forward(w_DF, x_BD):
        before, after = (jnp.bfloat16, jnp.bfloat16) if is_cast_first else (jnp.float32, jnp.bfloat16)
        w_DF = jax.lax.all_gather(w_DF.astype(before), "data", tiled=True).astype(after)
        return x_BD @ w_DF

    x = array(mesh, (64, 256), "data", dtype=jnp.bfloat16)
    ledger = read(mesh, forward, array(mesh, (256, 512), "data"), x, out=P("data"))
    assert rows(ledger) == [("all_gather", "data", 1, 524_288)]
    (found,) = ledger.transfers
    assert (found.dtype, found.is_widened) == ("f32", is_cast_first)
    predicted = Ledger((replace(found, dtype="bf16", payload_bytes=262_144, is_widened=False),), mesh=ledger.mesh)
    assert settle(predicted, ledger, Context("cpu", "explicit", known(ledger.mesh))).verdict == verdict


def test_cpu_is_named_where_it_is_the_target():
    mesh = cpu(data=8)
    x = array(mesh, (8, 512), "data", dtype=jnp.bfloat16)
    ledger = lab.inspect(compiled(mesh, lambda x: x.T @ x, x, out=P()), mesh=mesh, target="cpu:8")
    assert any(note.endswith("and the CPU compiler promoted it") for note in ledger.notes)


@ahead_of_time_gpu
def test_a_gpu_reduces_the_sum_of_a_tied_tables_two_bf16_gradients_once_in_f32():
    """Of two casts of one table; where they are one, two reductions in bf16 send as many bytes."""
    mesh = mesh_on("gpu:h100:1x8", data=8)
    table, tokens = array(mesh, (512, 256)), array(mesh, (64, 128), "data", dtype=jnp.int32)

    def gradient(table, tokens):
        def loss(table):
            x = table.astype(jnp.bfloat16)[tokens]
            return jnp.mean(jax.nn.logsumexp((x @ table.astype(jnp.bfloat16).T).astype(jnp.float32), -1))

        return jax.grad(loss)(table)

    ledger = read(mesh, gradient, table, tokens, out=P())
    assert rows(ledger) == [("all_reduce", "data", 1, 512 * 256 * 4)]
    assert ledger.notes == (
        "1 reduction runs in f32: XLA adds up the narrower arrays of several reductions and reduces their sum, for twice "
        "the bytes of one of them",
    )


@ahead_of_time_tpu
def test_tpu_reduces_a_bf16_gradient_in_bf16():
    """c11: 262,144 B, before the cast to f32."""
    ledger = step_in_bf16(tpu(data=8))
    assert rows(ledger) == [("all_reduce", "data", 1, 262_144)]
    assert ledger.transfers[0].dtype == "bf16"


def layer(h_BD, w_DD):
    return jnp.tanh(h_BD @ w_DD)


def loss(ws, x_BD):
    return jnp.sum(reduce(layer, ws, x_BD) ** 2)


def rematerialized_loss(ws, x_BD):
    return jnp.sum(reduce(jax.checkpoint(layer), ws, x_BD) ** 2)


def accumulated(ws, xs_MBD):
    """Gradients summed over micro-batches."""

    def add(g, x_BD):
        return (jax.tree.map(jnp.add, g, jax.grad(loss)(ws, x_BD)), None)

    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, ws), xs_MBD)[0]


@cache
def three_layers(mesh: Mesh, gradients, width: int) -> Ledger:
    """Gradients of three layers [width, width], sharded by rows as their weights are."""
    micro_batches = (MICRO_BATCHES,) if gradients is accumulated else ()
    x = array(mesh, (*micro_batches, 4096, width), *(None for _ in micro_batches), "fsdp")
    return read(mesh, gradients, 3 * [array(mesh, (width, width), "fsdp")], x, out=3 * [FSDP])


plain, rematerialized = jax.grad(loss), jax.grad(rematerialized_loss)


@pytest.mark.parametrize(("gradients", "gathers"), [(plain, 3), (rematerialized, 6)], ids=["plain", "remat"])
def test_cpu_gathers_three_weights_once_or_with_remat_twice(gradients, gathers):
    """c14: and reduces their gradients in one combined all-reduce of three parts; CPU forms no reduce-scatter."""
    ledger = three_layers(cpu(fsdp=8), gradients, 256)
    assert rows(ledger) == [*gathers * [("all_gather", "fsdp", 1, 262_144)], ("all_reduce", "fsdp", 1, 786_432)]
    assert rows(ledger.split())[gathers:] == 3 * [("all_reduce", "fsdp", 1, 262_144)]


@pytest.mark.parametrize(("gradients", "again"), [(plain, 0), (rematerialized, 3)], ids=["plain", "remat"])
def test_remat_gathers_the_three_weights_again_in_the_backward_pass(gradients, again):
    """c14."""
    phases = [str(t.phase) for t in three_layers(cpu(fsdp=8), gradients, 256).transfers if t.kind == "all_gather"]
    assert sorted(phases) == again * ["backward"] + 3 * ["forward"]


def test_gathers_and_reduction_point_at_the_line_of_the_matrix_product():
    """c14."""
    product = f"tests/cases/test_gradients.py:{layer.__code__.co_firstlineno + 1}"
    assert {t.origin for t in three_layers(cpu(fsdp=8), plain, 256).transfers} == {product}


def test_cpu_hoists_gathers_out_of_the_accumulation_loop_and_reduces_in_it_four_times():
    """c14."""
    ledger = three_layers(cpu(fsdp=8), accumulated, 256)
    assert rows(ledger) == [*3 * [("all_gather", "fsdp", 1, 262_144)], ("all_reduce", "fsdp", 4, 786_432)]


@ahead_of_time_tpu
@pytest.mark.parametrize(
    ("gradients", "gathers", "executions"),
    [
        pytest.param(plain, 3, 1, id="plain"),
        pytest.param(rematerialized, 6, 1, id="remat", marks=long),
        pytest.param(accumulated, 3, 4, id="accumulated", marks=long),
    ],
)
def test_tpu_gathers_in_bf16_each_time_and_reduce_scatters_in_fusions(gradients, gathers, executions):
    """c14: 2,097,152 B a gather of f32 weights, printed up to four times each; of two reduce-scatters one has two
    parts."""
    ledger = three_layers(tpu(fsdp=8), gradients, 1024)
    scatters = [("reduce_scatter", "fsdp", executions, payload) for payload in (4_194_304, 8_388_608)]
    assert rows(ledger) == [*gathers * [("all_gather", "fsdp", executions, 2_097_152)], *scatters]
    assert {t.dtype for t in ledger.transfers if t.kind == "all_gather"} == {"bf16"}


def accumulated_replicated(mesh: Mesh) -> Ledger:
    return read(mesh, accumulated, [array(mesh, (256, 256))], micro_batches(mesh), out=[P()])


def accumulated_sharded(mesh: Mesh) -> Ledger:
    """ZeRO: the sum of gradients is sharded over `data`."""

    def gradients(w, xs):
        def add(g, x):
            return (g + jax.grad(loss)([w], x)[0], None)

        return jax.lax.scan(add, pinned(mesh, jnp.zeros_like(w), "data"), xs)[0]

    return read(mesh, gradients, array(mesh, (256, 256)), micro_batches(mesh), out=P("data"))


def accumulated_locally(mesh: Mesh) -> Ledger:
    """Gradients summed on each device, and over devices once."""

    def gradients(w, xs):
        w, zero = (jax.lax.pcast(value, "data", to="varying") for value in (w, jnp.zeros_like(w)))

        def add(g, x):
            return (g + jax.grad(loss)([w], x)[0], None)

        return jax.lax.psum(jax.lax.scan(add, zero, xs)[0], "data")

    mapped = jax.shard_map(gradients, mesh=mesh, in_specs=(P(), P(None, "data")), out_specs=P())
    return read(mesh, mapped, array(mesh, (256, 256)), micro_batches(mesh))


def micro_batches(mesh: Mesh) -> jax.ShapeDtypeStruct:
    return array(mesh, (MICRO_BATCHES, 64, 256), None, "data")


IN_THE_LOOP: list[Row] = [("all_reduce", "data", 4, 262_144)]
ONCE: list[Row] = [("all_reduce", "data", 1, 262_144)]


@pytest.mark.parametrize(
    ("program", "expected"),
    [(accumulated_replicated, IN_THE_LOOP), (accumulated_sharded, IN_THE_LOOP), (accumulated_locally, ONCE)],
)
def test_cpu_reduces_an_accumulated_gradient_four_times_unless_it_is_summed_locally(program, expected):
    """c15."""
    assert rows(program(cpu(data=8))) == expected


@ahead_of_time_tpu
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (accumulated_replicated, ONCE),
        (accumulated_sharded, [("reduce_scatter", "data", 4, 262_144)]),
        (accumulated_locally, ONCE),
    ],
)
def test_tpu_moves_the_reduction_of_a_replicated_sum_out_of_the_loop_but_not_of_a_sharded_one(program, expected):
    """c15."""
    assert rows(program(tpu(data=8))) == expected


def adam_state(w):
    return {"count": jnp.zeros((), jnp.int32), "m": jnp.zeros_like(w), "v": jnp.zeros_like(w)}


def adam_step(w, state, x):
    g = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
    count, m, v = state["count"] + 1, 0.9 * state["m"] + 0.1 * g, 0.999 * state["v"] + 0.001 * g**2
    w -= 1e-3 * (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)
    return w, {"count": count, "m": m, "v": v}


@pytest.mark.parametrize(
    ("state_spec", "arguments"), [(P(), 2_162_692), (FSDP, 1_245_188)], ids=["replicated", "sharded"]
)
def test_replicated_adam_state_costs_917504_bytes_more_and_the_same_communication(state_spec, arguments):
    """c28: m and v of 524,288 B each, or of 65,536 B sharded."""
    mesh = cpu(fsdp=8)
    w, x = array(mesh, (512, 256), "fsdp"), array(mesh, (4096, 512), "fsdp")
    state = {
        "count": array(mesh, (), dtype=jnp.int32),
        "m": array(mesh, w.shape, *state_spec),
        "v": array(mesh, w.shape, *state_spec),
    }
    ledger = read(mesh, adam_step, w, state, x)
    assert ledger.memory.arguments == arguments
    assert rows(ledger) == [("all_gather", "fsdp", 1, 524_288), ("all_reduce", "fsdp", 1, 524_288)]


def test_adam_state_made_under_jit_without_shardings_lands_whole_on_one_device():
    """c28: 1,048,604 B; zeros need nothing of the weight, so they follow it nowhere. Made eagerly they do."""
    w = array(cpu(fsdp=8), (512, 256), "fsdp")
    ledger = lab.inspect(jax.jit(adam_state).lower(w), mesh=Axes.of({}))
    assert (rows(ledger), ledger.notes) == ([], ("no transfers: the module runs on one device",))
    assert ledger.memory.outputs == 1_048_604
    made_eagerly = adam_state(jax.device_put(jnp.ones(w.shape), w.sharding))
    assert {leaf.sharding.spec for leaf in jax.tree.leaves(made_eagerly) if leaf.ndim} == {FSDP}
