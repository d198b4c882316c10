"""What findings are made from: remarks of the compiler, specs from shardings, their JSON, and the command line."""

import json
import os
import subprocess
import sys

import pytest

from lab.core.codec import to_json
from lab.core.ledger import Kind, Transfer
from lab.diagnosis.finding import Finding
from lab.diagnosis.program import Program, Site
from lab.diagnosis.remarks import heard, read_remarks
from lab.diagnosis.specs import axes_of_dims, spec_text
from lab.diagnosis.table import findings
from lab.hlo.read import read
from lab.meshes.axes import Axes
from lab.report.diagnosis import evidence

XY = Axes.of({"x": 4, "y": 2})
REMARK = (
    "W1128 07:56:06.588927    6187 spmd_partitioner.cc:661] [SPMD] Involuntary full rematerialization. The compiler "
    "cannot go from sharding "
    "{BEFORE} to {AFTER} efficiently for HLO operation %param = f32[8,32,16]{2,1,0} parameter(0), sharding={BEFORE}, "
    'metadata={op_name="a"}. As the last resort, SPMD will replicate the tensor and then partition it to obtain the '
    "target sharding.\n"
)
OLD = ("{devices=[2,1,4]<=[4,2]T(1,0)}", "{devices=[1,8,1]<=[8]}")
NEW = ("{mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}", "{mesh['x'=4,'y'=2], [{}, {'x', 'y'}, {}]}")


@pytest.mark.parametrize("spelling", [OLD, NEW], ids=["jax 0.10", "jax 0.11"])
def test_a_remark_tells_the_array_and_both_specs(spelling):
    (remark,) = read_remarks(2 * REMARK.replace("{BEFORE}", spelling[0]).replace("{AFTER}", spelling[1]))
    assert remark.op_name == "a"
    assert [spec_text(axes_of_dims(sharding, XY)) for sharding in (remark.before, remark.after)] == [
        "P('y', None, 'x')",
        "P(None, ('x', 'y'), None)",
    ]


def test_what_is_said_past_python_is_heard_and_all_but_warnings_goes_on(capfd):
    remarks = []
    with heard(remarks):
        os.write(2, REMARK.replace("{BEFORE}", OLD[0]).replace("{AFTER}", OLD[1]).encode())
        os.write(2, b"something else\n")
    assert len(remarks) == 1
    assert capfd.readouterr().err == "something else\n"


def test_of_errors_that_xla_logs_only_those_that_are_none_are_left_out(capfd):
    slow = (
        "E1130 00:44:26.640226    2121 slow_operation_alarm.cc:73] \n********************************\n"
        "[Compiling module jit_step for GPU] Very slow compile? If you want to file a bug, run with envvar\n"
        "********************************\n"
    )
    full = (
        "E1129 21:47:24.827268   11351 gpu_hlo_schedule.cc:968] The byte size of input/output arguments (108989612356) "
        "exceeds the base limit (68013994803). This indicates an error in the calculation!\n"
    )
    other = "E1129 21:47:24.827268   11351 gpu_hlo_schedule.cc:970] something is wrong\nF1129 rendezvous.cc] ends\n"
    with heard([]):
        os.write(2, (slow + full + other).encode())
    assert capfd.readouterr().err == other


@pytest.mark.parametrize(
    ("sharding", "spec"),
    [
        ("{devices=[8,1]<=[8]}", "P(('x', 'y'), None)"),
        ("{devices=[8,1]<=[4,2]T(1,0)}", "P(('y', 'x'), None)"),
        ("{devices=[4,1,2]<=[8] last_tile_dim_replicate}", "P('x', None)"),
        ("{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}", "P(None, 'y')"),
        ("{devices=[2,4]0,2,4,6,1,3,5,7}", "P('y', 'x')"),
    ],
)
def test_tiles_are_told_in_axes_of_the_mesh(sharding, spec):
    assert spec_text(axes_of_dims(sharding, XY)) == spec


def test_whole_arrays_have_no_axes_and_shardings_of_other_meshes_none():
    assert axes_of_dims("{replicated}", XY) == ()
    assert axes_of_dims("{devices=[4]<=[4]}", XY) is None


def test_a_finding_of_four_executions_sends_4_times_the_bytes():
    transfer = Transfer(Kind.ALL_GATHER, ("x",), 4, 4, "f32", 1024, instruction="all-gather.1")
    row = to_json(Finding("rebuilt_whole", "s", "a", (transfer,), "model.py:3"))
    assert (row["executions"], row["payload_bytes"], row["wire_bytes"], row["axes"]) == (4, 4096, 3072, ["x"])
    assert (row["instructions"], row["origin"], row["seconds"]) == (["all-gather.1"], "model.py:3", None)


def test_arrays_that_are_moved_together_are_one_execution_and_instructions_apart_are_several():
    parts = [
        Transfer(Kind.ALL_GATHER, ("x",), 4, 2, "f32", size, instruction=name)
        for name, size in (("all-gather.1", 1024), ("all-gather.1", 512), ("all-gather.2", 256))
    ]
    found = Finding("rebuilt_whole", "s", "a", tuple(parts), "model.py:3")
    assert (found.totals.sites, found.totals.executions, found.totals.arrays) == (2, 4, 6)
    assert "4 executions a step that move 6 arrays in all, 3,584 B of payload" in evidence(found)


NAMELESS = """HloModule m, num_partitions=4

ENTRY %m (p: f32[8,256]) -> f32[8,256] {
  %p = f32[8,256]{1,0} parameter(0)
  %a = f32[8,256]{1,0} all-to-all(%p), replica_groups={{0,1},{2,3}}, dimensions={0}
  ROOT %c = f32[8,256]{1,0} copy(%a)
}
"""


def test_an_exchange_in_a_text_without_names_and_mesh_is_no_reshape():
    reading = read(NAMELESS)
    assert findings(Program(reading.ledger, reading)) == []


PROGRAM = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def build(mesh):
    after = NamedSharding(mesh, P(None, ("x", "y"), None))
    def moved(a, b):
        return b + jax.lax.with_sharding_constraint(jnp.sin(a), after)
    array = lambda sharding: jax.ShapeDtypeStruct((16, 32, 64), jnp.float32, sharding=sharding)
    return moved, (array(NamedSharding(mesh, P("y", None, "x"))), array(after))
"""


def inspect(folder, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lab.cli", "inspect", "step.py:build", "--mesh", "x=4,y=2", *options]
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.compiles
def test_inspect_tells_findings_first_joins_the_compilers_remark_and_fails_on_request(tmp_path):
    (tmp_path / "step.py").write_text(PROGRAM)
    told = inspect(tmp_path, "--fail-on", "rebuilt_whole")
    assert (told.returncode, told.stderr) == (1, "")
    assert told.stdout.startswith(
        "step.py:build: 1 finding\n\n1. rebuilt_whole: a f32[16,32,64] P('y', None, 'x') is gathered whole"
    )
    assert (
        "to reshard it from P('y', None, 'x') to P(None, ('x', 'y'), None); XLA warned of it (\"Involuntary full "
        'rematerialization")\n   '
        "step.py:9, over x and y"
    ) in told.stdout


@pytest.mark.compiles
def test_a_kind_that_is_not_found_does_not_fail_and_json_has_the_findings(lab, tmp_path):
    (tmp_path / "step.py").write_text(PROGRAM)
    told = lab("inspect", "step.py:build", "--mesh", "x=4,y=2", "--fail-on", "axis_order", "--json")
    (finding,) = json.loads(told.out)["findings"]
    assert (told.status, finding["kind"], finding["wire_bytes"], finding["origin"]) == (
        0,
        "rebuilt_whole",
        114_688,
        "step.py:9",
    )


@pytest.mark.compiles
def test_any_fails_on_whatever_is_found_and_an_unknown_kind_is_refused(lab, tmp_path):
    (tmp_path / "step.py").write_text(PROGRAM)
    assert lab("inspect", "step.py:build", "--mesh", "x=4,y=2", "--fail-on", "any").status == 1
    refused = lab("inspect", "step.py:build", "--mesh", "x=4,y=2", "--fail-on", "slow")
    assert (refused.status, refused.err.count("\n"), "did you mean on_slow_link?" in refused.err) == (2, 1, True)


def test_a_text_of_many_devices_does_not_pass_without_a_mesh_since_nobody_looked(lab, tmp_path):
    (tmp_path / "step.hlo").write_text(NAMELESS)
    refused = lab("inspect", "step.hlo", "--fail-on", "any")
    assert refused.status == 2 and "no mesh was given" in refused.err
    assert lab("inspect", "step.hlo").status == 0


def test_a_reduction_is_not_compared_with_every_other(monkeypatch):
    """A hundred thousand of them would otherwise take hours."""
    number, places = 100, []
    chain = "\n".join(
        f"  %r{n} = f32[512] all-reduce(%{f'r{n - 1}' if n else 'p'}), replica_groups=[4,2]<=[8], to_apply=%add"
        for n in range(number)
    )
    text = (
        "HloModule chain, num_partitions=8\n\n%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n"
        "  %b = f32[] parameter(1)\n  ROOT %s = f32[] add(%a, %b)\n}\n\n"
        f"ENTRY %main (p: f32[512]) -> f32[512] {{\n  %p = f32[512] parameter(0)\n{chain}\n"
        f"  ROOT %out = f32[512] negate(%r{number - 1})\n}}\n"
    )
    reading = read(text, axes=XY)
    place = Site.place.fget
    monkeypatch.setattr(Site, "place", property(lambda site: places.append(site) or place(site)))
    kinds = [finding.kind for finding in findings(Program(reading.ledger, reading, XY))]
    assert kinds.count("reduced_twice") == number - 1
    assert len(places) < 20 * number
