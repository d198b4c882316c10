"""Changes that are tried in a process of their own, as those of large programs for TPUs are."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest

from lab import diagnosis
from lab.cli import inspect as command
from lab.cli.programs import Script, programs
from lab.compile.other_process import other_process
from lab.diagnosis.proof import Measured, Trial
from lab.diagnosis.remedy import NotApplicable, ShardResult
from lab.meshes.axes import Axes, TypedAxes
from lab.meshes.targets import parse_target
from tests.long_tests import long

pytestmark = pytest.mark.compiles

STEP = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def arrays(mesh):
    rows = NamedSharding(mesh, P("data"))
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32, sharding=rows) for shape in ((32, 128), (256, 32)))

def step(w, x):
    return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)

def build(mesh):
    return jax.jit(step, out_shardings=NamedSharding(mesh, P())), arrays(mesh)
"""
SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
from step import arrays, step, P, NamedSharding
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
w, x = (jax.device_put(jnp.ones(a.shape), a.sharding) for a in arrays(mesh))
jax.jit(step, out_shardings=NamedSharding(mesh, P()))(w, x)
"""
MESH, TARGET = TypedAxes(Axes.parse("data=8")), parse_target("cpu:8")


def later(program):
    """As of a program whose process is too busy to try changes."""
    return diagnosis.of(program), Trial.of(program)


@pytest.mark.parametrize("source", ["step.py:build", pytest.param("train.py", marks=long)])
def test_a_change_that_another_process_compiles_is_told_as_one_that_this_one_does(tmp_path, monkeypatch, source):
    (tmp_path / "step.py").write_text(STEP)
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    mesh = MESH if ":" in source else None
    with other_process() as call:
        ((found, trial),) = programs(source, mesh, TARGET, _quiet, call, later)
        (here,) = programs(source, mesh, TARGET, _quiet, call, partial(diagnosis.of, prove=True))
        change = (ShardResult(7, (("data",),)),)
        with pytest.raises(NotApplicable):
            programs(source, mesh, TARGET, _quiet, call, Measured.of, remedy=change, which=0)
    elsewhere = command._tried(source, 0, replace(found, trial=trial), mesh, TARGET, _quiet, Script())
    assert elsewhere.trial is None and elsewhere.findings == here.findings
    assert [f.proof.pays for f in elsewhere.findings] == [True]


def _quiet(name):
    del name
    return nullcontext()
