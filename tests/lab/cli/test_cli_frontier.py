"""`lab frontier`: a small step under a few changes, compiled for CPUs and for GPUs."""

import json
import subprocess
import sys
from contextlib import contextmanager
from resource import RUSAGE_CHILDREN, getrusage

import pytest

from lab.compile import several_processes
from lab.frontier import flags, step
from lab.frontier.frontier import Refusal
from lab.frontier.step import Step
from lab.meshes import plugins
from tests.lab.compilers import compilers_end
from tests.lab.conftest import this_process
from tests.lab.frontier.test_frontier import outcome
from tests.long_tests import long

pytestmark = pytest.mark.compiles
needs_cuda = pytest.mark.skipif(
    not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed"
)
STEP = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def build(mesh, *, width=32):
    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))

    def loss(w_LDD, x_BD):
        layer = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None))
        return jnp.sum(jax.lax.scan(layer, x_BD, w_LDD)[0])

    w_LDD = array((4, width, width))
    return jax.jit(jax.grad(loss), out_shardings=w_LDD.sharding), (w_LDD, array((16, width), "data"))
"""
PIPELINED = "xla_gpu_enable_pipelined_all_reduce"


@pytest.fixture
def frontier(lab, tmp_path, monkeypatch):
    """In this process, one variant after the other."""
    monkeypatch.setattr(several_processes, "other_process", this_process)
    monkeypatch.setattr(several_processes, "MOST_PROCESSES", 1)
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(step, "_UNROLLED", ((0, 4),))
    monkeypatch.setattr(step, "POLICIES", ())
    monkeypatch.setattr(flags, "MEGABYTES", ())
    (tmp_path / "step.py").write_text(STEP)
    yield lambda *options: lab("frontier", "step.py:build", "--mesh", "data=2", *options)
    compilers_end()


def test_what_a_checkpoint_keeps_costs_memory_and_spares_products(frontier):
    answer = frontier("--target", "cpu:2", "--try", "width=64", "--json")
    found = json.loads(answer.out)
    rows = {" + ".join(one["change"] for one in row["interventions"]): row for row in found["rows"]}
    asked, kept, wide = rows[""], rows["jax.checkpoint removed"], rows["width=64"]
    # Four products of a layer, one of which computes it again; each multiplies 8 x 32 by 32 x 32 on a device.
    assert (asked["flops"], kept["flops"]) == (4 * 4 * 2 * 8 * 32 * 32, 4 * 3 * 2 * 8 * 32 * 32)
    assert kept["peak"] > asked["peak"] and wide["wire_bytes"] == 4 * asked["wire_bytes"]
    assert asked["wire_bytes_by_axes"] == {"data": 4 * 32 * 32 * 4}
    unrolled = rows["unroll=4 of jax.lax.scan"]
    assert unrolled["refused"] is None and unrolled["same_as"] is None
    assert rows["xla_disable_hlo_passes=cpu-all-reduce-combiner"]["refused"] is None
    assert found["pick"] is not None and "seconds" not in asked


@needs_cuda
def test_seconds_of_a_flag_and_the_pick_stand_in_text_and_page(frontier, monkeypatch, tmp_path):
    monkeypatch.setattr(flags, "GPU", [one for one in flags.GPU if one.options == ((PIPELINED, "True"),)])
    monkeypatch.setitem(flags._BY_PLATFORM, "gpu", flags.GPU)
    answer = frontier("--target", "gpu:h100:1x2", "--html", "page.html")
    first = answer.out.splitlines()[0]
    assert answer.status == 0 and "step.py:build on gpu:h100:1x2" in first and "take: " in first
    assert PIPELINED in answer.out and " of 63.76 GB that JAX takes" in answer.out
    page = (tmp_path / "page.html").read_text()
    assert "<svg" in page and PIPELINED in page


@pytest.mark.parametrize(
    "options, line",
    [
        ((), "--target is missing"),
        (("--target", "attached"), "expected one to compile for ahead of time"),
        (("--target", "cpu:2", "--try", "width"), "expected NAME=VALUE,VALUE"),
        (("--target", "cpu:2", "--set", "depth=2"), "no argument of step.py:build with a default, 'depth'"),
        (("--target", "cpu:2", "--try", "widht=64"), "'widht'; did you mean width?"),
        (("--target", "cpu:2", "--try-other", "width=wide"), "width=wide"),
        (("--target", "cpu:2", "--style", "explicit"), "--style explicit: expected SOURCE to be an experiment"),
    ],
)
def test_what_cannot_be_explored_is_refused_in_a_line(frontier, options, line):
    answer = frontier(*options)
    assert answer.status == 2 and line in answer.err and len(answer.err.splitlines()) == 1


def test_where_nothing_fits_the_exit_status_is_1(lab, tmp_path, monkeypatch):
    too_much = Step(outcome(1.0, 3000, fits=False), frozenset(), (), ())

    @contextmanager
    def no_process(ready):
        yield lambda f, some: [too_much if each == Step.of else Refusal("refused") for each in some]

    monkeypatch.setattr("lab.cli.frontier.several_processes", no_process)
    (tmp_path / "step.py").write_text(STEP)
    asked = ("frontier", "step.py:build", "--mesh", "data=2", "--target", "cpu:2")
    answer = lab(*asked)
    assert answer.status == 1 and "none fits" in answer.out
    rows = json.loads(lab(*asked, "--try", "width=48", "--try-other", "width=64", "--json").out)["rows"]
    told = {one["change"]: one["mathematics"] for row in rows for one in row["interventions"]}
    assert (told["width=48"], told["width=64"]) == ("", "other numbers")


@pytest.mark.parametrize(
    "asked, line",
    [(("ch20_zeroo3",), "did you mean ch20_zero3,"), (("ch20_zero3", "--try-other", "dtype=f8"), "dtype=f8: expected")],
)
def test_an_experiment_is_refused_by_its_name_and_by_values_that_it_has_not(lab, asked, line):
    answer = lab("frontier", *asked, "--target", "gpu:h100:1x8")
    assert answer.status == 2 and line in answer.err and len(answer.err.splitlines()) == 1


def test_a_compiled_text_is_refused(lab, tmp_path):
    (tmp_path / "step.hlo").write_text("HloModule step")
    answer = lab("frontier", "step.hlo", "--target", "cpu:2")
    assert answer.status == 2 and "step.hlo is compiled already" in answer.err


@long
@needs_cuda
def test_a_decoder_step_for_16_h100s_takes_two_cores_under_five_minutes_and_its_pick_fits(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))
    asked = ["frontier", "ch20_zero3", "--target", "gpu:h100:2x8", "--set", "preset=llama3-8b", "--set", "batch=16"]
    before = getrusage(RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "lab.cli", *asked, "--json"], capture_output=True, text=True)
    after = getrusage(RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    # Whatever else the machine does.
    assert (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 2 < 300
    found = json.loads(done.stdout)
    (pick,) = [row for row in found["rows"] if row["is_pick"]]
    assert pick["fits"] and pick["peak"] <= found["usable_bytes"]
    assert pick["seconds"]["total"] < found["rows"][0]["seconds"]["total"]
