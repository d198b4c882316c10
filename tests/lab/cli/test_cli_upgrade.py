"""`lab upgrade`: the same program under other flags, and under another release."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import jax
import pytest

from lab.cli.upgrade import upgrade as command_upgrade
from lab.compile.other_process import Python
from lab.laws.evaluate import evaluate
from tests.lab.laws.test_derive import gathers, law_of, measurement
from tests.long_tests import long
from tests.paths import ROOT

STEP = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def build(mesh, *, batch=8, embed=16):
    def array(rows, *spec):
        return jax.ShapeDtypeStruct((rows, embed), jnp.float32, sharding=NamedSharding(mesh, P(*spec)))

    def loss(w, x):
        return jnp.sum((x @ w["a"]) @ w["b"])

    step = jax.jit(jax.grad(loss), out_shardings=array(embed).sharding)
    return step, ({"a": array(embed), "b": array(embed)}, array(batch, "data"))
"""
ALGSIMP, NO_CHANGE = "--xla_disable_hlo_passes=algsimp", "--xla_cpu_enable_concurrency_optimized_scheduler=false"


@pytest.fixture
def upgrade(lab, tmp_path):
    (tmp_path / "step.py").write_text(STEP)
    return lambda *options: lab("upgrade", "step.py:build", "--mesh", "data=8", *options)


@pytest.mark.compiles
def test_products_that_a_pass_simplifies_are_named_with_their_line_and_the_one_flag_of_two_that_drops_it(upgrade):
    answer = upgrade("--flags", f"{NO_CHANGE} {ALGSIMP}", "--json")
    found = json.loads(answer.out)
    assert answer.status == 1 and not found["is_same"] and found["communication"]["changes"] == []
    assert (found["before"]["flops"], found["after"]["flops"]) == (1536, 2048)
    products = [each for each in found["differences"] if each["about"] == "FLOPs"]
    assert [each["flags"] for each in products] == [[["xla_disable_hlo_passes=algsimp"]]] * len(products)
    assert all(line.endswith("step.py:10") for each in products for line in each["lines"]) and products


@pytest.mark.compiles
def test_a_flag_that_changes_nothing_ends_with_status_0(upgrade):
    answer = upgrade("--flags", NO_CHANGE)
    assert answer.status == 0
    assert answer.out.splitlines()[0].endswith("no difference in communication, its schedule, FLOPs or memory")


@pytest.mark.compiles
def test_flops_that_grew_by_a_third_are_within_an_allowance_of_that_and_not_of_less(upgrade):
    assert upgrade("--flags", ALGSIMP, "--allow", "100%").status == 0
    assert upgrade("--flags", ALGSIMP, "--allow", "30%").status == 1


@pytest.fixture
def laws(monkeypatch):
    """Those of two programs that are written down, in the place of what is derived."""

    def given(*programs):
        found = map(law_of, programs)
        monkeypatch.setattr("lab.cli.upgrade.answered", lambda *asked: next(found))

    return given


def twice(sizes):
    return measurement(sizes, replace(gathers(sizes), executions=2 * sizes["layers"]))


def once(sizes):
    return measurement(sizes, gathers(sizes))


@pytest.mark.compiles
def test_formulas_that_differ_are_told_where_nothing_else_does(upgrade, laws):
    laws(once, twice)
    answer = upgrade("--flags", NO_CHANGE, "--vary", "fsdp,layers,embed", "--json")
    found = json.loads(answer.out)
    assert answer.status == 1 and not found["is_same"] and not found["differences"]
    assert [(each["of"], each["before"], each["after"]) for each in found["laws"]["differences"]] == [
        ("executions", "layers", "2 * layers"),
        ("payload of a step", "2 * embed^2 * layers", "4 * embed^2 * layers"),
    ]
    assert evaluate(found["laws"]["after"], {"fsdp": 2, "layers": 4, "embed": 64})["payload_bytes"] == 16 * 64**2


def test_a_name_that_cannot_be_varied_is_refused_before_anything_is_compiled(upgrade):
    answer = upgrade("--flags", NO_CHANGE, "--vary", "data,layers")
    assert answer.status == 2 and "no axis or size 'layers'; known are data, batch, embed" in answer.err


@pytest.mark.compiles
def test_laws_are_told_with_what_they_come_from_and_hold_from(upgrade, laws):
    laws(once, twice)
    lines = upgrade("--flags", NO_CHANGE, "--vary", "fsdp,layers,embed").out.splitlines()
    assert lines[0].endswith("FLOPs or memory; laws differ in 2 formulas")
    assert next(line for line in lines if "from 4 compiles" in line).endswith(
        "holds from fsdp=2, layers=4, embed=64 on"
    )
    row = next(line for line in lines if "executions" in line and "2 * layers" in line)
    assert row.startswith("all_gather over fsdp, mlp, forward") and row.rstrip().endswith("step.py:7")
    laws(once, once)
    same = upgrade("--flags", NO_CHANGE, "--vary", "fsdp,layers,embed")
    assert same.status == 0 and same.out.splitlines()[0].endswith("; the same law")


@pytest.mark.compiles
def test_a_flag_that_xla_does_not_know_is_refused_by_its_name(upgrade):
    answer = upgrade("--flags", "--xla_nonsense=1")
    assert answer.status == 2 and "No such compile option: 'xla_nonsense'" in answer.err


@pytest.mark.parametrize(
    "options, line",
    [
        (("--flags", "nonsense"), "expected flags of XLA"),
        ((), "neither --with nor --flags is given"),
        (("--with", "optax==0.2.8"), "--with names no release of jax"),
        (("--with", "jax==0.11.2", "--target", "attached"), "expected a target such as gpu:h100:1x8"),
        (("--flags", NO_CHANGE, "--set", "embed=32"), "--set gives sizes of laws; expected --vary with it"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_line(upgrade, options, line):
    answer = upgrade(*options)
    assert answer.status == 2 and line in answer.err and len(answer.err.splitlines()) == 1


@pytest.mark.compiles
def test_the_release_that_is_imported_is_held_against_the_one_that_was_asked_for(upgrade, monkeypatch):
    monkeypatch.setattr("lab.cli.upgrade.environment", lambda wanted, platform, stage: Python.this())
    same = upgrade("--with", f"jax=={jax.__version__}")
    assert same.status == 0 and "no difference in communication" in same.out
    other = upgrade("--with", "jax==0.0.1")
    assert other.status == 2 and f"jax {jax.__version__} was imported in its place" in other.err


def test_a_compiled_text_is_no_program_that_another_release_could_compile(lab, tmp_path):
    (tmp_path / "step.hlo").write_text("HloModule step")
    answer = lab("upgrade", "step.hlo", "--with", "jax==0.11.2")
    assert answer.status == 2 and "step.hlo is compiled already" in answer.err


def test_the_workflow_of_the_docs_has_fifteen_lines_at_most_and_gives_options_that_there_are():
    workflow = (ROOT / "docs/upgrades.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    step, release = re.search('STEP: "(.*?)"', workflow)[1], re.search(r"JAX: ([\d.]+)", workflow)[1]
    command = re.search(r"run: lab upgrade (.*)", workflow)[1].replace("$STEP", step).replace("$JAX", release)
    given = command_upgrade.make_context("upgrade", shlex.split(command)).params
    assert len(workflow.splitlines()) <= 15 and (given["source"], given["allowed"]) == (
        "train/step.py:build",
        Fraction(1, 100),
    )
    assert [str(each) for each in given["wanted"]] == [f"jax=={release}"] and str(given["target"]) == "gpu:h100:16x8"


@long
@pytest.mark.compiles
def test_a_program_is_the_same_under_the_same_release_in_an_environment_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "step.py").write_text(STEP)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = [sys.executable, "-m", "lab.cli", "upgrade", "step.py:build", "--mesh", "data=8"]
    asked = ["--with", f"jax=={jax.__version__}", "--vary", "data,embed", "--set", "data=2"]
    done = subprocess.run([*command, *asked], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.match(r".*: no difference in communication.*; the same law\n", done.stdout), done.stdout
    assert done.stdout.count("equal at") == 2


@long
@pytest.mark.compiles
def test_flops_that_the_simplifier_chooses_by_size_have_a_law_without_it(tmp_path):
    (tmp_path / "step.py").write_text(STEP)
    command = [sys.executable, "-m", "lab.cli", "upgrade", "step.py:build", "--mesh", "data=8", "--flags", ALGSIMP]
    done = subprocess.run(
        [*command, "--vary", "data,batch,embed", "--json"], cwd=tmp_path, capture_output=True, text=True
    )
    laws = json.loads(done.stdout)["laws"]
    assert [law["flops"] is None for law in (laws["before"], laws["after"])] == [True, False]
    assert [each["what"] for each in laws["differences"]] == ["FLOPs"]
