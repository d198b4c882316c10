"""The shapes of models give the counts that their makers print."""

from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal

import pytest

from lab.meshes.errors import UsageError
from lab.zoo import model, model_names

PRINTED = [
    (name, count, text, published.cut)
    for name in model_names()
    for published in model(name).published
    for count, text in published.counts.items()
]


@pytest.mark.parametrize("name,count,text,cut", PRINTED, ids=lambda value: str(value))
def test_the_shapes_give_every_printed_digit(name, count, text, cut):
    printed = Decimal(text)
    unit = Decimal(1).scaleb(printed.as_tuple().exponent)
    derived = (Decimal(getattr(model(name), count)) / unit).quantize(
        Decimal(1), ROUND_DOWN if cut else ROUND_HALF_UP
    ) * unit
    assert derived == printed


def test_every_model_has_a_published_count_of_its_parameters():
    """In one number, or apart from those of embeddings."""
    for name in model_names():
        counts = {count for published in model(name).published for count in published.counts}
        assert "parameters" in counts or {"embedding_parameters", "non_embedding"} <= counts, name


def test_twelve_asked_for_are_there_and_a_dense_and_a_sparse_qwen():
    asked = (
        "llama3-8b llama3-70b llama3-405b llama2-7b llama2-13b llama2-70b mistral-7b mixtral-8x7b mixtral-8x22b "
        "deepseek-v3 gpt3-175b mt-nlg-530b"
    )
    assert {*asked.split(), "qwen3-8b", "qwen3-30b-a3b"} <= set(model_names())


@pytest.mark.parametrize("name", model_names())
def test_every_number_has_a_source(name):
    shape = model(name)
    assert shape.source and all(published.source for published in shape.published) and all(shape.sources.values())


def test_a_layer_of_mixtral_8x7b_has_176_million_parameters_an_expert():
    shape = model("mixtral-8x7b")
    assert (shape.attention_parameters, shape.mlp_parameters(shape.experts.mlp), shape.router_parameters) == (
        41_943_040,
        176_160_768,
        32_768,
    )


def test_deepseek_v3_has_653_9_billion_in_routed_experts():
    shape = model("deepseek-v3")
    routed = (shape.layers - shape.dense_layers) * shape.experts.routed * shape.mlp_parameters(shape.experts.mlp)
    assert routed == 653_908_770_816


def test_a_misspelt_model_is_answered_with_close_names():
    with pytest.raises(UsageError, match="no model 'lama3-8b'; did you mean llama3-8b"):
        model("lama3-8b")


def test_a_name_close_to_none_is_answered_with_all():
    with pytest.raises(UsageError, match="known are llama3-8b, .*qwen3-235b-a22b"):
        model("?")
