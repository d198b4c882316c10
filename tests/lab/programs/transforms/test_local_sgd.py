"""A meeting of replicas: what becomes of weights, anchor and momentum, by the book's formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from lab.book.local_sgd import nesterov
from lab.meshes.axes import REPLICA
from lab.programs.strategies.program import TrainState
from lab.programs.transforms.local_sgd import DILOCO, LOCAL_SGD, MIXED, RoundShape, RoundState, _fragment, _met
from tests.cases.compiling import cpu

pytestmark = pytest.mark.compiles
LAYERS, WIDTH = 4, 3


def weights(seed: int, *first: int) -> dict[str, nnx.Variable]:
    draw = np.random.default_rng(seed).standard_normal
    sizes = {"norm": ("embed",), "stack": ("layers", "embed")}
    return {
        name: nnx.Variable(
            jnp.asarray(draw((*first, *{"layers": (LAYERS,)}.get(dims[0], ()), WIDTH)), jnp.float32), dims=dims
        )
        for name, dims in sizes.items()
    }


def met(rounds, shape: RoundShape, number: int, kept: float = 0.0):
    """Own weights of two replicas, anchor and momentum after the meeting of a fragment, and what was before and came."""
    own, anchor, momentum, mean = weights(0, 2), weights(1), weights(2), weights(3)

    def run(own, anchor, momentum, mean):
        master = jax.tree.map(lambda x: x[0], own)
        state = RoundState(TrainState(master, (), None), *((anchor, momentum) if rounds.outer else (None, None)))
        fragment = _fragment(state, shape, jnp.int32(number))
        after = _met(rounds, state, fragment, fragment.of(mean), kept)
        return jax.tree.map(lambda x: x[None], after.replicas.master), after.anchor, after.momentum

    specs = P(REPLICA), P(), P(), P()
    on_ranks = jax.shard_map(run, mesh=cpu(replica=2), in_specs=specs, out_specs=specs[:3])
    before = own, anchor, momentum, mean
    return tuple({} if tree is None else numbers(tree) for tree in (*before, *jax.jit(on_ranks)(*before)))


def numbers(tree) -> dict[str, np.ndarray]:
    return {name: np.asarray(w.get_value(), np.float64) for name, w in tree.items()}


@pytest.mark.parametrize(
    "fragments, number, kept, moved",
    [(1, 0, 0.0, {"norm": slice(None), "stack": slice(None)}), (2, 1, MIXED, {"stack": slice(2, 4)})],
    ids=["all at once", "the second half, late"],
)
def test_diloco_takes_the_books_outer_step_of_what_meets_and_leaves_the_rest(fragments, number, kept, moved):
    shape = RoundShape(layers=LAYERS, every=4, fragments=fragments)
    own, anchor, momentum, mean, *after = met(DILOCO, shape, number, kept)
    step = np.vectorize(nesterov, otypes=[float, float])
    for name in own:
        at = moved.get(name, slice(0))
        weight, u = anchor[name].copy(), momentum[name].copy()
        weight[at], u[at] = step(anchor[name][at], momentum[name][at], mean[name][at])
        replicas = own[name].copy()
        replicas[:, at] = kept * own[name][:, at] + (1 - kept) * weight[at]
        for found, expected in zip(after, (replicas, weight, u), strict=True):
            np.testing.assert_allclose(found[name], expected, atol=1e-5)


def test_local_sgd_takes_the_mean_itself():
    own, *_, mean, after, anchor, momentum = met(LOCAL_SGD, RoundShape(layers=LAYERS, every=4), 0)
    for name in own:
        np.testing.assert_allclose(after[name], np.stack([mean[name]] * 2), atol=1e-6)
    assert anchor == momentum == {}
