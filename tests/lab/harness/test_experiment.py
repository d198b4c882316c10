from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest

from lab.harness.experiment import on_one_axis, on_two_axes, with_tensor_inside_host
from lab.harness.numerics import numeric_sizes, numerics
from lab.harness.registry import load, names
from lab.harness.result import WrongResults
from lab.harness.run import _numbers, run
from lab.harness.settings import with_settings
from lab.meshes.attached import resolve_attached
from lab.meshes.axes import DATA, EXPERT, Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, parse_target
from lab.programs.models.shape import DecoderShape


def test_settings_are_read_as_the_field_has_them():
    changed = with_settings(DecoderShape(), {"layers": "8", "dtype": "f32", "tied": "true"})
    assert changed == DecoderShape(layers=8, dtype="f32", tied=True)


def test_a_preset_stands_for_all_sizes_and_other_settings_change_it():
    changed = with_settings(DecoderShape(batch=8), {"batch": "64", "preset": "llama3-8b"})
    assert (changed.embed, changed.layers, changed.batch) == (4096, 32, 64)


def test_an_unknown_setting_lists_the_known():
    with pytest.raises(
        UsageError, match="no parameter 'depth'; known are layers, batch, length, embed, .*, remat, accumulation"
    ):
        with_settings(DecoderShape(), {"depth": "8"})


@pytest.mark.parametrize(
    ("name", "text", "wanted"), [("layers", "many", "a whole number"), ("tied", "perhaps", "true or false")]
)
def test_a_setting_of_another_type_is_refused(name, text, wanted):
    with pytest.raises(UsageError, match=f"{name}={text}: expected {wanted}"):
        with_settings(DecoderShape(), {name: text})


def test_an_unknown_experiment_lists_the_known():
    with pytest.raises(UsageError, match="no experiment 'ch99'; lab list shows all"):
        load("ch99")


@pytest.mark.parametrize("name", names())
def test_an_experiment_has_the_name_and_chapter_of_its_file(name):
    experiment = load(name)
    assert (experiment.name, f"ch{experiment.chapter:02}") == (name, name[:4])


@pytest.mark.parametrize(
    ("target", "mesh"),
    [("cpu:8", "data=2,tensor=4"), ("gpu:h100:2x8", "data=2,tensor=8"), ("tpu:v5p:2x2x4", "data=4,tensor=4")],
)
def test_tensor_parallelism_stays_inside_a_host(target, mesh):
    assert str(with_tensor_inside_host("data")(parse_target(target))) == mesh


def test_attached_devices_are_counted():
    assert on_one_axis("fsdp")(parse_target("attached")).size == jax.device_count()


def test_attached_devices_are_described_by_what_they_are_and_other_targets_by_themselves(monkeypatch):
    here, there = parse_target("attached"), parse_target("gpu:h100:2x8")
    assert (resolve_attached(there), resolve_attached(here)) == (there, Target("cpu", None, (1, jax.device_count())))
    monkeypatch.setattr(jax, "local_device_count", lambda: 4)
    for card, expected in (("NVIDIA H200", parse_target("gpu:h200:1x4")), ("NVIDIA T4", Target("gpu", None, (1, 4)))):
        monkeypatch.setattr(jax, "devices", lambda card=card: [SimpleNamespace(platform="gpu", device_kind=card)])
        assert resolve_attached(here) == expected


@pytest.mark.parametrize(("count", "named"), [(4, "gpu:h200:1x4"), (8, "gpu:h200:1x8")])
def test_attached_gpus_have_the_axes_that_the_same_gpus_have_by_name(count, named, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu", device_kind="NVIDIA H200")])
    for count_of in ("device_count", "local_device_count"):
        monkeypatch.setattr(jax, count_of, lambda: count)
    for axes in (with_tensor_inside_host(DATA), on_two_axes(DATA, EXPERT)):
        assert axes(parse_target("attached")) == axes(parse_target(named))


@pytest.mark.compiles
def test_results_that_differ_from_one_devices_fail_with_the_sizes():
    experiment = load("ch15_layernorm")
    whole = experiment.reference(experiment.numeric_parameters)
    doubled = replace(experiment, reference=lambda sizes: lambda x: jax.tree.map(lambda y: 2 * y, whole(x)))
    target = parse_target("cpu:8")
    with pytest.raises(WrongResults, match=r"results differ from one device's at Sizes\(.*\): .*"):
        numerics(doubled, "explicit", make_mesh(target, experiment.axes(target)), doubled.numeric_parameters)


def test_numbers_are_checked_at_small_sizes_with_what_was_chosen():
    pipeline = load("ch16_pipeline")
    chosen = numeric_sizes(pipeline, replace(pipeline.parameters, schedule="zb_h2", layers=16))
    assert chosen == replace(pipeline.numeric_parameters, schedule="zb_h2")
    assert numeric_sizes(pipeline, pipeline.parameters) == pipeline.numeric_parameters


def test_four_micro_batches_are_checked_with_as_many_sequences_each_as_one():
    experiment = load("ch14_data_parallel")
    four = numeric_sizes(experiment, replace(experiment.parameters, accumulation=4, batch=1024))
    assert four == replace(experiment.numeric_parameters, accumulation=4, batch=4 * experiment.numeric_parameters.batch)


def test_choices_that_need_other_sizes_leave_numbers_unchecked_with_the_reason():
    pipeline, target = load("ch16_pipeline"), parse_target("cpu:8")
    axes = Axes.parse("data=1,pipe=4,tensor=2")
    chunks = replace(pipeline.parameters, schedule="interleaved", chunks=4, layers=16)
    found, reason = _numbers(pipeline, "explicit", make_mesh(target, axes), chunks)
    assert found is None and reason.startswith("layers=8 is not divisible by 4 stages x 4 chunks")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("cpu:1", "data=1,expert=1"),
        ("gpu:h100:1x2", "data=1,expert=2"),
        ("gpu:h100:1x4", "data=2,expert=2"),
        ("cpu:4", "data=2,expert=2"),
        ("gpu:h100:1x8", "data=2,expert=4"),
        ("gpu:h100:2x8", "data=2,expert=8"),
        ("cpu:8", "data=2,expert=4"),
        ("cpu:5", "data=5,expert=1"),
    ],
)
def test_a_question_about_two_axes_has_both_on_four_devices_or_more(target, expected):
    assert on_two_axes(DATA, EXPERT)(parse_target(target)) == Axes.parse(expected)


@pytest.mark.compiles
def test_what_theory_says_of_memory_goes_by_the_attached_cards(monkeypatch):
    monkeypatch.setattr("lab.harness.run.resolve_attached", lambda target: parse_target("gpu:h200:1x8"))
    told = replace(load("ch14_shares"), memory=lambda style, parameters, axes, room: {"room": room})
    assert run(told, target=parse_target("attached"), style="explicit").held == {
        "room": parse_target("gpu:h200:1x8").memory_bytes
    }
