"""`lab.inspect` from Python, on functions, lowered and compiled objects, and texts."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import lab
from lab.compile import inspection, sources, xla_dump
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from tests.cases.compiling import ahead_of_time_gpu, mesh_on

pytestmark = pytest.mark.compiles

TARGET = parse_target("cpu:8")


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(TARGET, Axes.parse("data=2,tensor=4"))


@pytest.fixture(scope="module")
def arguments(mesh):
    """w [64, 32] split by rows over tensor, x [16, 64] by rows over data and columns over tensor."""
    w = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("tensor")))
    x = jax.ShapeDtypeStruct((16, 64), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data", "tensor")))
    return w, x


def product(w, x):
    with jax.named_scope("product"):
        return x @ w


def test_partial_products_of_8_rows_are_summed_over_tensor(mesh, arguments):
    ledger = lab.inspect(product, *arguments, mesh=mesh)
    (transfer,) = ledger.transfers
    assert (transfer.kind, transfer.axes, transfer.payload_bytes) == ("all_reduce", ("tensor",), 8 * 32 * 4)
    assert ledger.mesh == {"data": 2, "tensor": 4}
    assert ledger.flops == 2 * 8 * 16 * 32


def test_plain_jitted_lowered_and_compiled_give_the_same_transfers(mesh, arguments):
    jitted = jax.jit(product)
    lowered = jitted.lower(*arguments)
    programs = (product, *arguments), (jitted, *arguments), (lowered,), (lowered.compile(),)
    ledgers = [lab.inspect(*program, mesh=mesh) for program in programs]
    assert all(ledger.transfers == ledgers[0].transfers for ledger in ledgers)


def test_what_flax_jits_has_the_transfers_of_what_jax_does(mesh, arguments):
    jitted = nnx.jit(product)
    with jax.set_mesh(mesh):
        lowered = jitted.lower(*arguments)
    expected = lab.inspect(product, *arguments).transfers
    for program in ((jitted, *arguments), (lowered,), (lowered.compile(),)):
        assert lab.inspect(*program, mesh=mesh).transfers == expected


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_argument_on_an_abstract_mesh_lies_where_another_says(mesh, arguments, order):
    w, x = arguments
    abstract = jax.ShapeDtypeStruct(
        w.shape, w.dtype, sharding=NamedSharding(mesh.abstract_mesh, PartitionSpec("tensor"))
    )
    given = [(abstract, x)[place] for place in order]
    ledger = lab.inspect(product if order == (0, 1) else lambda x, w: product(w, x), *given)
    assert ledger.mesh == {"data": 2, "tensor": 4}
    assert [t.payload_bytes for t in ledger.transfers] == [8 * 32 * 4]


def test_a_builder_may_return_what_is_lowered_or_compiled(mesh, arguments):
    lowered = jax.jit(product).lower(*arguments)
    for built in (lowered, lowered.compile(), (lowered, ())):
        program, args = sources.program("step.py:build", lambda _: built, mesh)
        assert len(lab.inspect(program, *args).transfers) == 1


def test_what_is_lowered_already_says_how_its_arguments_lie(mesh, arguments):
    read = inspection.read_program(jax.jit(product).lower(*arguments), (), None, None, source="step")
    assert [given.parts for given in read.given] == [8, 8]


def test_what_is_lowered_for_a_mesh_of_its_own_is_read_on_it(arguments):
    offered = jax.make_mesh((8,), ("devices",), axis_types=(AxisType.Auto,))
    lowered = jax.jit(product).lower(*arguments)
    for program in (lowered, lowered.compile()):
        assert lab.inspect(program, mesh=offered).mesh == {"data": 2, "tensor": 4}


def test_a_mesh_that_splits_an_axis_is_taken_where_its_devices_have_the_same_order(mesh, arguments):
    lowered, split = jax.jit(product).lower(*arguments), mesh.devices.reshape(2, 2, 2)
    for devices, expected in ((split, {"data": 2, "high": 2, "low": 2}), (split[::-1], {"data": 2, "tensor": 4})):
        assert lab.inspect(lowered, mesh=Mesh(devices, ("data", "high", "low"))).mesh == expected


def test_an_argument_that_a_step_does_without_moves_no_other_out_of_its_place(mesh):
    lies = [NamedSharding(mesh, PartitionSpec(spec)) for spec in ("data", "tensor", ("data", "tensor"))]
    unused, used, also = (jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=each) for each in lies)
    lowered = jax.jit(lambda unused, used, also: used + also).lower(unused, used, also)
    for program in (lowered, lowered.compile()):
        read = inspection.read_program(program, (), None, None, source="step")
        assert [given.parts for given in read.given][1:] == [8, 8]


def test_the_mesh_of_the_arguments_is_taken_where_none_is_given(arguments):
    assert lab.inspect(product, *arguments).mesh == {"data": 2, "tensor": 4}


def test_the_mesh_of_a_compiled_object_is_found_in_its_shardings(arguments):
    assert lab.inspect(jax.jit(product).lower(*arguments).compile()).mesh == {"data": 2, "tensor": 4}


def test_arguments_without_shardings_run_on_the_whole_mesh(mesh):
    ledger = lab.inspect(product, jnp.ones((64, 32)), jnp.ones((16, 64)), mesh=mesh)
    assert (ledger.devices, ledger.transfers) == (8, ())


def test_memory_of_one_device_holds_its_share_of_the_arguments(mesh, arguments):
    memory = lab.inspect(product, *arguments, mesh=mesh).memory
    assert memory.arguments == (64 * 32 // 4 + 16 * 64 // 8) * 4
    assert memory.outputs == 8 * 32 * 4


def test_the_peak_of_a_cpu_program_is_left_out(mesh, arguments):
    assert lab.inspect(product, *arguments, mesh=mesh).memory.peak is None


def test_a_text_gives_the_transfers_of_the_compiled_object_it_came_from(tmp_path, mesh, arguments):
    compiled = jax.jit(product).lower(*arguments).compile()
    path = tmp_path / "product.hlo"
    path.write_text(compiled.as_text())
    assert (
        lab.inspect(path, mesh=Axes.of(mesh.shape), target="cpu:8").transfers
        == lab.inspect(compiled, mesh=mesh).transfers
    )


def test_a_target_tells_the_link(mesh, arguments):
    (transfer,) = lab.inspect(product, *arguments, mesh=mesh, target="cpu:8").transfers
    assert transfer.link == "host"


def test_a_folder_of_two_modules_needs_a_choice(tmp_path, mesh, arguments):
    text = jax.jit(product).lower(*arguments).compile().as_text()
    for number in (1, 2):
        (tmp_path / f"module_{number:04}.jit_product.cpu_after_optimizations.txt").write_text(text)
    with pytest.raises(UsageError, match="2 partitioned modules"):
        lab.inspect(tmp_path)


def test_the_mesh_of_another_size_is_refused(arguments):
    with pytest.raises(UsageError, match="8 devices"):
        lab.inspect(jax.jit(product).lower(*arguments), mesh=Axes.parse("tensor=4"))


def test_a_text_in_place_of_its_path_is_refused_without_being_printed():
    with pytest.raises(UsageError) as refused:
        lab.inspect("HloModule jit_f\n\nENTRY %main {}\n")
    assert str(refused.value) == "found a text of 32 characters, expected the path of a file with it"


@pytest.mark.parametrize(
    ("value", "said"),
    [("abc", "argument x: found a value of type str"), ({"a": [1, object()]}, r"argument x\['a'\]\[1\]: ")],
)
def test_an_argument_that_is_no_array_is_refused_by_its_place(value, said):
    with pytest.raises(UsageError, match=f"^given: {said}.*expected an array or a jax.ShapeDtypeStruct"):
        lab.inspect(given, value)


def test_an_error_of_types_inside_a_program_stays_what_it_is():
    with pytest.raises(TypeError, match="unsupported operand"):
        lab.inspect(lambda x: x + object(), 1.0)


def given(x):
    return x


def test_a_program_on_one_device_is_headed_so():
    assert str(lab.inspect(product, jnp.ones((64, 32)), jnp.ones((16, 64)))).startswith("product: 1 device\n")


@ahead_of_time_gpu
def test_a_step_that_prints_compiles_for_devices_that_only_compile():
    def step(x):
        jax.debug.print("sum {}", x.sum())
        return x.sum()

    mesh = mesh_on("gpu:h100:1x2", data=2)
    rows = jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data")))
    assert [(t.kind, t.payload_bytes) for t in lab.inspect(step, rows).transfers] == [("all_reduce", 8)]


@ahead_of_time_gpu
def test_what_is_advised_of_a_step_that_prints_is_tried_too():
    def step(w, x):
        jax.debug.print("{}", x[0, 0])
        return w - x.T @ (x @ w)

    mesh = mesh_on("gpu:h100:1x4", data=4)
    w, x = (
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec)))
        for shape, spec in [((128, 256), (None, "data")), ((64, 128), ("data",))]
    )
    said = str(lab.diagnose(step, w, x, target="gpu:h100:1x4"))
    assert "tried: " in said and "not tried" not in said


def runs_on_the_mesh(mesh):
    with jax.set_mesh(mesh):
        return product, (jax.random.key(0),)


def puts_on_the_mesh(mesh):
    return product, (jax.device_put(jnp.zeros(8), NamedSharding(mesh, PartitionSpec("data"))),)


@ahead_of_time_gpu
@pytest.mark.parametrize("build", [runs_on_the_mesh, puts_on_the_mesh])
def test_a_builder_that_makes_arrays_on_devices_that_only_compile_is_sent_to_shapes(build):
    mesh = mesh_on("gpu:h100:1x2", data=2)
    with pytest.raises(UsageError, match="no array can be put on them.*jax.eval_shape, jax.ShapeDtypeStruct"):
        sources.program("step.py:build", build, mesh)


@pytest.mark.parametrize("failure", [StopIteration(), ValueError("no buffer assignment"), jax.errors.JaxRuntimeError()])
def test_without_a_dump_of_its_buffers_a_program_is_diagnosed_all_the_same(monkeypatch, failure):
    def held(lowered, options):
        raise failure

    monkeypatch.setattr(xla_dump, "held_at_peak", held)
    assert inspection._compiled_again(None, {}) == ()
