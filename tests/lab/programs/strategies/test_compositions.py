"""Strategies on several axes at once: loss and every gradient of one device, float32 on 8 fake devices."""

from dataclasses import dataclass, replace
from functools import cache

import jax
import pytest

from lab.harness.decoder.step import random_tokens
from lab.meshes.axes import DATA, EXPERT, PIPE, Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.programs.models.decoder import initial
from lab.programs.pipelines import program as pipelines
from lab.programs.pipelines.program import PipelineShape
from lab.programs.strategies import program
from lab.programs.strategies.context_parallel import GATHERED_KEYS, RING, ULYSSES
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.expert_parallel import EXPERT_PARALLEL
from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.zero1 import ZERO1, ZERO2, sharded
from lab.programs.strategies.zero3 import ZERO3
from tests.lab.programs.strategies.test_numerics import assert_equal_to_one_device
from tests.long_tests import long

pytestmark = pytest.mark.compiles

SHAPE = PipelineShape(
    layers=4,
    batch=16,
    length=16,
    embed=24,
    kv_heads=4,
    queries=2,
    head_dim=6,
    mlp=40,
    vocab=72,
    dtype="f32",
    remat="none",
    accumulation=2,
    z=0.01,
)
# Slots for all tokens: which are dropped depends on what is routed together. Balance is of what is routed together too.
EXPERTS = {"experts": 8, "capacity_factor": 8.0, "shared": 1, "balance": 0.0}
REPLICAS = (DATA, EXPERT)
DEEPSEEK_V3 = {"layers": 6, "dense_layers": 2, "mtp": 1}
LATENT = {"queries": 1, "query_rank": 24, "kv_rank": 16, "rope_dim": 6}


@dataclass(frozen=True)
class Composition:
    strategy: Strategy
    mesh: str
    sizes: dict

    def __str__(self) -> str:
        return self.mesh.replace(",", " x ")


def of(mesh: str, *parts: Strategy, **sizes) -> Composition:
    strategy = parts[0]
    for part in parts[1:]:
        strategy |= part
    return Composition(strategy, mesh, sizes)


EVERY_DAY = (
    of("expert=2,context=2,tensor=2", EXPERT_PARALLEL, RING, SEQUENCE_PARALLEL, **EXPERTS),
    of("pipe=2,context=2,tensor=2", RING, TENSOR_PARALLEL, schedule="gpipe"),
)
LONG = (
    of("fsdp=2,data=2,tensor=2", ZERO3, ZERO2, TENSOR_PARALLEL),
    of(
        "data=2,pipe=2,expert=2", sharded(1, REPLICAS), EXPERT_PARALLEL, **EXPERTS, router="sigmoid_bias", **DEEPSEEK_V3
    ),
    of("pipe=2,fsdp=2,tensor=2", ZERO3, SEQUENCE_PARALLEL, **LATENT, activation="relu2", schedule="zb_h1"),
    of("pipe=2,context=2,tensor=2", RING, TENSOR_PARALLEL, **LATENT, activation="gelu", schedule="gpipe"),
    of("pipe=2,fsdp=2,tensor=2", ZERO3, SEQUENCE_PARALLEL, mtp=1, tied=True, remat="full", schedule="zb_h2"),
    of("data=2,pipe=2,tensor=2", ZERO1, TENSOR_PARALLEL, normed_heads=True, activation="gelu", schedule="zb_h1"),
    of(
        "data=2,expert=2,tensor=2",
        sharded(2, REPLICAS),
        EXPERT_PARALLEL,
        SEQUENCE_PARALLEL,
        **EXPERTS,
        **LATENT,
        dense_layers=2,
        mtp=1,
    ),
    of("data=2,fsdp=4", DATA_PARALLEL, ZERO3),
    of("data=2,context=4", ZERO1, RING),
    of("data=4,tensor=2", ZERO2, SEQUENCE_PARALLEL),
    of("expert=2,data=4", sharded(1, REPLICAS[::-1]), EXPERT_PARALLEL, **EXPERTS),
    of("expert=4,tensor=2", sharded(1, (EXPERT,)), EXPERT_PARALLEL, SEQUENCE_PARALLEL, **EXPERTS),
    of("pipe=2,expert=2,tensor=2", sharded(2, (EXPERT,)), EXPERT_PARALLEL, TENSOR_PARALLEL, **EXPERTS),
    of("data=4,pipe=2", ZERO2, schedule="interleaved", chunks=2),
    of("fsdp=4,context=2", ZERO3, ULYSSES),
    of("fsdp=4,tensor=2", ZERO3, SEQUENCE_PARALLEL),
    of("fsdp=4,expert=2", ZERO3, EXPERT_PARALLEL, **EXPERTS),
    of("fsdp=4,pipe=2", ZERO3, schedule="zb_h1"),
    of("context=4,tensor=2", GATHERED_KEYS, SEQUENCE_PARALLEL),
    of("expert=4,context=2", EXPERT_PARALLEL, GATHERED_KEYS, **EXPERTS),
    of("pipe=2,context=4", RING, schedule="eager_1f1b"),
    of("expert=4,tensor=2", EXPERT_PARALLEL, SEQUENCE_PARALLEL, **EXPERTS, dispatch="padded"),
    of("pipe=4,tensor=2", SEQUENCE_PARALLEL, schedule="zb_h2", layers=8),
    of("pipe=2,expert=4", EXPERT_PARALLEL, **EXPERTS, schedule="zb_h1"),
    of("pipe=2,expert=2,tensor=2", EXPERT_PARALLEL, TENSOR_PARALLEL, **EXPERTS, remat="full"),
    of("pipe=2,context=2,expert=2", RING, EXPERT_PARALLEL, **EXPERTS, schedule="1f1b"),
    of("fsdp=2,pipe=2,expert=2", ZERO3, EXPERT_PARALLEL, **EXPERTS, tied=True),
    of("data=2,expert=2,tensor=2", ZERO2, EXPERT_PARALLEL, SEQUENCE_PARALLEL, **EXPERTS),
    of("data=2,context=2,tensor=2", ZERO1, RING, SEQUENCE_PARALLEL),
)


@pytest.mark.parametrize("composition", [*EVERY_DAY, *(pytest.param(c, marks=long) for c in LONG)], ids=str)
def test_loss_and_every_gradient_are_those_of_one_device(composition):
    shape, axes = replace(SHAPE, **composition.sizes), Axes.parse(composition.mesh)
    mesh, is_pipelined = make_mesh(parse_target("cpu:8"), axes), PIPE in axes.names
    if is_pipelined:
        function, shapes = pipelines.gradients(composition.strategy, shape, mesh)
        state = initial(shape)
    else:
        function, shapes = program.gradients(composition.strategy, "explicit", shape, mesh)
        state = program.initial_state(composition.strategy, shape)
    arguments = jax.device_put(
        (state, *random_tokens(shape)), jax.tree.map(lambda x: x.sharding, shapes), may_alias=False
    )
    with jax.default_matmul_precision("highest"):
        compiled = function.lower(*shapes).compile(compiler_options={"xla_backend_optimization_level": 0})
        found = jax.device_get(compiled(*arguments))
    assert_equal_to_one_device(found[:2], one_device(replace(shape, remat="none", accumulation=1)), of=composition)


@cache
def one_device(shape: PipelineShape):
    with jax.default_matmul_precision("highest"):
        return jax.jit(jax.value_and_grad(program.mean_loss), static_argnums=3)(
            initial(shape), *random_tokens(shape), shape
        )


def test_any_two_axes_meet_in_a_composition():
    met = {frozenset(pair) for c in (*EVERY_DAY, *LONG) for pair in _pairs(Axes.parse(c.mesh).names)}
    assert met >= {frozenset(pair) for pair in _pairs(("data", "fsdp", "pipe", "context", "tensor", "expert"))}


def _pairs(names):
    return [(one, other) for at, one in enumerate(names) for other in names[:at]]
