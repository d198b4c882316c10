"""Cases c27, c42, c55: the spellings of groups, asynchronous forms, and names that lie."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import lab
from lab.hlo import read_text
from lab.meshes.axes import Axes
from tests.cases.compiling import ahead_of_time_tpu, array, cpu, pinned, read, rows, tpu

pytestmark = pytest.mark.compiles


def doubled(a):
    return 2 * a


def mapped(function, in_spec, out_spec):
    return lambda mesh: jax.shard_map(function, mesh=mesh, in_specs=in_spec, out_specs=out_spec, check_vma=False)


XY, X, Y = P("x", "y"), P("x"), P(None, "y")
ON_BOTH = {
    "gather x": (lambda mesh: doubled, XY, Y, [("all_gather", "x", 1, 8_192)]),
    "gather y": (lambda mesh: doubled, XY, X, [("all_gather", "y", 1, 4_096)]),
    "psum y": (mapped(lambda a: jax.lax.psum(a, "y"), XY, X), XY, None, [("all_reduce", "y", 1, 2_048)]),
    "psum both": (mapped(lambda a: jax.lax.psum(a, ("x", "y")), XY, P()), XY, None, [("all_reduce", "x+y", 1, 2_048)]),
    "psum_scatter x": (
        mapped(lambda a: jax.lax.psum_scatter(a, "x", scatter_dimension=0, tiled=True), Y, XY),
        Y,
        None,
        [("reduce_scatter", "x", 1, 8_192)],
    ),
    "all_gather x": (
        mapped(lambda a: jax.lax.all_gather(a, "x", tiled=True), XY, Y),
        XY,
        None,
        [("all_gather", "x", 1, 8_192)],
    ),
    "all_to_all x": (
        mapped(lambda a: jax.lax.all_to_all(a, "x", 1, 0, tiled=True), XY, XY),
        XY,
        None,
        [("all_to_all", "x", 1, 2_048)],
    ),
    "ppermute x": (
        mapped(lambda a: jax.lax.ppermute(a, "x", [(0, 1)]), XY, XY),
        XY,
        None,
        [("collective_permute", "x", 1, 2_048)],
    ),
}
on_both = pytest.mark.parametrize("on", [cpu, pytest.param(tpu, marks=ahead_of_time_tpu)], ids=["cpu", "tpu"])


@on_both
@pytest.mark.parametrize(("program", "spec", "out", "expected"), ON_BOTH.values(), ids=ON_BOTH)
def test_every_spelling_of_groups_is_read_as_axes_of_a_4x2_mesh(on, program, spec, out, expected):
    """c27: `mesh[...] {axes}`, iotas, lists and pairs."""
    mesh = on(x=4, y=2)
    assert rows(read(mesh, program(mesh), array(mesh, (64, 64), *spec), out=out)) == expected


@on_both
def test_a_matmul_over_y_all_reduces_4096_bytes(on):
    """c27."""
    mesh = on(x=4, y=2)
    ledger = read(mesh, jnp.matmul, array(mesh, (64, 64), "x", "y"), array(mesh, (64, 64), "y"), out=X)
    assert rows(ledger) == [("all_reduce", "y", 1, 4_096)]


@on_both
def test_the_gradient_of_a_lookup_reduces_256_bytes_over_the_table_and_1024_over_the_indices(on):
    """c27."""
    mesh = on(x=4, y=2)
    gradient = jax.grad(lambda table, i: jnp.sum(table[i] ** 2))
    ledger = read(mesh, gradient, array(mesh, (64, 8), "y"), array(mesh, (32,), "x", dtype=jnp.int32), out=P("y"))
    assert rows(ledger) == [("all_reduce", "x", 1, 1_024), ("all_reduce", "y", 1, 256)]


def test_cpu_gathers_over_two_axes_in_two_steps():
    """c27."""
    mesh = cpu(x=4, y=2)
    ledger = read(mesh, doubled, array(mesh, (64, 64), "x", "y"), out=P())
    assert rows(ledger) == [("all_gather", "x", 1, 16_384), ("all_gather", "y", 1, 4_096)]


@ahead_of_time_tpu
def test_tpu_gathers_over_two_axes_at_once():
    """c27: in another shape, so that its dim is not the user's."""
    mesh = tpu(x=4, y=2)
    assert rows(read(mesh, doubled, array(mesh, (64, 64), "x", "y"), out=P())) == [("all_gather", "x+y", 1, 16_384)]


def test_pmap_reduces_64_bytes_over_its_eight_devices():
    """c27."""
    program = (
        jax.pmap(lambda a: jax.lax.psum(a, "i"), axis_name="i")
        .lower(jax.ShapeDtypeStruct((8, 16), jnp.float32))
        .compile()
    )
    assert rows(lab.inspect(program, mesh=Axes.of({"i": 8}))) == [("all_reduce", "i", 1, 64)]


def test_groups_chosen_by_hand_lie_on_no_mesh_axis_and_stand_in_the_notes():
    """c27: {0,6}, {2,4}, {1,7}, {3,5}."""
    mesh = cpu(x=4, y=2)
    psum = mapped(lambda a: jax.lax.psum(a, "x", axis_index_groups=[[0, 3], [1, 2]]), XY, XY)(mesh)
    ledger = read(mesh, psum, array(mesh, (64, 64), "x", "y"))
    assert rows(ledger) == [("all_reduce", "?", 1, 2_048)]
    assert (ledger.transfers[0].group_size, ledger.transfers[0].groups) == (2, 4)
    assert any("{0,6}, {2,4}, {1,7}, {3,5}" in note for note in ledger.notes)


def four_layers(mesh: Mesh, width: int, batch: int):
    """Gradients of four bf16 layers under FSDP."""

    def loss(ws, x_BD):
        for w_DD in ws:
            x_BD = jnp.tanh(x_BD @ w_DD)
        return jnp.sum(x_BD**2)

    weights = [array(mesh, (width, width), "fsdp", dtype=jnp.bfloat16)] * 4
    return read(
        mesh, jax.grad(loss), weights, array(mesh, (batch, width), "fsdp", dtype=jnp.bfloat16), out=[P("fsdp")] * 4
    )


def test_cpu_has_no_asynchronous_collective():
    """c42: four weights gathered, widened to f32, and one combined reduction of their gradients."""
    ledger = four_layers(cpu(fsdp=8), 256, 4096)
    assert rows(ledger) == [*4 * [("all_gather", "fsdp", 1, 262_144)], ("all_reduce", "fsdp", 1, 1_048_576)]
    assert {t.overlap for t in ledger.transfers} == {"sync"}


@ahead_of_time_tpu
def test_tpu_prints_a_gather_up_to_four_times_and_five_windowed_einsums_as_45_permutes():
    """c42: three gathers of 8,388,608 B; five loops of two trips with four permutes, and one more after each."""
    transfers = four_layers(tpu(fsdp=8), 2048, 32_768).transfers
    gathers = [t for t in transfers if t.kind == "all_gather"]
    permutes = [t for t in transfers if t.kind == "collective_permute"]
    assert [(t.payload_bytes, t.executions) for t in gathers] == 3 * [(8_388_608, 1)]
    assert sorted(t.executions for t in permutes) == [*5 * [1], *20 * [2]]
    assert {(t.axes, t.payload_bytes, t.overlap) for t in permutes} == {(("fsdp",), 1_048_576, "async")}
    assert {t.kind for t in transfers} == {"all_gather", "collective_permute"}


D = P("d")


def test_only_opcodes_count_whatever_names_say():
    """c55: three reductions of 2,048 B; a scope named all-reduce(fake) and a function named all_gather communicate
    nothing."""
    mesh = cpu(d=8)

    def all_gather(a):
        return jnp.sin(a)

    def reduced(a):
        with jax.named_scope("all-reduce(fake)"):
            a = jax.jit(all_gather)(a)
        total = jax.shard_map(lambda b: jax.lax.psum(b, "d"), mesh=mesh, in_specs=D, out_specs=P())(a)
        return total, jax.shard_map(
            lambda b: jax.lax.pmax(b, "d") + jax.lax.pmin(3 * b, "d"), mesh=mesh, in_specs=D, out_specs=P()
        )(a)

    assert rows(read(mesh, reduced, array(mesh, (64, 64), "d"))) == 3 * [("all_reduce", "d", 1, 2_048)]


def test_booleans_are_summed_as_32_bit_integers():
    """c55."""
    mesh = cpu(d=8)
    ledger = read(mesh, mapped(lambda b: jax.lax.psum(b > 0, "d"), D, P())(mesh), array(mesh, (64, 64), "d"))
    assert rows(ledger) == [("all_reduce", "d", 1, 2_048)]
    assert ledger.transfers[0].dtype == "s32"


def test_the_sum_of_an_empty_array_is_not_compiled_to_a_transfer():
    """c55."""
    mesh = cpu(d=8)
    assert rows(read(mesh, mapped(lambda b: jax.lax.psum(b[:0], "d"), D, P())(mesh), array(mesh, (64, 64), "d"))) == []


@pytest.mark.parametrize(
    ("axes", "spec", "payload"), [({"d": 8, "one": 1}, ("d", "one"), 2_048), ({"one": 1}, ("one",), 16_384)]
)
def test_a_reduction_over_an_axis_of_size_one_stays_and_sends_0_bytes(axes, spec, payload):
    """c55."""
    mesh = cpu(**axes)
    ledger = read(
        mesh, mapped(lambda b: jax.lax.psum(b, "one"), P(*spec), P(*spec))(mesh), array(mesh, (64, 64), *spec)
    )
    assert [(str(t.kind), t.group_size, t.payload_bytes, t.wire_bytes) for t in ledger.transfers] == [
        ("all_reduce", 1, payload, 0)
    ]


def test_a_program_from_before_partitioning_has_no_transfers_and_the_note_says_why():
    mesh = cpu(d=8)
    lowered = jax.jit(lambda a: pinned(mesh, a, None, "d") @ a).lower(array(mesh, (64, 64), "d"))
    ledger = read_text(lowered.as_text("hlo"))
    assert (ledger.transfers, ledger.is_complete) == ((), False)
    assert any("not partitioned yet" in note for note in ledger.notes)
