"""What a prediction knows of how a gradient is made: the other sums of the computation that makes it."""

from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import pytest

from lab.core.ledger import Kind
from lab.meshes.axes import Axes
from lab.programs.models import decoder
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.context_parallel import ULYSSES
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.expert_parallel import EXPERT_PARALLEL
from lab.programs.strategies.hybrid import HYBRID
from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.programs.strategies.strategy import Strategy
from lab.programs.strategies.terms import FORWARD, UPDATE, Weight, of_gradient, sum_of_loss, weights
from lab.programs.strategies.update import is_weight
from lab.programs.strategies.zero1 import ZERO1
from lab.programs.strategies.zero3 import ZERO3
from lab.settle import Context
from lab.settle.behaviours import emitted

SHAPE = DecoderShape(layers=3, batch=16, length=8, embed=8, kv_heads=4, head_dim=4, mlp=16, vocab=32, dtype="bf16")
EXPERTS = replace(SHAPE, experts=4)
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {},
    "tied": {"tied": True},
    "Mixtral": {"experts": 4},
    "Qwen3": {"normed_heads": True, "experts": 4},
    "Nemotron-4": {"activation": "relu2"},
    "dense layers first": {"layers": 5, "experts": 4, "dense_layers": 2, "normed_heads": True},
    "DeepSeek-V3": {
        "layers": 5,
        "query_rank": 8,
        "kv_rank": 16,
        "rope_dim": 6,
        "queries": 1,
        "experts": 4,
        "dense_layers": 2,
        "shared": 1,
        "router": "sigmoid_bias",
    },
    "the token after the next": {"mtp": 1, "experts": 4, "layers": 4, "dense_layers": 2, "normed_heads": True},
    "shared experts without a gate": {"experts": 4, "shared": 2, "activation": "gelu", "router": "sigmoid_bias"},
}


@pytest.mark.parametrize(
    ("strategy", "shape", "axes", "scope", "beside"),
    [
        (HYBRID, SHAPE, "data=2,fsdp=4", "head", {("data", "fsdp"), ("fsdp",)}),
        (HYBRID, replace(SHAPE, accumulation=2), "data=2,fsdp=4", "head", {("data", "fsdp")}),
        (HYBRID, SHAPE, "data=2,fsdp=4", "layers/mlp/up", {("data", "fsdp")}),
        (
            ZERO3 | EXPERT_PARALLEL,
            EXPERTS,
            "fsdp=2,expert=4",
            "layers/attention/query",
            {("fsdp", "expert"), ("fsdp",)},
        ),
        (ZERO3 | EXPERT_PARALLEL, EXPERTS, "fsdp=2,expert=4", "head", {("fsdp", "expert")}),
    ],
    ids=[
        "outside the layers with the norm of all",
        "of several micro-batches without it",
        "in the layers",
        "beside experts",
        "outside theirs",
    ],
)
def test_other_sums_where_a_gradient_is_made(
    strategy: Strategy, shape: DecoderShape, axes: str, scope: str, beside: set[tuple[str, ...]]
):
    (weight,) = [weight for weight in weights(shape) if weight.scope == scope]
    assert of_gradient(weight, strategy, shape, Axes.parse(axes), is_late=False).sibling_reduction_axes == beside


@pytest.mark.parametrize("sizes", MODELS.values(), ids=MODELS)
def test_the_weights_of_a_formula_are_those_of_the_decoder(sizes: dict[str, Any]):
    shape = replace(SHAPE, **sizes)
    of_decoder = Counter(
        (tuple(dim for dim in w.dims if dim != "layers"), w.get_value().shape[0] if "layers" in w.dims else 1)
        for w in jax.tree.leaves(decoder.weights(shape), is_leaf=is_weight)
    )
    assert Counter((weight.dims, weight.per_pass) for weight in weights(shape)) == of_decoder


def test_a_declared_scatter_beside_split_sequences_is_two_whole_sums_on_cpus():
    axes = Axes.parse("fsdp=2,context=4")
    (scatter,) = [
        term
        for term in (ZERO3 | ULYSSES).predict(SHAPE, axes).transfers
        if (term.scope, term.kind) == ("layers/mlp/up", Kind.REDUCE_SCATTER)
    ]
    sums, behaviours = emitted(scatter, Context("cpu", "declared", axes.shape))
    assert [(term.kind, term.axes) for term in sums] == [(Kind.ALL_REDUCE, ("fsdp",)), (Kind.ALL_REDUCE, ("context",))]
    assert {"X3", "C4"} <= {behaviour.id for behaviour in behaviours}


def weight(scope: str) -> Weight:
    (found,) = [weight for weight in weights(replace(EXPERTS, router="sigmoid_bias")) if weight.scope == scope]
    return found


@pytest.mark.parametrize(
    ("scope", "product", "is_reshaped"),
    [
        ("layers/attention/query", "bf16", True),
        ("layers/attention/value", "bf16", True),
        ("layers/mlp/down", "bf16", False),
        ("layers/mlp/bias", "f32", False),
        ("norm", "bf16", False),
    ],
)
def test_gradients_but_a_bias_s_are_products_of_16_bits_and_those_of_heads_reshaped(scope, product, is_reshaped):
    found = of_gradient(weight(scope), DATA_PARALLEL, EXPERTS, Axes.parse("data=4"), is_late=False)
    assert (found.product, found.is_reshaped) == (product, is_reshaped)


@pytest.mark.parametrize(
    ("strategy", "axes", "sum_over"),
    [
        (DATA_PARALLEL, "data=8", ()),
        (ZERO3, "fsdp=8", ()),
        (HYBRID, "data=2,fsdp=4", ("data", "fsdp")),
    ],
    ids=["copies alone", "parts alone", "parts of copies"],
)
def test_a_gradient_is_summed_over_more_than_its_term_where_parts_have_copies(strategy, axes, sum_over):
    assert of_gradient(weight("layers/mlp/up"), strategy, SHAPE, Axes.parse(axes), is_late=False).sum_over == sum_over


@pytest.mark.parametrize(
    ("strategy", "accumulation", "phase"),
    [(DATA_PARALLEL, 1, FORWARD), (DATA_PARALLEL, 2, UPDATE), (ZERO1, 1, UPDATE)],
)
def test_a_loss_is_summed_after_several_micro_batches_or_with_copies_of_the_master(strategy, accumulation, phase):
    summed = sum_of_loss(strategy, replace(SHAPE, accumulation=accumulation), Axes.parse("data=8"))
    assert (summed.phase, summed.payload_bytes, summed.executions) == (phase, 4, 1)


@pytest.mark.parametrize(
    ("strategy", "axes", "apart"),
    [
        (DATA_PARALLEL, "data=8", ()),
        (DATA_PARALLEL | SEQUENCE_PARALLEL, "data=2,tensor=4", (("data",), ("tensor",))),
    ],
    ids=["batches alone", "batches and sequences"],
)
def test_a_sum_over_tokens_is_of_two_kinds_where_batches_and_sequences_are_split(strategy, axes, apart):
    found = of_gradient(weight("layers/mlp/norm"), strategy, SHAPE, Axes.parse(axes), is_late=False)
    assert found.reduced_separately_over == apart


@pytest.mark.parametrize(("tied", "uses", "named_after"), [(False, 1, ()), (True, 2, ("head",))])
def test_a_tied_table_has_two_uses_and_may_be_named_after_the_head(tied, uses, named_after):
    found = of_gradient(weight("embedding"), ZERO3, replace(SHAPE, tied=tied), Axes.parse("fsdp=8"), is_late=False)
    assert (found.uses, found.named_after) == (uses, named_after)
