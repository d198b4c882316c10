"""The same step as several libraries and idioms write it: a weight [64, 32] split over `model`, rows of a batch over
`data`, whose gradient is summed over `data`, 64 x 16 floats on a device, and nothing else is sent."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from flax.linen import partitioning
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding, PartitionSpec

import lab
from lab.compile import sources
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.devices import typed
from lab.meshes.targets import parse_target

pytestmark = pytest.mark.compiles

IN, OUT, ROWS = 64, 32, 16
RULES = (("batch", "data"), ("in", None), ("out", "model"))


def array(mesh, shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*spec)))


def weight(mesh):
    return array(mesh, (IN, OUT), None, "model")


def rows(mesh):
    return array(mesh, (ROWS, IN), "data")


def whole(mesh):
    """A batch that every device has."""
    return array(mesh, (ROWS, IN))


def loss(w, x, power=2):
    return jnp.mean((x @ w) ** power)


def plain(mesh):
    return lambda w, x: w - jax.grad(loss)(w, x), (weight(mesh), rows(mesh))


def static_and_donated(mesh):
    step = jax.jit(
        lambda w, power, x, *, name: (w - jax.grad(loss)(w, x, power), {"sgd": 1, "none": 0}[name])[0],
        static_argnums=1,
        static_argnames="name",
        donate_argnums=0,
    )
    return partial(step, name="sgd"), (weight(mesh), 2, rows(mesh))


@partial(jax.tree_util.register_dataclass, data_fields=("w",), meta_fields=("power",))
@dataclass
class Linear:
    """As `equinox.Module` is: a tree whose fields are arrays, or none of JAX's."""

    w: jax.Array
    power: int

    def loss(self, x):
        return loss(self.w, x, self.power)


def dataclass_tree(mesh):
    def step(layer, x):
        return jax.tree.map(jnp.subtract, layer, jax.grad(Linear.loss)(layer, x))

    return jax.jit(step, donate_argnames="layer"), (Linear(weight(mesh), 2), rows(mesh))


class Dense(nn.Module):
    """By the mesh's axes, or by names that rules translate."""

    logical: bool = False

    @nn.compact
    def __call__(self, x):
        make = nn.initializers.ones_init()
        named = (
            nn.with_logical_partitioning(make, ("in", "out"))
            if self.logical
            else nn.with_partitioning(make, (None, "model"))
        )
        y = nn.Dense(OUT, use_bias=False, kernel_init=named)(x)
        return nn.with_logical_constraint(y, ("batch", "out")) if self.logical else y


def train_state(mesh, model):
    """Of `flax.linen`, with the function and the optimizer as what is no array."""

    def init():
        params = model.init(jax.random.key(0), jnp.ones((ROWS, IN)))["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.1))

    shapes = jax.eval_shape(init)
    shardings = (
        nn.logical_to_mesh_sharding(nn.get_partition_spec(shapes), mesh, RULES)
        if model.logical
        else nn.get_sharding(shapes, mesh)
    )
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), nn.unbox(shapes), shardings
    )


def updated(state, x):
    return state.apply_gradients(
        grads=jax.grad(lambda p: jnp.mean(state.apply_fn({"params": p}, x) ** 2))(state.params)
    )


def linen(mesh):
    return jax.jit(updated, donate_argnums=0), (train_state(mesh, Dense()), rows(mesh))


def linen_with_rules(mesh):
    @jax.jit
    def step(state, x):
        with nn.logical_axis_rules(RULES):
            return updated(state, x)

    return step, (train_state(mesh, Dense(logical=True)), whole(mesh))


def as_maxtext_lowers(mesh):
    state = train_state(mesh, Dense(logical=True))
    with jax.set_mesh(mesh), partitioning.axis_rules(RULES):
        return jax.jit(updated, donate_argnums=0, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, state)).lower(
            state, whole(mesh)
        )


def model_and_optimizer():
    init = nnx.with_partitioning(nnx.initializers.ones_init(), (None, "model"))
    model = nnx.Linear(IN, OUT, use_bias=False, kernel_init=init, rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)


def update(model, optimizer, x):
    optimizer.update(model, nnx.grad(lambda model: jnp.mean(model(x) ** 2))(model))


def nnx_split(mesh):
    with jax.set_mesh(mesh):
        graph, state = nnx.split(nnx.eval_shape(model_and_optimizer))

    @jax.jit
    def step(state, x):
        model, optimizer = nnx.merge(graph, state)
        update(model, optimizer, x)
        return nnx.state((model, optimizer))

    return step, (state, rows(mesh))


def nnx_jit(mesh):
    with jax.set_mesh(mesh):
        model, optimizer = nnx.eval_shape(model_and_optimizer)
    return nnx.jit(update), (model, optimizer, rows(mesh))


def equinox_filter_jit(mesh):
    """Whose `filter_jit` takes a shape for what is no array."""
    equinox = pytest.importorskip("equinox")

    class Layer(equinox.Module):
        w: jax.Array
        activation: Callable[[jax.Array], jax.Array]

        def loss(self, x):
            return loss(self.activation(self.w), x)

    def step(layer, x):
        return equinox.apply_updates(layer, equinox.filter_grad(Layer.loss)(layer, x))

    return equinox.filter_jit(step), (Layer(weight(mesh), jnp.tanh), rows(mesh))


BUILDERS = [
    plain,
    static_and_donated,
    dataclass_tree,
    equinox_filter_jit,
    linen,
    nnx_split,
    nnx_jit,
]
EIGHT = parse_target("cpu:8")
TWELVE = "pod=1,data=4,stage=1,fsdp=1,fsdp_transpose=1,sequence=1,context=1,model=2,expert=1,tensor_sequence=1,autoregressive=1,transpose=1"


def sent(build, mesh):
    return transfers(*sources.program("step.py:build", build, mesh), mesh)


def transfers(program, args, mesh):
    ledger = lab.inspect(program, *args, mesh=mesh)
    return [(each.kind, each.axes, each.payload_bytes, each.executions) for each in ledger.transfers]


GRADIENT = [("all_reduce", ("data",), IN * (OUT // 2) * 4, 1)]


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_a_step_sends_its_gradient_of_4096_bytes_however_it_is_written(build):
    assert sent(build, make_mesh(EIGHT, Axes.parse("data=4,model=2"))) == GRADIENT


def test_on_a_mesh_of_twelve_axes_of_which_ten_are_1_the_two_others_are_named():
    assert sent(nnx_split, make_mesh(EIGHT, Axes.parse(TWELVE))) == GRADIENT


@pytest.mark.parametrize("build", [linen_with_rules, as_maxtext_lowers], ids=lambda build: build.__name__)
def test_rules_in_force_while_a_step_is_traced_split_what_names_alone_do_not(build):
    """The result [16, 32] of a batch that every device has; what its gradient needs is gathered, 16 x 16 floats."""
    mesh = make_mesh(EIGHT, Axes.parse("data=4,model=2"))
    assert sent(build, mesh) == [("all_gather", ("data",), ROWS * (OUT // 2) * 4, 1)]


@pytest.mark.parametrize("build", [plain, linen, nnx_jit], ids=lambda build: build.__name__)
def test_a_mesh_in_force_changes_nothing(build):
    mesh = make_mesh(EIGHT, Axes.parse("data=4,model=2"))
    program, args = sources.program("step.py:build", build, mesh)
    with jax.set_mesh(mesh):
        assert transfers(program, args, mesh) == GRADIENT


@pytest.mark.parametrize("explicit", [("data", "model"), ("data",)], ids="+".join)
def test_types_of_arrays_may_say_how_they_are_split_along_all_axes_or_some(explicit):
    mesh = typed(make_mesh(EIGHT, Axes.parse("data=4,model=2")), explicit)
    assert sent(plain, mesh) == GRADIENT
    assert sent(dataclass_tree, mesh) == GRADIENT
