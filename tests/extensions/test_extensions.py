"""The six recipes of CONTRIBUTING.md: each is one new file and at most the row of a table, and the tests of what was
there pass unchanged."""

import pytest

from tests.extensions.copies import add_row, copied, replace_line, suite_passes
from tests.long_tests import long

pytestmark = pytest.mark.compiles

# Of the suite.
NUMBERS_AND_LEDGER = "test_f32_on_8_cpu_devices_computes_and_sends_what_theory_says"
CHIP = """[chips.gh200]
name = "NVIDIA GH200 96 GB"
platform = "gpu"
memory_bytes = { value = 96e9, source = "nvidia-gh200" }
memory_bytes_per_s = { value = 4e12, source = "nvidia-gh200" }
fast = { name = "NVLink 4", value = 450e9, direction = "one way", source = "nvidia-gh200" }
slow = { name = "NDR InfiniBand", value = 50e9, direction = "one way", source = "dgx-h100" }
[chips.gh200.flops_per_s]
bf16 = { value = 989.5e12, source = "nvidia-gh200" }
tf32 = { value = 494.5e12, source = "nvidia-gh200" }
s8 = { value = 1979e12, source = "nvidia-gh200" }
"""
KIND = """    Kind(
        "complex_moved",
        "complex numbers on the wire",
        (complex_moved.complex_moved,),
        costs="Twice the bytes of the real parts alone.",
        cure="Take jnp.real before the move, or use rfft.",
    ),"""
SOURCE = 'nvidia-gh200 = "NVIDIA GH200 data sheet, 96 GB column, sparse rates halved: https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/"'


def test_a_strategy_and_its_experiment_settle(tmp_path):
    copy = copied(tmp_path, "strategy")
    settles = f"({NUMBERS_AND_LEDGER} and ch20_sharded_tables) or no_arrow or no_string"
    suite_passes(copy, "tests/experiments/test_settlement.py", "tests/test_rooms.py", "-k", settles)


def test_a_collective_algorithm_is_exact_in_values_and_ledger(tmp_path):
    copy = copied(tmp_path, "collective")
    catalogue = copy / "lab/collectives/catalogue.py"
    add_row(catalogue, "    spread,", above="    tree,\n")
    row = '    "spread": Algorithm(_AG, spread.all_gather, spread.all_gather_cost),'
    add_row(catalogue, row, above='    "hierarchical": Algorithm(_AG,')
    suite_passes(
        copy,
        "tests/lab/collectives/test_values.py::test_every_algorithm_is_exact_in_values_and_ledger_over_one_axis_of[3]",
        "tests/lab/collectives/test_cost.py",
    )


def test_a_chip_is_a_target(tmp_path):
    copy = copied(tmp_path)
    table, text = copy / "meshes/hardware.toml", (copy / "meshes/chips/h100.pbtxt").read_text()
    for of_h100, of_gh200 in {
        "dumped by XLA on an H100 SXM 80 GB, jax 0.11.2": "approximate: the H100's text with the GH200's memory",
        "memory_bandwidth: 3352320000000": "memory_bandwidth: 4000000000000",
        "device_memory_size: 85017493504": "device_memory_size: 96000000000",
        "NVIDIA H100 80GB HBM3": "NVIDIA GH200 96GB",
    }.items():
        assert of_h100 in text
        text = text.replace(of_h100, of_gh200)
    (copy / "meshes/chips/gh200.pbtxt").write_text(text)
    add_row(table, SOURCE, above="nvidia-h100 = ")
    add_row(table, CHIP, above="[chips.v4]\n")
    compiles = "tests/meshes/test_devices.py::test_one_process_compiles_a_sharded_product_for_every_chip[gpu:gh200:1x8]"
    suite_passes(copy, "tests/meshes/test_hardware.py", "tests/meshes/test_availability.py", compiles)


def test_a_kind_of_finding_is_found_and_explained(tmp_path):
    copy = copied(tmp_path, "finding")
    table = copy / "lab/diagnosis/table.py"
    add_row(table, "    complex_moved,", above="    layout,\n")
    add_row(table, KIND, above=")\n\n\ndef findings")
    suite_passes(
        copy, "tests/lab/diagnosis/test_examples.py", "tests/lab/cli/test_cli_explain.py", "-k", "complex_moved"
    )


def test_a_compiler_behaviour_explains_what_is_compiled(tmp_path):
    copy = copied(tmp_path, "behaviour")
    catalogue = copy / "lab/settle/behaviours/catalogue.py"
    imports = "from lab.settle.behaviours import cpu, every_compiler, gpu, {}tpu"
    replace_line(catalogue, imports.format(""), imports.format("small_integers, "))
    add_row(catalogue, "    *small_integers.BEHAVIOURS,", above="    *gpu.BEHAVIOURS,")
    suite_passes(
        copy,
        "tests/lab/settle/test_small_integers.py",
        "tests/lab/settle/test_settlement.py",
        "tests/lab/report/test_behaviours.py",
        "tests/lab/cli/test_cli_explain.py::test_a_behaviour_has_a_page_with_its_condition[C9]",
    )


@long  # The strategy above has an experiment, too.
def test_an_experiment_is_run_and_listed(tmp_path):
    copy = copied(tmp_path, "experiment")
    settles = f"({NUMBERS_AND_LEDGER} and ch17_sharded_ulysses) or name_and_chapter"
    suite_passes(copy, "tests/experiments/test_settlement.py", "tests/lab/harness/test_experiment.py", "-k", settles)
