"""`%lab` in a notebook: a shell of IPython in a process of its own, which JAX starts in after the extension was loaded."""

import json
import subprocess
import sys

import pytest

from lab.meshes import plugins

pytestmark = pytest.mark.compiles
pytest.importorskip("IPython")

STEP = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
w = jax.device_put(jnp.ones((128, 256)), NamedSharding(mesh, P("data", "model")))
x = jax.device_put(jnp.ones((64, 128)), NamedSharding(mesh, P("data")))

@jax.jit
def step(w, *, x):
    assert not called
    return jnp.sum((x @ w) ** 2, axis=0)

called = False

@jax.jit
def fixed(w):
    jax.debug.print("{}", w[0, 0])
    return jax.lax.with_sharding_constraint(w.sum(axis=0), NamedSharding(mesh, P()))

from flax import nnx

linear = nnx.Linear(128, 256, rngs=nnx.Rngs(0))
applied = nnx.jit(lambda linear, x: linear(x).sum())
"""
NOTEBOOK = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell, told = InteractiveShell.instance(), []
for cell in json.load(sys.stdin):
    with capture_output() as found:
        shell.run_cell(cell)
    told.append({"out": found.stdout, "err": found.stderr, "pages": [each.data["text/html"] for each in found.outputs]})
sys.__stdout__.write(json.dumps(told))
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """What cells print and show, by the cell."""
    gpu = " --target gpu:h100:2x8 --mesh data=8,model=2"
    cells = [
        "%load_ext lab",
        STEP,
        "%lab inspect step(w, x=x)",
        "print('before')\n%lab inspect step(w, x=x) --target cpu:8\nprint('after')",
        *[f"%lab inspect step(w, x=x){gpu}"] * plugins.installed("gpu"),
        "%lab inspect step.lower(w, x=x)",
        "%lab inspect step",
        "%lab inspect step(w, x=y)",
        "%lab inspect step(w, x=x) --target cpu:4",
        *["%lab inspect fixed(w) --target gpu:h100:1x8"] * plugins.installed("gpu"),
        *["%lab inspect applied(linear, x) --target gpu:h100:1x8"] * plugins.installed("gpu"),
        *["%lab inspect fixed(w) --target gpu:h100:2x8 --mesh data=8,model=2"] * plugins.installed("gpu"),
        *[f"%lab time step(w, x=x){gpu}"] * plugins.installed("gpu"),
        "%lab time step",
        "%lab time step(w, x=x)",
        "%lab explain widened",
        "%lab inspect absent.hlo",
    ]
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK],
        input=json.dumps(cells),
        cwd=tmp_path_factory.mktemp("notebook"),
        env={"JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu", "IPYTHONDIR": ".", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(cells, json.loads(done.stdout), strict=True))


def test_a_call_is_compiled_and_not_made_and_its_ledger_is_printed_and_shown_as_a_page(notebook):
    for call, program in [("%lab inspect step(w, x=x)", "step"), ("%lab inspect step.lower(w, x=x)", "step.lower(w, x=x)")]:  # fmt: skip
        found = notebook[call]
        assert found["out"].startswith(f"{program}: no finding") and "mesh data=4,model=2" in found["out"]
        (page,) = found["pages"]
        assert page.startswith("<iframe srcdoc=") and "all_reduce" in page
        assert not found["err"]


def test_inside_a_cell_it_stands_where_it_was_asked(notebook):
    (cell,) = (cell for cell in notebook if cell.startswith("print('before')"))
    out = notebook[cell]["out"]
    assert out.index("before") < out.index("step: 8 devices, mesh data=4,model=2, cpu:8") < out.index("after")


@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
def test_arrays_of_eight_cpus_are_shapes_on_the_axes_of_sixteen_gpus(notebook):
    found = notebook["%lab inspect step(w, x=x) --target gpu:h100:2x8 --mesh data=8,model=2"]
    assert "step: 16 devices, mesh data=8,model=2, gpu:h100:2x8" in found["out"]
    assert "reduce" in found["out"] and not found["err"]


@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
def test_a_function_that_closes_over_its_mesh_compiles_for_as_many_gpus(notebook):
    found = notebook["%lab inspect fixed(w) --target gpu:h100:1x8"]
    assert "fixed: 8 devices, mesh data=4,model=2, gpu:h100:1x8" in found["out"] and "NVLink" in found["out"]
    assert not found["err"]


@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
def test_what_nnx_jit_wraps_compiles_for_gpus_too(notebook):
    found = notebook["%lab inspect applied(linear, x) --target gpu:h100:1x8"]
    assert "applied: 8 devices, mesh data=4,model=2, gpu:h100:1x8" in found["out"] and not found["err"]


@pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
def test_the_time_of_a_call_is_printed_and_shown_with_its_timeline(notebook):
    found = notebook["%lab time step(w, x=x) --target gpu:h100:2x8 --mesh data=8,model=2"]
    assert found["out"].startswith("step on gpu:h100:2x8 (NVIDIA H100 SXM 80 GB): ") and " a step, " in found["out"]
    (page,) = found["pages"]
    assert "a step, predicted" in page and "&lt;svg" in page
    assert not found["err"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("step", "lab: step: found no arguments; expected a call, such as %lab inspect step(params, batch)"),
        ("step(w, x=y)", "name 'y' is not defined"),
        ("step(w, x=x) --target cpu:4", "its arguments lie on mesh data=4,model=2, and target cpu:4 has 4 devices"),
        (
            "fixed(w) --target gpu:h100:2x8 --mesh data=8,model=2",
            "the function names a mesh of its own: make it of the target's devices",
        ),
        ("absent.hlo", "absent.hlo: no such file"),
        ("time step", "expected a call, such as %lab time step(params, batch)"),
        ("time step(w, x=x)", "found the target attached, expected one with a chip, such as --target gpu:h100:2x8"),
    ],
)
def test_what_cannot_be_inspected_is_one_line(notebook, call, said):
    if "gpu" in call and not plugins.installed("gpu"):
        pytest.skip("the compile-only plugin for GPUs is not installed")
    found = notebook[f"%lab {call if call.startswith('time') else f'inspect {call}'}"]
    assert said in found["err"] and found["err"].count("\n") == 1
    assert (found["out"], found["pages"]) == ("", [])


def test_other_commands_are_those_of_a_terminal(notebook):
    assert notebook["%lab explain widened"]["out"].startswith("widened: ")
