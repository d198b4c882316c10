import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files

import pytest

from lab.meshes.chip_texts import chip_text, known_fields, origin
from lab.meshes.errors import UsageError
from lab.meshes.hardware import Figure, Link, chip, chip_names, known_chip

CHIPS = chip_names("gpu") + chip_names("tpu")
TABLE = tomllib.loads((files("lab.meshes") / "hardware.toml").read_text())
NOT_MEASURES = {"devices_per_chip", "links"}


def test_chips_are_named_by_platform():
    assert {"a100", "h100", "h200", "b200"} <= set(chip_names("gpu"))
    assert {"v4", "v5e", "v5p", "v6e", "7x"} <= set(chip_names("tpu"))
    assert not set(chip_names("gpu")) & set(chip_names("tpu"))


def test_every_number_of_the_table_has_a_source_and_every_source_is_used():
    cited = {figure["source"] for figure in _numbers(TABLE["chips"])}
    assert cited == set(TABLE["sources"])


def _numbers(row: dict) -> Iterator[dict]:
    """The tables in `row` that hold a value or a pod; a bare number elsewhere fails."""
    if "value" in row or "blocks" in row:
        yield row
        return
    for name, entry in row.items():
        if isinstance(entry, dict):
            yield from _numbers(entry)
        else:
            assert isinstance(entry, str) or name in NOT_MEASURES, f"{name} = {entry} stands without a source"


def test_a_bare_number_is_noticed():
    with pytest.raises(AssertionError, match="stands without a source"):
        list(_numbers({"h100": {"memory_bytes": 80e9}}))


def test_a_figure_without_a_source_is_refused():
    with pytest.raises(ValueError, match="a source"):
        Figure(80e9, "")
    with pytest.raises(ValueError, match="one direction"):
        Link(900e9, "data sheet", direction="both ways")


def test_nvlink_of_an_h100_moves_450_gb_per_s_one_way():
    assert chip("h100").fast.value == 450e9
    assert chip("h100").fast.value / chip("h100").slow.value == 9


def test_an_ici_link_of_a_v5p_moves_100_gb_per_s_one_way():
    assert chip("v5p").fast.bytes_per_s_per_link == 100e9


@pytest.mark.parametrize("name", CHIPS)
def test_links_grow_slower_from_memory_to_network(name):
    assert chip(name).memory_bytes_per_s.value > chip(name).fast.value > chip(name).slow.value


@pytest.mark.parametrize("name", chip_names("tpu"))
def test_a_torus_has_two_links_a_dimension(name):
    assert chip(name).fast.links == 2 * len(chip(name).pod.block)


@pytest.mark.parametrize("name, chips", [("v4", 4096), ("v5e", 256), ("v5p", 8960), ("v6e", 256), ("7x", 9216)])
def test_a_pod_has_the_chips_that_its_documentation_gives(name, chips):
    assert chip(name).pod.chips == chips


@pytest.mark.parametrize("name", chip_names("gpu"))
@pytest.mark.parametrize("dtype, key", [("bf16", 16), ("tf32", 11), ("s8", 2)])
def test_the_units_of_a_chip_text_give_the_peak_of_the_table_within_one_per_cent(name, dtype, key):
    text = chip_text(name)
    matrix = text[text.index("matrix_unit_description") :]
    clock_ghz, units, ops = map(
        float, re.search(rf"key: {key}\s+value {{\s+\S+ (\S+)\s+\S+ (\S+)\s+\S+ (\S+)", matrix).groups()
    )
    multiply_adds = _field(text, "core_count") * units * ops * clock_ghz * 1e9
    assert 2 * multiply_adds == pytest.approx(chip(name).flops_per_s[dtype].value, rel=0.01)


@pytest.mark.parametrize("name", chip_names("gpu"))
def test_the_memory_of_a_chip_text_is_that_of_the_table(name):
    text = chip_text(name)
    assert _field(text, "memory_bandwidth") == pytest.approx(chip(name).memory_bytes_per_s.value, rel=0.01)
    assert _field(text, "device_memory_size") == chip(name).memory_bytes.value


def _field(text: str, name: str) -> float:
    return float(re.search(rf"\b{name}: (\S+)", text)[1])


def test_fields_newer_than_the_installed_xla_are_dropped():
    text = "# origin: here\nold: 1\n  new: 2  # since jaxlib 0.11\nold_too: 3"
    assert "new: 2" not in known_fields(text, "0.10.2")
    assert known_fields(text, "0.10.2").splitlines()[-1] == "old_too: 3"
    assert known_fields(text, "0.11.0") == known_fields(text, "1.0") == text


def test_the_texts_of_the_h100_and_the_h200_were_dumped_on_hardware():
    assert origin("h100") == "dumped by XLA on an H100 SXM 80 GB, jax 0.11.2"
    assert origin("h200") == "dumped by XLA on an H200 SXM 141 GB, jax 0.11.2, driver 580.159.04"


def test_an_unknown_chip_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match="no chip 'v9'; known are a100, h100"):
        chip("v9")


@pytest.mark.parametrize(
    "card, key",
    [("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA H200", "h200"),
     ("NVIDIA B200", "b200"), ("cpu", None), ("NVIDIA GeForce RTX 4090", None),
     ("TPU v4", "v4"), ("TPU v5 lite", "v5e"), ("TPU v5", "v5p"), ("TPU v6 lite", "v6e"),
     ("TPU7x", "7x"), ("TPU v2", None), ("NVIDIA H100 PCIe", None), ("NVIDIA H200 NVL", None),
     ("NVIDIA A100-SXM4-40GB", None)],
)  # fmt: skip
def test_a_card_is_found_in_the_table_of_hardware(card, key):
    found = known_chip(card)
    assert (found and found.key) == key
