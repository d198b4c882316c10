"""What is proven to send the least, and that a program which sends more is not."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from lab import diagnosis
from lab.compile import inspection
from lab.core.units import exact
from lab.meshes.axes import Axes
from lab.redistribution import Array, Placement, least_bytes, least_bytes_together
from lab.report.diagnosis import verdict
from tests.cases.compiling import ahead_of_time_gpu, array, cpu, mesh_on, pinned
from tests.lab.diagnosis.diagnosing import diagnosed, kinds
from tests.lab.diagnosis.test_controls import diagnosed_step

pytestmark = pytest.mark.compiles
XY = Axes.parse("x=4,y=2")


def test_a_program_that_sends_nothing_sends_the_least():
    mesh = cpu(d=8)
    found = diagnosed(mesh, lambda x: 2 * x, array(mesh, (64, 64), "d"), out=P("d"))
    assert found.least == "it sends nothing, and nothing sends less"
    assert verdict(found).endswith("kinds of waste were looked for); it sends nothing, and nothing sends less")
    assert found.json_object().least == found.least


def moved(function, *out, before=("x", None), shapes=((64, 64),)):
    """As JAX traces it: compiled text does not say that a result is an argument."""
    mesh = cpu(x=4, y=2)
    args = [array(mesh, shape, *before) for shape in shapes]
    shardings = [jax.NamedSharding(mesh, spec) for spec in out]
    jitted = jax.jit(function, out_shardings=shardings[0] if len(out) == 1 else tuple(shardings))
    return diagnosis.of(inspection.read_program(jitted, args, mesh, None, source="moved"))


def test_an_exchange_of_shards_is_the_least_by_which_an_array_can_be_laid_out_anew():
    found = moved(lambda a: a, P(None, "x"))
    assert [str(t.kind) for t in found.ledger.transfers] == ["all_to_all"]
    bound = least_bytes(Placement.of("x", None), Placement.of(None, "x"), Array((64, 64)), XY)
    assert found.least == (
        f"{int(bound):,} B are the least by which its argument can be laid out anew from P(x, -) to P(-, x)"
    )


def gathered_whole(a):
    mesh = cpu(x=4, y=2)
    return pinned(mesh, pinned(mesh, a, None, None), None, "x")


@pytest.mark.parametrize(
    ("function", "out"),
    [
        (gathered_whole, [P(None, "x")]),
        (lambda a: (a, jnp.sum(jnp.sin(a), axis=0)), [P(None, "x"), P()]),
        (lambda a: a[::-1], [P(None, "x")]),
        (lambda a: a.T, [P("x", None)]),
    ],
    ids=["gathered whole", "summed beside", "reversed", "transposed"],
)
def test_what_sends_more_or_gives_no_argument_back_is_not_called_the_least(function, out):
    found = moved(function, *out)
    assert found.ledger.transfers and found.least is None


def test_what_is_computed_beside_an_argument_that_has_to_move_changes_nothing():
    found = moved(lambda a: (a, 2 * a), P(None, "x"), P("x", None))
    assert found.least is not None and found.least.startswith("3,072 B are the least by which its argument")


def test_what_one_argument_takes_to_be_given_back_twice_is_not_the_sum_of_both():
    found = moved(lambda a: (a, a), P(None, "x"), P())
    sent = [t.wire_bytes for t in found.ledger.transfers]
    assert len(sent) == 2 and max(sent) < sum(sent) and found.least is None
    assert "its argument" in (moved(lambda a: (a, a), P(), P()).least or "")


def test_several_arrays_take_what_the_device_that_lacks_most_of_all_of_them_must_receive():
    found = moved(lambda a, b: (b, a), P(None, "x"), P(), shapes=((64, 64), (32, 8)))
    assert found.least is not None and "its 2 arguments can be laid out anew" in found.least
    one = Placement.of("x"), Placement.of(None), Array((8,))
    # A device that holds the first half of a lacks nothing of it once it has both: another lacks most of b.
    ends = (Placement.of(("x", "y")), Placement.of(("y", "x")), Array((8,)))
    together, apart = least_bytes_together([one, ends], XY), least_bytes(*one, XY) + least_bytes(*ends, XY)
    assert together <= apart and least_bytes_together([one], XY) == least_bytes(*one, XY)


def loss(w, x):
    return jnp.mean(jnp.square(jnp.tanh(x @ w["up"]) @ w["down"]))


def adam(w, m, x, of=loss):
    value, g = jax.value_and_grad(of)(w, x)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    return value, jax.tree.map(lambda w, m: w - m / (1 + jnp.sqrt(jnp.abs(m))), w, m), m


def data_parallel(step, *spec, dtype=jnp.float32):
    mesh = cpu(data=8)
    w = {name: array(mesh, (64, 64), *spec, dtype=dtype) for name in ("up", "down")}
    x, out = array(mesh, (256, 64), "data", dtype=dtype), (P(), P(*spec), P(*spec))
    return diagnosed(mesh, step, w, w, x, out=out, donate_argnums=(0, 1))


def test_data_parallelism_that_sums_each_gradient_once_sends_its_least():
    found = data_parallel(adam)
    assert found.ledger.totals().wire_bytes == 2 * 7 * (2 * 64 * 64 * 4 + 4) // 8
    assert found.least == (
        "it sends the least of data parallelism over data: each of 2 gradients is summed once, beside 1 number such as "
        "a loss"
    )


def with_table(target, tokens: int, loss):
    """A step of a table of 1,024 rows of 64 numbers, and of a weight."""
    mesh = mesh_on(target, data=8)

    def step(w, tokens_B):
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, jax.grad(loss)(w, tokens_B))

    w = {"table": array(mesh, (1024, 64)), "w": array(mesh, (64, 64))}
    tokens_B = array(mesh, (tokens,), "data", dtype=jnp.int32)
    told = diagnosed(mesh, step, w, tokens_B, out=P(), target=None if target == "cpu:8" else target, donate_argnums=0)
    return mesh, w, tokens_B, told


def looked_up(w, tokens_B):
    return jnp.sum(jnp.tanh(w["table"][tokens_B] @ w["w"]) ** 2)


def tied_to_its_head(w, tokens_B):
    return jnp.sum(jnp.tanh(w["table"][tokens_B] @ w["w"] @ w["table"].T) ** 2)


@pytest.mark.parametrize("target", ["cpu:8", pytest.param("gpu:h100:1x8", marks=ahead_of_time_gpu)])
def test_a_tables_whole_gradient_is_the_least_of_whole_ones_alone_where_its_rows_are_fewer_bytes(target):
    mesh, w, tokens_B, told = with_table(target, 64, looked_up)

    def as_rows(w, tokens_B):
        gradient, rows_BD = jax.grad(lambda w, rows_BD: jnp.sum(jnp.tanh(rows_BD @ w) ** 2), argnums=(0, 1))(
            w["w"], w["table"][tokens_B]
        )
        rows_BD, tokens_B = (jax.lax.all_gather(x, "data", tiled=True) for x in (rows_BD, tokens_B))
        return {
            "table": w["table"].at[tokens_B].add(-0.1 * rows_BD),
            "w": w["w"] - 0.1 * jax.lax.psum(gradient, "data"),
        }

    mapped = jax.shard_map(as_rows, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    better = diagnosed(mesh, mapped, w, tokens_B, target=None if target == "cpu:8" else target)
    saved = told.ledger.totals().wire_bytes - better.ledger.totals().wire_bytes
    whole = 2 * 7 * 1024 * 64 * 4 // 8
    assert told.least == (
        "it sends the least of data parallelism over data that sums whole gradients: each of 2 gradients is summed "
        "once; gathered as the rows that devices look up, and their numbers, that of w['table'] would be "
        f"{exact(whole - saved)} B instead of {exact(whole)}"
    )


@ahead_of_time_gpu
def test_rows_that_a_gpu_takes_once_more_to_use_them_again_are_counted_once():
    def used_again(w, tokens_B):
        return jnp.sum((jnp.tanh(w["table"][tokens_B]) @ w["w"]) ** 2)

    least = with_table("gpu:h100:1x8", 64, used_again)[-1].least
    assert least.endswith(f"would be {exact(7 * 8 * (64 + 1) * 4)} B instead of {exact(2 * 7 * 1024 * 64 * 4 // 8)}")


def test_a_table_of_which_rows_are_no_fewer_bytes_is_summed_whole():
    least = with_table("cpu:8", 8192, looked_up)[-1].least
    assert least == "it sends the least of data parallelism over data: each of 2 gradients is summed once"


def test_of_a_table_that_is_also_multiplied_no_rows_would_do():
    mesh = cpu(data=8)

    def step(w, tokens_B):
        gradient = jax.lax.psum(jax.grad(tied_to_its_head)(w, tokens_B), "data")
        return jax.tree.map(lambda w, g: w - 0.1 * g, w, gradient)

    mapped = jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    w = {"table": array(mesh, (1024, 64)), "w": array(mesh, (64, 64))}
    found = diagnosed(mesh, mapped, w, array(mesh, (64,), "data", dtype=jnp.int32))
    assert found.least == "it sends the least of data parallelism over data: each of 2 gradients is summed once"


def test_gradients_that_are_widened_take_more_than_their_weights():
    found = data_parallel(adam, dtype=jnp.bfloat16)
    assert kinds(found) == [] and found.least is None


def frozen(w, x):
    return loss({"up": w["up"], "down": jax.lax.stop_gradient(w["down"])}, x)


def test_one_gradient_that_is_summed_twice_does_not_pass_for_two():
    """Beside a weight that is not trained, and moments of the same shape."""
    mesh = cpu(data=8)

    def twice(w, m, x):
        halves = [jax.grad(frozen)(w, half)["up"] for half in jnp.split(x, 2)]
        g = jnp.tanh(jax.lax.psum(halves[0], "data")) + jnp.tanh(jax.lax.psum(halves[1], "data"))
        return w["up"] - 0.1 * g * m["up"]

    w = {name: array(mesh, (64, 64)) for name in ("up", "down")}
    step = jax.shard_map(twice, mesh=mesh, in_specs=(P(), P(), P("data")), out_specs=P(), check_vma=False)
    found = diagnosed(mesh, step, w, w, array(mesh, (256, 64), "data"))
    assert (found.ledger.totals().arrays, found.least) == (2, None)


def test_two_sums_of_one_gradient_are_two_though_one_of_them_is_also_given_back_alone():
    mesh = cpu(data=8)

    def twice(w, x):
        half, other = (jax.lax.psum(jax.grad(frozen)(w, rows)["up"], "data") for rows in jnp.split(x, 2))
        return w["up"] - jnp.tanh(half) - jnp.tanh(other), half

    w = {name: array(mesh, (64, 64)) for name in ("up", "down")}
    step = jax.shard_map(twice, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
    found = diagnosed(mesh, step, w, array(mesh, (256, 64), "data"))
    assert (found.ledger.totals().arrays, found.least) == (2, None)


@pytest.mark.parametrize(("axes", "is_least"), [((("d", "f"),), True), (("d", "f"), False)])
def test_a_gradient_that_is_summed_over_one_axis_after_the_other_takes_more_than_over_both(axes, is_least):
    mesh = cpu(d=2, f=4)

    def step(w, x):
        g = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)
        for some in axes:
            g = jax.lax.psum(g, some)
        return w - g

    own = jax.shard_map(step, mesh=mesh, in_specs=(P(), P(("d", "f"))), out_specs=P(), check_vma=False)
    found = diagnosed(mesh, own, array(mesh, (64, 64)), array(mesh, (64, 64), ("d", "f")))
    assert (found.least is not None) == is_least


def test_a_gather_of_activations_beside_the_gradients_is_more_than_the_least():
    def gathered(w, x):
        whole = pinned(cpu(data=8), jnp.tanh(x @ w["up"]), None, None)
        return jnp.mean(jnp.square(whole @ w["down"])) + jnp.sum(whole)

    found = data_parallel(lambda w, m, x: adam(w, m, x, gathered))
    assert "all_gather" in {str(t.kind) for t in found.ledger.transfers} and found.least is None


def fsdp(times: int):
    mesh = cpu(fsdp=8)

    def step(w, x):
        def sharded(w):
            whole = jax.lax.all_gather(w, "fsdp", tiled=True)
            for _ in range(times - 1):
                again = jax.lax.all_gather(w + 0.0 * jnp.sum(whole), "fsdp", tiled=True)
                whole = whole + jnp.tanh(again)
            return jnp.sum(jnp.square(x @ whole))

        return w - 0.1 * jax.grad(sharded)(w)

    function = jax.shard_map(step, mesh=mesh, in_specs=(P("fsdp"), P("fsdp")), out_specs=P("fsdp"), check_vma=False)
    return diagnosed(mesh, function, array(mesh, (64, 32), "fsdp"), array(mesh, (128, 64), "fsdp"))


def test_sharded_weights_gathered_once_and_scattered_once_are_the_least_and_gathered_twice_are_not():
    found = fsdp(1)
    assert sorted(str(t.kind) for t in found.ledger.transfers) == ["all_gather", "reduce_scatter"]
    assert found.least == (
        "it sends the least of data parallelism over fsdp: each of 1 gradient is summed once, each of 1 sharded weight "
        "is gathered once a pass"
    )
    assert fsdp(2).least is None


def layered(around):
    mesh = cpu(fsdp=8)

    def step(w, x):
        def layer(x, w):
            return jnp.tanh(x @ jax.lax.all_gather(w, "fsdp", tiled=True)), None

        return w - 0.1 * jax.grad(lambda w: jnp.sum(jax.lax.scan(around(layer), x, w)[0]))(w)

    rows = P(None, "fsdp")
    function = jax.shard_map(step, mesh=mesh, in_specs=(rows, P("fsdp")), out_specs=rows, check_vma=False)
    return diagnosed(mesh, function, array(mesh, (4, 64, 64), *rows), array(mesh, (16, 64), "fsdp"))


def test_weights_that_are_gathered_again_for_the_backward_pass_are_the_least_of_steps_that_do_not_keep_them():
    kept, again = layered(lambda layer: layer), layered(jax.checkpoint)
    assert kept.ledger.totals().wire_bytes * 3 == again.ledger.totals().wire_bytes * 2
    assert again.least == (
        "it sends the least of data parallelism over fsdp that keeps no gathered weight for the backward pass: each of "
        "1 gradient is summed once, each of 1 sharded weight is gathered once a pass"
    )


def test_without_what_jax_has_traced_nothing_is_said_of_a_redistribution(tmp_path):
    mesh = cpu(x=4, y=2)
    text = jax.jit(lambda a: a, out_shardings=jax.NamedSharding(mesh, P(None, "x"))).lower(array(mesh, (64, 64), "x"))
    (tmp_path / "step.hlo").write_text(text.compile().as_text())
    (read,) = inspection.read_texts(tmp_path / "step.hlo", XY, None)
    assert diagnosis.of(read).least is None


def zero1(is_scattered: bool, updates: int = 1):
    """Each device updates its rows of a whole weight."""
    mesh = cpu(data=8)

    def step(w, m, x):
        g = jax.grad(lambda w: jnp.sum(jnp.square(jnp.tanh(x @ w))))(w)
        start = 8 * jax.lax.axis_index("data")
        if is_scattered:
            rows = jax.lax.psum_scatter(g, "data", tiled=True)
        else:
            rows = jax.lax.dynamic_slice_in_dim(jax.lax.psum(g, "data"), start, 8)
        m = 0.9 * m + rows
        w = jax.lax.dynamic_slice_in_dim(w, start, 8) - m
        for _ in range(updates):
            whole = jax.lax.all_gather(w, "data", tiled=True)
            w = jnp.tanh(jax.lax.dynamic_slice_in_dim(whole, (start + 8) % 64, 8))
        return whole, m

    specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": (P(), P("data"))}
    function = jax.shard_map(step, mesh=mesh, **specs, check_vma=False)
    return diagnosed(
        mesh, function, array(mesh, (64, 32)), array(mesh, (64, 32), "data"), array(mesh, (128, 64), "data")
    )


def test_a_gradient_that_is_scattered_and_an_update_that_is_gathered_are_the_least_and_more_is_not():
    found = zero1(is_scattered=True)
    assert found.ledger.totals().wire_bytes == 2 * 7 * 64 * 32 * 4 // 8
    assert found.least == (
        "it sends the least of data parallelism over data: each of 1 gradient is summed once, each of 1 updated weight is "
        "gathered once"
    )
    assert zero1(is_scattered=True, updates=2).least is None
    assert zero1(is_scattered=False).least is None


def test_gradients_that_a_compiler_for_cpus_sums_whole_before_updates_are_gathered_are_not_the_least():
    """Half as much again; GPUs scatter them."""
    found = diagnosed_step("zero1", "declared", "cpu:8")
    assert (kinds(found), found.least) == ([], None)
