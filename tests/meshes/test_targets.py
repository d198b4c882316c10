import re

import pytest

from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target, domains, link_names, parse_target


@pytest.mark.parametrize(
    "text, devices",
    [
        ("cpu:8", 8),
        ("gpu:h100:2x8", 16),
        ("gpu:h100:2048x8", 16384),
        ("tpu:v5p:2x2x4", 16),
        ("tpu:v5p:2x2x2*2", 16),
        ("tpu:v5e:2x4", 8),
        ("tpu:v4:2x2x2", 8),
        ("tpu:7x:2x2x1", 8),
        ("attached", None),
    ],
)
def test_a_target_prints_as_it_was_written_and_counts_its_devices(text, devices):
    target = parse_target(text)
    assert str(target) == text
    assert target.devices == devices


def test_a_gpu_target_has_hosts_and_gpus_a_host():
    target = parse_target("gpu:a100:4x8")
    assert (target.platform, target.chip, target.hosts, target.per_host) == ("gpu", "a100", 4, 8)


def test_one_slice_written_out_is_the_same_target():
    assert parse_target("tpu:v5p:2x2x4*1") == parse_target("tpu:v5p:2x2x4") == Target("tpu", "v5p", (2, 2, 4))


@pytest.mark.parametrize(
    "text",
    ["", "cpu", "cpu:", "cpu:0", "cpu::8", "gpu::2x8", "cpu:2x4", "cpu:h100:8", "gpu:h100", "gpu:h100:8", "gpu:2x8",
     "gpu:h100:2x8*2", "gpu:h100:0x8", "tpu:v5p:16", "tpu:v5p:2x2x2x2", "tpu:v5p:2x2x2*0", "attached:8", "npu:x:2x2"],
)  # fmt: skip
def test_another_form_is_refused_with_the_forms_that_are_known(text):
    with pytest.raises(UsageError, match="gpu:CHIP:HOSTSxGPUS"):
        parse_target(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("h100:2x8", "gpu:h100:2x8"), ("v5p:2x2x4*2", "tpu:v5p:2x2x4*2"), ("H100", "gpu:h100:HOSTSxGPUS"),
     ("v5e:2x4x8x2", "tpu:v5e:TOPOLOGY")],
)  # fmt: skip
def test_a_chip_without_its_platform_gets_the_target_that_was_meant(text, meant):
    with pytest.raises(UsageError, match=f"did you mean {re.escape(meant)}\\? expected cpu:DEVICES"):
        parse_target(text)


def test_an_unknown_chip_is_refused_with_the_known_ones():
    with pytest.raises(
        UsageError, match="no gpu chip 'h900'; did you mean h200 or h100\\? known are a100, h100, h200, b200"
    ):
        parse_target("gpu:h900:1x8")
    with pytest.raises(UsageError, match="no gpu chip 'v5p'"):
        parse_target("gpu:v5p:1x8")


def test_consecutive_gpus_share_a_host():
    assert domains(parse_target("gpu:h100:2x4"), Axes.parse("data=4,tensor=2")).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_slices_stand_on_the_first_axis_that_they_divide():
    two = parse_target("tpu:v5e:2x4*2")
    assert domains(two, Axes.parse("data=4,tensor=4")).tolist() == [0] * 8 + [1] * 8
    assert domains(two, Axes.parse("data=1,tensor=8,fsdp=2")).tolist() == [0] * 8 + [1] * 8
    assert domains(parse_target("tpu:v5e:2x3*2"), Axes.parse("data=3,tensor=4")).tolist() == [0, 0, 1, 1] * 3
    assert domains(parse_target("tpu:v5e:2x2*3"), Axes.parse("data=2,tensor=6")).tolist() == [0, 0, 1, 1, 2, 2] * 2


def test_one_slice_and_fake_devices_have_one_domain():
    assert not domains(parse_target("tpu:v5p:2x2x4"), Axes.parse("data=16")).any()
    assert not domains(parse_target("cpu:8"), Axes.parse("data=8")).any()


def test_slices_that_no_axis_spans_are_refused():
    with pytest.raises(UsageError, match="no axis of mesh data=2,tensor=8 is a multiple of the 16 slices"):
        domains(Target("tpu", "v5e", (1, 1), 16), Axes.parse("data=2,tensor=8"))


@pytest.mark.parametrize("text", ["cpu:16", "gpu:h100:2x8", "tpu:v5e:2x4*2"])
def test_a_mesh_of_another_size_is_refused(text):
    with pytest.raises(UsageError, match="mesh data=8 has 8 devices and target .* has 16; make them equal"):
        domains(parse_target(text), Axes.parse("data=8"))


def test_links_are_named_after_the_platform():
    assert link_names(parse_target("gpu:h100:2x8")) == ("host", "network")
    assert link_names(parse_target("tpu:v5p:2x2x2*2")) == ("ici", "dcn")
    assert link_names(parse_target("cpu:8")) == ("host", "network")


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "tpu:v5e:16x32",
            "a slice must fit into one pod, of 16x16 chips; join smaller slices, as in tpu:v5e:16x16\\*2",
        ),
        ("tpu:v5e:4x4x4", "a slice must fit into one pod, of 16x16 chips"),
        ("tpu:v6e:8x32", "a slice must fit into one pod, of 16x16 chips"),
        (
            "tpu:v5p:2x2x64",
            "not made of full 4x4x4 cubes; expected one inside a cube, or sides that are multiples of 4",
        ),
        ("tpu:v5p:6x6x6", "not made of full 4x4x4 cubes"),
        ("tpu:7x:2x2x6", "not made of full 4x4x4 cubes"),
        ("tpu:v5p:4x8", "not made of full 4x4x4 cubes"),
        ("tpu:v5p:16x16x36", "of 140 cubes of 4x4x4 chips; join smaller slices, as in tpu:v5p:4x4x4\\*2"),
        ("tpu:v4:16x16x20", "of 64 cubes of 4x4x4 chips"),
        ("tpu:7x:16x24x28", "of 144 cubes of 4x4x4 chips"),
        ("cpu:4097", "expected 4,096 fake CPU devices at most"),
    ],
)
def test_more_than_a_pod_can_be_wired_to_is_refused(text, said):
    with pytest.raises(UsageError, match=f"target '{re.escape(text)}': .*{said}"):
        parse_target(text)


@pytest.mark.parametrize(
    "text",
    ["tpu:v5e:16x16*4", "tpu:v5p:28x16x20", "tpu:v5p:4x4x560", "tpu:v4:4x4x256", "tpu:7x:16x16x36", "cpu:4096"],
)
def test_a_whole_pod_is_a_target(text):
    assert str(parse_target(text)) == text


@pytest.mark.parametrize(
    "text, chips", [("tpu:v5p:4x8x64", 2048), ("tpu:v5p:8x16x32", 4096), ("tpu:v5p:8x16x48", 6144)]
)
def test_a_slice_of_a_v5p_is_any_box_of_whole_cubes(text, chips):
    """Of shapes longer than any side of a pod that is one cuboid, on which MLPerf ran."""
    assert parse_target(text).devices == chips


@pytest.mark.parametrize("text", ["tpu:v5p:2x2x1", "tpu:v5p:2x4x4", "tpu:v5p:4x4", "tpu:v5e:4x4x1", "tpu:v4:2x2x4"])
def test_a_slice_may_be_part_of_one_block(text):
    assert str(parse_target(text)) == text
