"""Which layers each chunk of a pipeline has, as a text, and where they lie in the stack."""

from dataclasses import asdict, replace

import jax
import numpy as np
import pytest

from lab.harness.decoder.step import SMALL
from lab.meshes.errors import UsageError
from lab.programs.models.decoder import initial
from lab.programs.pipelines.program import PipelineShape, in_sequence, stacked
from lab.programs.pipelines.stages import layers_of_chunks, written
from lab.zoo import published_run

SHAPE = PipelineShape(**asdict(replace(SMALL, layers=5)))


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("EtL", (1,)),
        ("Ett|t*3L", (2, 3)),
        ("Et*4|(t*4|)*14tL", (*[4] * 15, 1)),
        ("Et*4|(t*4|)*14tmL", (*[4] * 15, 1)),
        ("E|(t(t|)*2)*2L", (0, 2, 1, 2, 1, 0)),
        ("E(t*2|)*3L", (2, 2, 2, 0)),
    ],
)
def test_a_layout_says_how_many_layers_a_chunk_has(text, layers):
    assert layers_of_chunks(text) == layers


def test_what_is_written_is_read_as_it_was():
    assert written((7, 8, 8, 9, 7)) == "Et*7|(t*8|)*2(t*9|)*1t*7L"
    for layers in ((3, 4), (1, 2, 2, 1), (7, 8, 8, 9, 7), (7, *[8] * 14, 7)):
        assert layers_of_chunks(written(layers)) == layers


def test_the_first_and_the_last_stage_of_405b_have_a_layer_less():
    of_report, of_mlperf = (
        layers_of_chunks(published_run(name).stage_layers) for name in ("llama3-405b-8k-16384", "mlperf5-405b-512")
    )
    assert (sum(of_report), sum(of_mlperf)) == (126, 126)
    assert of_report == (7, *[8] * 14, 7)
    assert (len(of_mlperf), of_mlperf[0], set(of_mlperf[1:-1]), of_mlperf[-1]) == (64, 1, {2}, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Ex|L", "stage_layers=Ex|L: 'x' is none of E, t, m, L, |, * and (); expected such as Et*4|(t*4|)*2t*3L"),
        ("tE|L", "stage_layers=tE|L: expected E once, at the beginning, and L once, at the end"),
        ("Et|t", "stage_layers=Et|t: expected E once, at the beginning, and L once, at the end"),
        ("E(t*2", "stage_layers=E(t*2: '(' is none of E, t, m, L"),
        (
            "Etm|tL",
            "stage_layers=Etm|tL: expected E once, at the beginning, and L once, at the end, behind one m or none",
        ),
        ("Et|tm*2L", "stage_layers=Et|tm*2L: expected E once, at the beginning, and L once, at the end, behind one m"),
        ("Et*200000L", "stage_layers: more than 100,000 layers and chunks; expected fewer"),
        ("E(t*9999|)*99999L", "stage_layers: more than 100,000 layers and chunks; expected fewer"),
    ],
)
def test_what_is_no_layout_is_refused_in_a_line(text, message):
    with pytest.raises(UsageError) as refused:
        layers_of_chunks(text)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"stage_layers": "Ett|ttL"}, "stage_layers=Ett|ttL: 4 layers in 2 chunks; expected 5 in 2, of 2 stages x 1"),
        ({"stage_layers": "Ett|t|ttL"}, "stage_layers=Ett|t|ttL: 5 layers in 3 chunks; expected 5 in 2"),
        (
            {"stage_layers": "Ett|t*3mL"},
            "stage_layers=Ett|t*3mL with mtp=0: expected an m before L with mtp=1, and none",
        ),
        ({"stage_layers": "Ett|t*3L", "mtp": 1}, "stage_layers=Ett|t*3L with mtp=1: expected an m before L with mtp=1"),
        (
            {"stage_layers": "Et|t*4L", "experts": 4, "dense_layers": 2},
            "dense_layers=2 and 1 layers in the first chunk: expected all dense layers there; say with stage_layers",
        ),
        (
            {},
            "layers=5 is not divisible by 2 stages x 1 chunks; make it a multiple of 2, or say with stage_layers which",
        ),
    ],
)
def test_layers_that_do_not_fit_the_pipeline_are_refused_in_a_line(sizes, message):
    with pytest.raises(UsageError) as refused:
        replace(SHAPE, **sizes).layers_by_chunk(2)
    assert str(refused.value).startswith(message)


@pytest.mark.compiles
def test_layers_lie_in_order_and_what_is_no_layer_is_zero():
    shape = replace(SHAPE, stage_layers="Et*2|t*3L")
    weights = initial(shape)
    stack = stacked(shape, 2, weights)["layers"]["query"].get_value()
    assert stack.shape[:3] == (1, 2, 3)
    assert not np.any(stack[0, 0, 2])
    np.testing.assert_array_equal(stack[0, 1, 0], weights["layers"]["query"].get_value()[2])
    back = in_sequence(shape, 2, stacked(shape, 2, weights))
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: np.array_equal(a, b), back, weights)))


@pytest.mark.compiles
def test_dense_layers_are_the_first_stages_and_the_second_prediction_is_the_last_ones():
    shape = replace(SHAPE, layers=7, experts=4, dense_layers=2, mtp=1, stage_layers="Et*3|t*4mL")
    assert shape.layers_by_chunk(2).tolist() == [[1, 4]]
    weights = initial(shape)
    stack = stacked(shape, 2, weights)
    dense, further = (stack[name]["up"] for name in ("dense", "mtp"))
    assert (dense.dims, dense.shape[:2], further.shape[:2]) == (("stage", "layers", "embed", "mlp"), (2, 2), (2, 1))
    np.testing.assert_array_equal(dense.get_value()[0], weights["dense"]["up"].get_value())
    np.testing.assert_array_equal(further.get_value()[1], weights["mtp"]["up"].get_value())
    assert not np.any(dense.get_value()[1]) and not np.any(further.get_value()[0])
    back = in_sequence(shape, 2, stack)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: np.array_equal(a, b), back, weights)))


def test_as_many_layers_and_predictions_are_chosen_as_the_stages_have():
    assert SHAPE.choosing(stage_layers="Et|t*2L").layers == 3
    assert SHAPE.choosing(stage_layers="Et|t*2mL").mtp == 1 != SHAPE.choosing(stage_layers="Et|t*2L", mtp=1).mtp
    assert SHAPE.choosing(schedule="gpipe").layers == 5
