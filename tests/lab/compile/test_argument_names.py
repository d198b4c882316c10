"""Arguments of steps of `flax.nnx` are named as the program writes them, and not by their number."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from lab.compile import shapes_only

pytestmark = pytest.mark.compiles
KERNELS = ("layers[0].kernel", "layers[1].kernel", "head.kernel")


class Model(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])
        self.head = nnx.Linear(4, 8, use_bias=False, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Tied(nnx.Module):
    """With a weight of another module, and one of a name that Python does not take for one."""

    def __init__(self, model: Model) -> None:
        self.more = nnx.Dict({"out proj": model.head})
        self.scale = nnx.Param(jnp.ones(8))


@nnx.jit
def step(models, optimizer, x, *, scale):
    def loss(model):
        return jnp.mean(model(x) ** 2) * scale.get_value()

    optimizer.update(models[0], nnx.grad(loss)(models[0]))


def arguments():
    model = Model()
    return [model, Tied(model)], nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param), jnp.ones((2, 4))


def names(traced) -> tuple[str, ...]:
    return traced.jaxpr.jaxpr.debug_info.arg_names


@pytest.mark.parametrize("is_called_before", [False, True])
def test_modules_that_nnx_jit_takes_apart_are_named_by_their_attributes(is_called_before):
    models, optimizer, x = arguments()
    scale = nnx.Param(jnp.ones(()))
    if is_called_before:  # JAX traces it no more then.
        step(models, optimizer, x, scale=scale)
    traced = step.trace(models, optimizer, x, scale=scale).traced
    by_number, found = names(traced), names(shapes_only.with_names(traced))
    assert {f"models[0].{kernel}" for kernel in KERNELS} <= set(found)
    assert {f"optimizer.opt_state[0].trace.{kernel}" for kernel in KERNELS} <= set(found)
    assert {"models[0].layers[1].bias", "models[1].scale", "x", "scale"} <= set(found)
    # Each by its shape: no two names are exchanged.
    shapes = dict(zip(found, (aval.shape for aval in traced.jaxpr.in_avals), strict=True))
    assert shapes["models[0].head.kernel"] == (4, 8) and shapes["models[0].layers[0].bias"] == (4,)
    assert len(set(found)) == len(found) == len(by_number)
    assert not any(".states[" in name for name in found)


def test_states_by_filter_are_named_alike():
    shardings = nnx.StateSharding({nnx.Param: None, ...: None})
    traced = nnx.jit(lambda model: model.head.kernel[...], in_shardings=(shardings,)).trace(Model()).traced
    assert set(names(shapes_only.with_names(traced))) >= {f"model.{kernel}" for kernel in KERNELS}


def test_a_split_state_has_the_paths_that_flax_gives_it():
    graph, state = nnx.split(Model())
    traced = jax.jit(lambda state, x: nnx.merge(graph, state)(x)).trace(state, jnp.ones((2, 4)))
    assert "state['layers'][0]['kernel'].value" in names(shapes_only.with_names(traced))


def test_a_step_that_a_script_calls_has_these_names_too():
    devices = jax.devices()[:2]
    mesh = jax.sharding.Mesh(devices, ("data",), axis_types=(AxisType.Auto,))
    with shapes_only.follow(devices) as calls, jax.set_mesh(mesh):
        models, optimizer, x = arguments()
        step(models, optimizer, jax.device_put(x, NamedSharding(mesh, P("data"))), scale=nnx.Param(jnp.ones(())))
        (call,) = (call for call in calls if call.name == "step")
    assert {f"models[0].{kernel}" for kernel in KERNELS} <= set(names(call.traced))
