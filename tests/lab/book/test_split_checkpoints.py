"""ZeRO-R's split activations (Ch. 20, 21): each of 4 tensor-parallel ranks keeps a quarter of a block's input and
gathers it to recompute the block."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import lab
from lab.book.parallelism import activation_bytes
from lab.core.ledger import Kind
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target

pytestmark = pytest.mark.compiles

RANKS, LAYERS, TOKENS, EMBED, MLP = 4, 6, 64, 16, 32
AXES = Axes.of({"tensor": RANKS})
PAYLOAD = activation_bytes(TOKENS, EMBED, 4)


def block(x_TD, up_DF, down_FD):
    # A plain psum is its own adjoint only where its cotangent is divided; of equal copies on all ranks it is the
    # identity.
    entered_TD = summed_backward(x_TD)
    return x_TD + summed_forward(jnp.tanh(entered_TD @ up_DF) @ down_FD)


@jax.custom_vjp
def summed_backward(x):
    return x


summed_backward.defvjp(lambda x: (x, None), lambda _, dx: (jax.lax.psum(dx, "tensor"),))


@jax.custom_vjp
def summed_forward(x):
    return jax.lax.psum(x, "tensor")


summed_forward.defvjp(lambda x: (jax.lax.psum(x, "tensor"), None), lambda _, dx: (dx,))


@jax.custom_vjp
def from_its_split_input(x_TD, up_DF, down_FD):
    return block(x_TD, up_DF, down_FD)


def forward(x_TD, up_DF, down_FD):
    mine = jax.lax.axis_index("tensor") * (TOKENS // RANKS)
    return block(x_TD, up_DF, down_FD), (jax.lax.dynamic_slice_in_dim(x_TD, mine, TOKENS // RANKS), up_DF, down_FD)


def backward(kept, dy_TD):
    part_CD, up_DF, down_FD = kept
    x_TD = jax.lax.all_gather(part_CD, "tensor", tiled=True)
    return jax.vjp(block, x_TD, up_DF, down_FD)[1](dy_TD)


from_its_split_input.defvjp(forward, backward)
BLOCKS = {"whole": jax.checkpoint(block), "split": from_its_split_input}


@cache
def compiled(kept: str):
    mesh = make_mesh(parse_target(f"cpu:{RANKS}"), AXES)
    weights = P(None, None, "tensor"), P(None, "tensor")

    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), *weights), out_specs=(P(), *weights), check_vma=False)
    def gradients(x_TD, up_LDF, down_LFD):
        def loss(x_TD, ups, downs):
            x_TD, _ = jax.lax.scan(lambda x, w: (BLOCKS[kept](x, *w), None), x_TD, (ups, downs))
            return jnp.sum(x_TD**2)

        return jax.grad(loss, argnums=(0, 1, 2))(x_TD, up_LDF, down_LFD)

    draw = np.random.default_rng(0)
    shapes = (TOKENS, EMBED), (LAYERS, EMBED, MLP), (LAYERS, MLP, EMBED)
    arguments = [draw.normal(0, 0.2, shape).astype(np.float32) for shape in shapes]
    ready = jax.jit(gradients).lower(*arguments).compile()
    return lab.inspect(ready, mesh=mesh), ready(*arguments)


def test_inputs_split_over_4_tensor_ranks_cost_one_gather_a_block_of_b_s_d_e():
    (whole, _), (split, _) = compiled("whole"), compiled("split")
    gathers = [t for t in split.transfers if t.kind is Kind.ALL_GATHER]
    assert [(t.executions, t.payload_bytes) for t in gathers] == [(LAYERS, PAYLOAD)]
    assert not [t for t in whole.transfers if t.kind is Kind.ALL_GATHER]
    assert [t.executions for t in split.transfers if t.kind is Kind.ALL_REDUCE] == [
        t.executions for t in whole.transfers if t.kind is Kind.ALL_REDUCE
    ]


def test_inputs_split_over_4_tensor_ranks_take_a_quarter_of_the_room():
    (whole, _), (split, _) = compiled("whole"), compiled("split")
    assert whole.memory.temporaries - split.memory.temporaries == LAYERS * PAYLOAD * (1 - 1 / RANKS)


def test_gradients_from_split_inputs_are_those_from_whole_ones():
    (_, whole), (_, split) = compiled("whole"), compiled("split")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), split, whole)
