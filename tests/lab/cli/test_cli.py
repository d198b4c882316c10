"""What `lab` prints and how it ends, run inside this process but where the process itself is the matter."""

import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from lab.cli.group import cli
from lab.compile import inspection
from lab.diagnosis import KINDS
from lab.meshes.targets import parse_target
from tests.paths import ROOT

TEXT = """HloModule jit_step, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (p: f32[256]) -> f32[256] {
  %p = f32[256]{0} parameter(0)
  ROOT %all-reduce = f32[256]{0} all-reduce(%p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=%add
}
"""
ALL_REDUCE = "all-reduce(%p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true,"
ONE_DEVICE = TEXT.replace(", num_partitions=8", "").replace(ALL_REDUCE, "map(%p), dimensions={0},")

PROGRAM = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def step(w, x):
    return (x @ w).sum()

def build(mesh):
    print("building")
    w = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=NamedSharding(mesh, P("tensor", None)))
    x = jax.ShapeDtypeStruct((16, 64), jnp.float32, sharding=NamedSharding(mesh, P(None, "tensor")))
    return step, (w, x)

def raises(mesh):
    deeper()

def deeper():
    raise RuntimeError("the weights are missing\\nand more")

def returns_three(mesh):
    return 3

def does_not_lower(mesh):
    return lambda x: x.nonsense(), (jnp.ones(8),)

def takes_text(mesh):
    return lambda x: x, ("text",)

def does_not_compile(mesh):
    import jax.experimental.custom_partitioning as custom

    def fails(*_):
        raise KeyError("unsplit")

    part = custom.custom_partitioning(lambda x: x * 2)
    part.def_partition(fails, infer_sharding_from_operands=lambda *_: _[1][0].sharding, sharding_rule="i -> i")
    x = jax.ShapeDtypeStruct((64,), jnp.float32, sharding=NamedSharding(mesh, P("tensor")))
    return lambda x: part(x), (x,)
"""


@pytest.fixture(autouse=True)
def sources(tmp_path):
    """`step.hlo` and `model.py` in the folder that `lab` runs in."""
    (tmp_path / "step.hlo").write_text(TEXT)
    (tmp_path / "model.py").write_text(PROGRAM)


def assert_refused(answer, *words: str) -> None:
    """Status 2, nothing on stdout, one line on stderr with these words."""
    assert (answer.status, answer.out) == (2, "")
    (line,) = answer.err.splitlines()
    assert line.startswith("lab: ")
    assert all(word in line for word in words), line


def test_an_all_reduce_of_1024_bytes_over_four_sends_1536(lab):
    answer = lab("inspect", "step.hlo", "--mesh", "data=2,tensor=4", "--json")
    (transfer,) = json.loads(answer.out)["transfers"]
    assert (transfer["axes"], transfer["payload_bytes"], transfer["wire_bytes"]) == (["tensor"], 1024, 1536)
    assert (answer.status, answer.err) == (0, "")


def test_without_a_mesh_a_text_is_read_all_the_same(lab):
    (transfer,) = json.loads(lab("inspect", "step.hlo", "--json").out)["transfers"]
    assert (transfer["axes"], transfer["group_size"]) == (None, 4)


def test_without_a_mesh_a_text_is_not_called_clean(lab):
    assert lab("inspect", "step.hlo").out.startswith("step.hlo: not diagnosed: no mesh was given, so axes are unknown")


def test_a_text_on_axes_that_its_groups_are_not_of_passes_no_check_and_the_order_that_fits_is_named(lab):
    answer = lab("inspect", "step.hlo", "--mesh", "tensor=4,data=2", "--fail-on", "any")
    assert answer.status == 2 and answer.out.startswith("step.hlo: not diagnosed: the groups of devices")
    (line,) = answer.err.splitlines()
    assert "add --mesh data=2,tensor=4" in line and "without it --fail-on cannot pass a program" in line
    assert lab("inspect", "step.hlo", "--mesh", "tensor=4,data=2").status == 0


def test_a_damaged_text_is_not_said_to_have_been_looked_through(lab, tmp_path):
    (tmp_path / "cut.hlo").write_text(TEXT[: TEXT.index("  ROOT %all-reduce")])
    answer = lab("inspect", "cut.hlo", "--mesh", "data=2,tensor=4")
    assert answer.out.startswith("cut.hlo: not diagnosed: the text is damaged (see the notes)\n")


def test_a_note_on_sums_names_no_axes_where_there_are_none(lab, tmp_path):
    gradient = TEXT.replace("f32", "bf16").replace(
        "=%add\n", '=%add, metadata={op_name="jit(f)/transpose(jvp())/dot"}\n'
    )
    (tmp_path / "step.hlo").write_text(gradient)
    said = "note: 1 array of the backward pass is summed over devices in bf16, 512 B a step: to sum in f32"
    assert said in lab("inspect", "step.hlo").out
    assert said.replace("pass", "pass (over tensor)") in lab("inspect", "step.hlo", "--mesh", "data=2,tensor=4").out


OUTER_STEP = (
    TEXT.partition("ENTRY")[0]
    + """\
%outer (o: f32[256]) -> f32[256] {
  %o = f32[256]{0} parameter(0)
  ROOT %mean = f32[256]{0} all-reduce(%o), channel_id=2, replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true, to_apply=%add
}

%nothing (n: f32[256]) -> f32[256] {
  ROOT %n = f32[256]{0} parameter(0)
}

ENTRY %main (p: f32[256], is_last: pred[]) -> f32[256] {
  %p = f32[256]{0} parameter(0)
  %is_last = pred[] parameter(1)
  %inner = f32[256]{0} all-reduce(%p), channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true, to_apply=%add
  ROOT %new = f32[256]{0} conditional(%is_last, %inner, %inner), true_computation=%outer, false_computation=%nothing
}
"""
)


def test_in_a_round_of_500_steps_an_outer_step_in_a_branch_is_counted_once(lab, tmp_path):
    (tmp_path / "diloco.hlo").write_text(OUTER_STEP)
    command = ("inspect", "diloco.hlo", "--mesh", "replica=2,data=4", "--round", "500")
    found = json.loads(lab(*command, "--json").out)
    assert {axes: total["executions"] for axes, total in found["totals"]["by_axes"].items()} == {
        "data": 500,
        "replica": 1,
    }
    assert found["steps"] == 500
    (line,) = (line for line in lab(*command).out.splitlines() if line.startswith("replica: "))
    assert line.endswith("; 2.048 B a step of the 500 of a round")
    for steps in ("0", "1000000001", "1e3"):
        assert_refused(lab(*command[:-1], steps), "Invalid value for '--round'")
    # How long a step takes in which every branch runs says nothing of a round.
    times = [lab(*command[:n], "--target", "gpu:h100:1x8").out.count("time of a step: ") for n in (4, 6)]
    assert times == [1, 0]


@pytest.mark.parametrize("write", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_a_text_over_the_limit_is_refused_and_the_limit_can_be_raised(lab, tmp_path, monkeypatch, write):
    long = TEXT.replace("=%add\n", f'=%add, metadata={{op_name="{1_500_000 * "x"}"}}\n')
    (tmp_path / "long").write_bytes(write(long.encode()))
    monkeypatch.setenv("LAB_MAX_TEXT_MB", "1")
    assert_refused(lab("inspect", "long"), "more than 1 MB of text; for larger ones set LAB_MAX_TEXT_MB (now 1)")
    monkeypatch.setenv("LAB_MAX_TEXT_MB", "2")
    assert lab("inspect", "long").status == 0
    monkeypatch.setenv("LAB_MAX_TEXT_MB", "much")
    assert_refused(lab("inspect", "long"), "LAB_MAX_TEXT_MB=much: expected a number of MB")


@pytest.mark.parametrize(
    "written", [TEXT.replace("\n", "\r\n").encode(), TEXT.encode("utf-8-sig"), TEXT.encode("utf-16")]
)
def test_a_text_that_windows_wrote_gives_the_same_ledger(lab, tmp_path, written):
    plain = json.loads(lab("inspect", "step.hlo", "--json").out)
    (tmp_path / "step.hlo").write_bytes(written)
    assert json.loads(lab("inspect", "step.hlo", "--json").out) == plain


def test_the_table_is_plain_in_a_pipe(lab):
    answer = lab("inspect", "step.hlo", "--mesh", "data=2,tensor=4")
    assert answer.out.startswith(
        f"step.hlo: no finding ({len(KINDS)} kinds of waste were looked for)\n\nstep.hlo: 8 devices, mesh data=2,tensor=4\n"
    )
    assert "all_reduce" in answer.out
    assert "\x1b" not in answer.out


def test_a_compressed_text_gives_the_same_ledger(lab, tmp_path):
    plain = json.loads(lab("inspect", "step.hlo", "--json").out)
    for name in ("step.hlo.gz", "compressed"):
        (tmp_path / name).write_bytes(gzip.compress(TEXT.encode()))
        assert json.loads(lab("inspect", name, "--json").out) == plain | {"source": name}


def test_two_sources_give_a_list_of_two_in_their_order(lab, tmp_path):
    (tmp_path / "alone.hlo").write_text(ONE_DEVICE)
    ledgers = json.loads(lab("inspect", "step.hlo", "alone.hlo", "--json").out)
    assert [(ledger["source"], len(ledger["transfers"])) for ledger in ledgers] == [("step.hlo", 1), ("alone.hlo", 0)]


def test_a_dump_gives_the_partitioned_modules_and_not_the_small_ones(lab, tmp_path):
    dump = tmp_path / "dump"
    dump.mkdir()
    (dump / "module_0001.jit_add.cpu_after_optimizations.txt").write_text(ONE_DEVICE)
    (dump / "module_0002.jit_step.before_optimizations.txt").write_text(TEXT)
    (dump / "module_0002.jit_step.cpu_after_optimizations.txt").write_text(TEXT)
    (dump / "module_0002.jit_step.cpu_after_optimizations-buffer-assignment.txt").write_text("BufferAssignment:")
    assert (
        json.loads(lab("inspect", "dump", "--json").out)["source"]
        == "dump/module_0002.jit_step.cpu_after_optimizations.txt"
    )


def test_a_dump_of_one_device_modules_gives_them_all(lab, tmp_path):
    dump = tmp_path / "dump"
    dump.mkdir()
    for number in (1, 2):
        (dump / f"module_{number:04}.jit_add.cpu_after_optimizations.txt").write_text(ONE_DEVICE)
    assert len(json.loads(lab("inspect", "dump", "--json").out)) == 2


@pytest.mark.compiles
@pytest.mark.parametrize("source", ["model.py:build", "model:build"])
def test_a_program_is_compiled_for_as_many_cpu_devices_as_its_mesh_has(lab, source):
    answer = lab("inspect", source, "--mesh", "tensor=8", "--json")
    ledger = json.loads(answer.out)
    (transfer,) = ledger["transfers"]
    assert ledger["target"] == "cpu:8"
    assert (transfer["kind"], transfer["axes"], transfer["payload_bytes"]) == ("all_reduce", ["tensor"], 16 * 32 * 4)
    assert ledger["memory"]["arguments"] == (64 * 32 + 16 * 64) * 4 // 8


@pytest.mark.compiles
def test_what_build_prints_stays_out_of_the_answer(lab):
    answer = lab("inspect", "model.py:build", "--mesh", "tensor=8", "--json")
    assert answer.err == "building\n"


def test_a_missing_file_is_refused(lab):
    assert_refused(lab("inspect", "nowhere.hlo"), "nowhere.hlo", "no such file")


def test_an_empty_file_is_refused(lab, tmp_path):
    (tmp_path / "empty.hlo").write_text(" \n")
    assert_refused(lab("inspect", "empty.hlo"), "empty.hlo", "empty")


def test_a_file_that_is_no_hlo_is_refused(lab, tmp_path):
    (tmp_path / "poem.txt").write_text("roses are red\n")
    assert_refused(lab("inspect", "poem.txt"), "poem.txt", "no HLO")


def test_a_binary_file_is_refused(lab, tmp_path):
    (tmp_path / "module.pb").write_bytes(bytes(range(256)))
    assert_refused(lab("inspect", "module.pb"), "module.pb", "binary")


def test_a_cut_archive_is_refused(lab, tmp_path):
    (tmp_path / "cut.hlo.gz").write_bytes(gzip.compress(TEXT.encode())[:-20])
    assert_refused(lab("inspect", "cut.hlo.gz"), "cut.hlo.gz", "gzip")


def test_a_file_with_a_wrong_name_for_an_archive_is_refused(lab, tmp_path):
    (tmp_path / "plain.gz").write_text(TEXT)
    assert_refused(lab("inspect", "plain.gz"), "plain.gz", "gzip")


def test_a_folder_without_a_dump_is_refused_with_the_flag_that_makes_one(lab, tmp_path):
    (tmp_path / "nothing").mkdir()
    assert_refused(lab("inspect", "nothing"), "nothing", "--xla_dump_to=nothing")


def test_a_mesh_of_four_for_eight_devices_is_refused(lab):
    assert_refused(lab("inspect", "step.hlo", "--mesh", "tensor=4"), "8 devices", "tensor=4")


def test_one_bad_source_of_two_leaves_nothing_half_written(lab):
    assert_refused(lab("inspect", "step.hlo", "nowhere.hlo", "--json"), "nowhere.hlo")


def test_a_mesh_in_another_form_is_refused(lab):
    assert_refused(lab("inspect", "step.hlo", "--mesh", "tensor"), "'tensor'", "fsdp=16,tensor=8")


def test_an_unknown_chip_is_refused_with_the_known_ones(lab):
    assert_refused(lab("inspect", "step.hlo", "--target", "gpu:h99:1x8"), "h99", "h100", "b200")


def test_a_target_in_another_form_is_refused(lab):
    assert_refused(lab("inspect", "step.hlo", "--target", "h100"), "'h100'", "gpu:CHIP:HOSTSxGPUS")


@pytest.mark.compiles
def test_a_builder_that_asks_for_axes_that_nobody_named_is_told_of_the_option(lab):
    (line,) = lab("inspect", "model.py:build", "--target", "cpu:8").err.splitlines()[-1:]
    assert "without --mesh the mesh is devices=8: name the axes that the program asks for" in line
    assert "--mesh" not in lab("inspect", "model.py:raises", "--target", "cpu:8").err
    assert "without --mesh" not in lab("inspect", "model.py:build", "--mesh", "data=8").err


def test_a_program_without_a_mesh_is_refused(lab):
    assert_refused(lab("inspect", "model.py:build"), "--mesh")


def test_a_program_without_a_function_is_told_how_to_name_it(lab):
    assert_refused(lab("inspect", "model.py"), "model.py:build")


def test_a_program_file_that_is_missing_is_refused(lab):
    assert_refused(lab("inspect", "nowhere.py:build", "--mesh", "tensor=8"), "nowhere.py", "no such file")


def test_a_module_that_is_missing_is_refused(lab):
    assert_refused(lab("inspect", "no.module:build", "--mesh", "tensor=8"), "no.module: no such module")
    assert_refused(lab("inspect", "modl:build", "--mesh", "tensor=8"), "did you mean model.py:build?")


def test_a_name_that_is_no_function_and_a_function_without_a_mesh_are_refused_by_name(lab, tmp_path):
    (tmp_path / "other.py").write_text("NUMBER = 3\ndef b(): return 1\n")
    assert_refused(lab("inspect", "other.py:NUMBER", "--mesh", "a=2"), "NUMBER is an int, expected a function")
    assert_refused(
        lab("inspect", "other.py:b", "--mesh", "a=2"),
        "other.py:b cannot be called with a mesh alone",
        "expected build(mesh)",
    )
    assert_refused(lab("inspect", "other.py"), "other.py:build (it has b)")


def test_what_a_command_line_lacks_is_named(lab):
    assert lab("inspct").err == "lab: no command 'inspct'; did you mean inspect? (lab --help shows all)\n"
    assert lab("diff", "a.hlo").err == "lab: lab diff: AFTER is missing; see lab diff --help\n"
    assert_refused(lab("inspect", ""), "SOURCE is empty")


def test_a_saved_ledger_is_said_to_be_read_by_lab_diff(lab, tmp_path):
    (tmp_path / "saved.json").write_text("{}")
    assert_refused(lab("inspect", "saved.json"), "lab diff")
    assert_refused(lab("diff", "saved.json", "saved.json"), "not a ledger")


def test_a_builder_that_is_missing_is_refused_with_those_that_are_there(lab):
    assert_refused(
        lab("inspect", "model.py:make", "--mesh", "tensor=8"),
        "'make'",
        "known are step, build, raises, deeper, returns_three",
    )


def test_a_builder_that_returns_something_else_is_refused(lab):
    assert_refused(lab("inspect", "model.py:returns_three", "--mesh", "tensor=8"), "int", "(function, args)")


def test_a_builder_that_raises_shows_its_own_two_frames_and_one_line(lab):
    answer = lab("inspect", "model.py:raises", "--mesh", "tensor=8")
    *frames, line = answer.err.splitlines()
    assert line == "lab: model.py:raises raised RuntimeError: the weights are missing"
    assert sum('model.py", line' in frame for frame in frames) == 2
    assert not any("site-packages" in frame or "lab/" in frame for frame in frames)
    assert (answer.status, answer.out) == (2, "")


@pytest.mark.compiles
def test_a_function_that_does_not_lower_shows_its_own_frame_and_one_line(lab):
    answer = lab("inspect", "model.py:does_not_lower", "--mesh", "tensor=8")
    assert answer.err.splitlines()[-1].startswith("lab: model.py:does_not_lower raised AttributeError: ")
    assert 'model.py", line' in answer.err
    assert answer.status == 2


def test_a_sharding_over_an_axis_that_the_mesh_lacks_is_refused_with_both_names(lab):
    answer = lab("inspect", "model.py:build", "--mesh", "data=8")
    line = answer.err.splitlines()[-1]
    assert "tensor" in line and "data" in line
    assert answer.status == 2


def test_sixteen_fake_devices_after_jax_started_with_eight_are_refused(lab):
    import jax

    assert len(jax.devices()) == 8
    assert_refused(lab("inspect", "model.py:build", "--mesh", "tensor=16"), "16", "8")


def test_a_mesh_that_is_not_the_targets_size_is_refused(lab):
    assert_refused(lab("inspect", "model.py:build", "--mesh", "tensor=4", "--target", "cpu:8"), "4 devices", "cpu:8")


def test_a_plugin_that_is_not_installed_is_refused_with_the_command(lab, monkeypatch):
    from lab.meshes import plugins

    monkeypatch.setattr(plugins, "installed", lambda platform: False)
    assert_refused(
        lab("inspect", "model.py:build", "--mesh", "tensor=6", "--target", "gpu:h100:1x6"),
        "pip install 'sharding-lab[gpu]'",
    )


def test_a_topology_that_the_plugin_refuses_is_refused_in_its_own_words(lab):
    pytest.importorskip("libtpu", reason="the TPU plugin is not installed")
    answer = lab("inspect", "model.py:build", "--mesh", "tensor=21", "--target", "tpu:v5e:3x7")
    assert_refused(answer, "tpu:v5e:3x7", "the plugin refuses it")


def test_every_known_chip_is_listed_with_a_target_that_parses(lab):
    rows = json.loads(lab("targets", "--json").out)
    assert all(str(parse_target(row["target"])) == row["target"] for row in rows)
    assert {row["chip"] for row in rows} >= {"h100", "h200", "a100", "b200", "v4", "v5e", "v5p", "v6e"}


def test_a_target_without_its_plugin_is_listed_with_the_command_that_installs_it(lab, monkeypatch):
    from lab.meshes import plugins

    monkeypatch.setattr(plugins, "installed", lambda platform: platform == "cpu")
    lines = [line for line in lab("targets").out.splitlines() if line.startswith("gpu:")]
    assert lines and all(line.endswith("no             pip install 'sharding-lab[gpu]'") for line in lines)


@pytest.mark.parametrize("arguments", ["frobnicate", "inspect", "inspect step.hlo --colour", "inspect step.hlo --mesh"])
def test_a_wrong_command_line_gets_one_line(lab, arguments):
    assert_refused(lab(*arguments.split()), "--help")


def test_without_a_command_there_is_help(lab):
    answer = lab()
    assert (answer.status, answer.err) == (0, "") and answer.out == lab("--help").out == lab("-h").out
    assert re.search("^  inspect +Diagnose a compiled program", answer.out, re.MULTILINE)


def test_every_command_has_help_under_both_names_and_says_what_it_does_in_a_line():
    names = cli.list_commands(click.Context(cli))
    assert names and all(len(cli.commands[name].get_short_help_str(66).rstrip(".")) > 9 for name in names)
    assert not [name for name in names if cli.commands[name].get_short_help_str(66).endswith("...")]


@pytest.mark.parametrize(
    "arguments, incomplete, expected",
    [
        (["run"], "ch20_zero", {"ch20_zero1", "ch20_zero2", "ch20_zero3"}),
        (["run", "--style"], "d", {"declared"}),
        (["inspect", "--target"], "gpu:h", {"gpu:h100:2x8", "gpu:h200:2x8"}),
        (["inspect", "--fail-on"], "reduced_t", {"reduced_twice"}),
        (["plot"], "roof", {"roofline"}),
        (["book"], "ch12.ring", {"ch12.ring", "ch12.ring_tree"}),
        (["schema"], "in", {"inspect"}),
        (["tour"], "l", {"losses"}),
        (["bench"], "all_g", {"all_gather"}),
        (["bench", "--algorithm"], "ri", {"ring"}),
        ([], "insp", {"inspect"}),
    ],
)
def test_a_shell_completes(arguments, incomplete, expected):
    found = ShellComplete(cli, {}, "lab", "_LAB_COMPLETE").get_completions(arguments, incomplete)
    assert {item.value for item in found} >= expected and all(item.value.startswith(incomplete) for item in found)


def test_a_misspelt_kind_of_finding_is_refused_with_close_ones(lab):
    answer = lab("inspect", "step.hlo", "--fail-on", "reduced_twic")
    assert_refused(answer, "'reduced_twic'; did you mean reduced_twice")
    assert_refused(lab("explain", "undonated"), "'undonated'; did you mean not_donated? (lab explain shows all)")
    assert_refused(lab("inspect", "step.hlo", "--fail-on", "typo"), "'typo'; lab explain shows all")


@pytest.mark.compiles
def test_a_failure_of_the_lab_is_not_blamed_on_the_program(lab, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fails(*_):
        raise ValueError("no such field")

    monkeypatch.setattr(inspection, "_given", fails)
    answer = lab("inspect", "model.py:build", "--mesh", "tensor=8")
    *_, line = answer.err.splitlines()
    assert (answer.status, answer.out) == (3, "") and "model.py" not in line
    assert line.startswith("lab: this is a bug of sharding-lab: ValueError in lab.compile.inspection, line ")
    assert "no such field" in line
    written = Path(line.partition("its traceback is in ")[2].partition(";")[0])
    assert written.parent == tmp_path and "Traceback (most recent call last)" in written.read_text()


def test_arguments_that_jax_refuses_are_not_said_to_be_raised_by_the_builder(lab):
    answer = lab("inspect", "model.py:takes_text", "--mesh", "tensor=8")
    assert_refused(answer, "model.py:takes_text: argument ", "found a value of type str, expected an array")
    assert "raised" not in answer.err


@pytest.mark.compiles
def test_a_program_that_does_not_compile_is_refused_with_the_last_line_of_what_failed(lab):
    answer = lab("inspect", "model.py:does_not_compile", "--mesh", "tensor=8")
    *_, line = answer.err.splitlines()
    assert line.startswith("lab: model.py:does_not_compile does not compile for cpu:8: JaxRuntimeError: ")
    assert "KeyError: 'unsplit'" in line and "Traceback" not in line


@pytest.mark.parametrize("place", ["before", "after", "environment"])
def test_a_traceback_is_whole_where_it_is_asked_for(lab, monkeypatch, place):
    before, after = [place == "before"], [place == "after"]
    monkeypatch.setenv("LAB_TRACEBACK", str(int(place == "environment")))
    monkeypatch.setenv("JAX_TRACEBACK_FILTERING", "auto")
    command = ["--traceback"] * sum(before) + ["inspect", "model.py:raises", "--mesh", "tensor=8"]
    answer = lab(*command, *["--traceback"] * sum(after))
    assert "Traceback (most recent call last)" in answer.err and "lab/compile/sources.py" in answer.err
    assert answer.err.splitlines()[-1] == "lab: model.py:raises raised RuntimeError: the weights are missing"
    assert answer.status == 2


def test_control_c_ends_the_line_and_with_130(lab, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(inspection, "read_texts", interrupted)
    assert lab("inspect", "step.hlo") == (130, "", "\n")


@pytest.mark.compiles
def test_a_reader_that_went_away_is_no_error(tmp_path):
    (tmp_path / "step.hlo").write_text(TEXT)
    more_than_a_buffer = [tmp_path / "step.hlo"] * 50
    command = [sys.executable, "-m", "lab.cli", "inspect", *more_than_a_buffer]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as lab:
        lab.stdout.close()
        assert lab.stderr.read() == b""
        assert lab.wait() == 141


def started(*arguments, **environment):
    """`lab` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "lab.cli", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.compiles
def test_where_output_knows_no_lines_of_tables_they_are_dashes():
    lab = started("list", PYTHONIOENCODING="latin-1")
    out, err = lab.communicate()
    assert (lab.returncode, err) == (0, b"") and out.startswith(b"name ")
    assert set(out.splitlines()[1]) == set(b"-")


@pytest.mark.compiles
@pytest.mark.parametrize(("closed", "status"), [(">&-", 2), ("2>&-", 0)])
def test_a_closed_output_is_no_bug_of_the_lab(closed, status):
    command = f"{shlex.quote(sys.executable)} -m lab.cli --version {closed}"
    told = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == status
    assert told.stdout.startswith("lab ") == (status == 0)
    assert told.stderr.startswith("lab: stdout is closed") == (status == 2)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_told_in_a_line(lab, tmp_path):
    (tmp_path / "step.hlo").write_text(TEXT)
    told = lab("inspect", "step.hlo", "--html", "/dev/full")
    assert (told.status, told.out, told.err) == (
        2,
        "",
        "lab: output: cannot be read or written (No space left on device)\n",
    )


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc here")
def test_a_command_leaves_no_file_open_and_interrupts_as_they_were(lab):
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before, handler = opened(), signal.getsignal(signal.SIGINT)
    for _ in range(20):
        lab("--version")
    deadline = time.monotonic() + 10
    while opened() > before and time.monotonic() < deadline:  # A thread closes them.
        time.sleep(0.01)
    assert opened() <= before and signal.getsignal(signal.SIGINT) is handler
