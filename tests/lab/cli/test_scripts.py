"""Scripts that make their own mesh and their own arrays are inspected as they are."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.compiles

STEP = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def split(mesh, width):
    w = jax.ShapeDtypeStruct((width, 4 * width), jnp.bfloat16, sharding=NamedSharding(mesh, P("data", "model")))
    return w, jax.ShapeDtypeStruct((512, width), jnp.bfloat16, sharding=NamedSharding(mesh, P("data")))

@jax.jit
def step(w, x):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w).astype(jnp.float32) ** 2))(w)
    return w - 0.1 * grad, loss

def build(mesh):
    return step, split(mesh, 256)
"""
TRAIN = """
import argparse
import jax, jax.numpy as jnp, numpy as np
from step import split, step

jax.distributed.initialize()
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int)
width = parser.parse_args().width
mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(-1, 2), ("data", "model"))
like_w, like_x = split(mesh, width)

@jax.jit
def init(key):
    w = jax.random.normal(key, like_w.shape, like_w.dtype)
    return jax.lax.with_sharding_constraint(w, like_w.sharding)

@jax.jit
def counters(w):
    return {"step": jnp.zeros((), jnp.int32), "mean": jnp.zeros_like(w)}

w = init(jax.random.key(0))
state = counters(w)  # Of no value of `w`, and so of no mesh.
more = jax.jit(lambda state, w: state["mean"] + w)(state, w).sharding
for number in range(10):
    batch = np.zeros(like_x.shape, jnp.bfloat16)
    x = jax.make_array_from_process_local_data(like_x.sharding, batch)
    w, loss = step(w, x)
    print(number, loss, w.sharding.spec)
if float(loss) > 1:
    raise SystemExit("did not converge")
"""
OWN = """
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()).reshape(2, 8), ("data", "model"))
w = jax.device_put(jnp.ones((512, 2048)), NamedSharding(mesh, P("data", "model")))

@partial(jax.jit, static_argnums=0, static_argnames="scaled")
def step(power, w, *, scaled):
    return jnp.sum(w ** power) * (2 if scaled else 1)

def build(offered):
    return partial(step, 2, scaled=True), (w,)

def asks(offered):
    return step, (w,) if w.sum() > 0 else ()
"""
HABITS = """
import queue, threading
import jax, jax.numpy as jnp, numpy as np

stats = jax.local_devices()[0].memory_stats()
assert (stats["bytes_in_use"], stats["bytes_limit"]) == (0, int(0.75 * 85_017_493_504)), stats
ready = queue.Queue()

def load():
    while True:
        ready.put(np.ones((jax.local_device_count(), 8, 64), np.float32))
        ready.put(float(jnp.ones((1000, 1000)).sum()))  # Ends the thread.

threading.Thread(target=load).start()

def update(w, x):
    loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    jax.debug.print("loss {}", loss)
    return w - jax.lax.pmean(grad, "batch"), loss

w, loss = jax.pmap(update, "batch", in_axes=(None, 0), out_axes=(None, 0))(np.ones((64, 64), np.float32), ready.get())
history = np.zeros(1)
history[0] = loss.sum()
"""
AGAIN = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **__: compiled.append(name) if "backend_compile" in name else None
)
mesh = jax.make_mesh((len(jax.devices()),), ("fsdp",))
rows, whole = NamedSharding(mesh, P("fsdp")), NamedSharding(mesh, P())
w, x = (jax.device_put(np.ones((512, 512), np.float32), rows) for _ in range(2))
state = {"m": jnp.zeros((512, 512)), "scale": 1.0, "w": w}

@jax.jit
def step(state, x):
    g = jax.grad(lambda w: state["scale"] * jnp.mean((x @ w) ** 2))(state["w"])
    m = 0.9 * state["m"] + g
    return {"m": m, "scale": state["scale"] + jnp.max(m), "w": state["w"] - m}

for number in range(3):
    before = len(compiled)
    state = step(state, x)
    print(number, len(compiled) - before)
"""
ONCE = AGAIN.replace("jnp.zeros((512, 512))", "jnp.zeros_like(w)").replace(
    "1.0,", "jax.device_put(np.float32(1), whole),"
)
IN_FORCE = (
    AGAIN.replace('("fsdp",))', '("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))')
    .replace("jax.device_put(np.ones((512, 512), np.float32), rows)", "jax.jit(lambda: jnp.ones((512, 512)), out_shardings=rows)()")
    .replace("\nstate =", "\njax.set_mesh(mesh)\nstate =")
    .replace("jnp.zeros((512, 512))", "jnp.zeros_like(w)")
    .replace("1.0,", "jnp.float32(1),")
)  # fmt: skip
FAILING = {
    "alone.py": ("import jax\nprint(jax.jit(lambda x: x + 1)(1.0))", "called no jitted function on several devices"),
    "asks.py": (
        "import jax.numpy as jnp\nx = jnp.ones((1000, 1000))\nif x.sum() > 0:\n    print(x)",
        "asks.py:3 asks for the value of an array, bool[]",
    ),
    "late.py": (
        "from step import *\nmesh = jax.make_mesh((len(jax.devices()) // 2, 2), ('data', 'model'))\n"
        "w, x = (jax.device_put(jnp.ones(a.shape, a.dtype), a.sharding) for a in split(mesh, 64))\n"
        "w, _ = step(w, x)\nopen('checkpoint')",
        "late.py raised FileNotFoundError: [Errno 2] No such file or directory: 'checkpoint'; --calls 1 shows",
    ),
    "early.py": (
        "import jax, jax.numpy as jnp\nmesh = jax.make_mesh((len(jax.devices()),), ('data',))\n"
        "rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('data'))\n"
        "init = jax.jit(lambda: jnp.ones((64, 64)), out_shardings=rows)\nassert not jnp.isnan(init().sum())",
        "early.py:5 asks for the value of an array, bool[]; arrays have shapes here and no values; before it no step "
        "was called, and only what makes arrays: <lambda> (early.py:5); ask after the first step",
    ),
    "raises.py": ("import jax\n1 / 0", "raises.py raised ZeroDivisionError: division by zero"),
    "asks_for_width.py": (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--width', required=True)\n"
        "parser.parse_args()",
        "asks_for_width.py ended itself with status 2 (see above); its own arguments go after --: asks_for_width.py "
        "--target T -- ARGUMENTS",
    ),
    "exits.py": ("import sys\nsys.exit('no data')", "exits.py raised SystemExit: no data"),
}


def lab(folder, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lab", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "step.py").write_text(STEP)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "own.py").write_text(OWN)
    for name, (text, _) in FAILING.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def sent(found) -> list:
    return [(each["kind"], each["axes"], each["payload_bytes"], each["executions"]) for each in found["transfers"]]


def test_a_script_is_inspected_as_its_step_by_itself_is(folder):
    done = lab(folder, "inspect", "train.py", "--target", "cpu:8", "--json", "--", "--width", "256")
    found = json.loads(done.stdout)
    by_itself = lab(folder, "inspect", "step.py:build", "--mesh", "data=4,model=2", "--json")
    expected = json.loads(by_itself.stdout)
    assert found["source"] == "train.py:step"
    assert found["mesh"] == {"data": 4, "model": 2}
    assert sent(found) == sent(expected) != []
    assert found["memory"] == expected["memory"]
    assert found["flops"] == expected["flops"]
    (note,) = (note for note in found["notes"] if "called at" in note)
    assert (
        "called at train.py:28; called besides on several devices: init (train.py:22), counters (train.py:23), <lambda> (train.py:24)"
        in note
    )
    assert "followed until train.py:30 asks for the value of an array, float32[]" in note
    assert "9 <float32[] without values> P('data', 'model')" in done.stderr


def test_a_builder_may_make_its_own_mesh_and_arrays_for_devices_that_only_compile(folder):
    done = lab(folder, "inspect", "own.py:build", "own.py:asks", "--target", "gpu:h100:2x8", "--json")
    (found,) = json.loads(done.stdout)
    assert found["mesh"] == {"data": 2, "model": 8}
    assert {(each["kind"], each["payload_bytes"]) for each in found["transfers"]} == {("all_reduce", 4)}
    assert found["memory"]["arguments"] == 512 * 2048 * 4 / 16
    assert (
        "own.py:17 asks for the value of an array, bool[]; arrays have shapes here and no values: leave the line"
        in done.stderr
    )


def test_a_script_may_pmap_print_start_threads_and_ask_for_memory_on_devices_that_only_compile(folder):
    (folder / "habits.py").write_text(HABITS)
    done = lab(folder, "inspect", "habits.py", "--target", "gpu:h100:1x8", "--json")
    found = json.loads(done.stdout)
    assert (found["source"], found["mesh"]) == ("habits.py:pmap", {"batch": 8})
    assert sent(found) == [("all_reduce", ["batch"], 64 * 64 * 4, 1)]
    assert "followed until habits.py:23 asks for the value of an array, float32[]" in found["notes"][0]
    assert "Traceback" not in done.stderr


def test_a_step_whose_first_arguments_lie_otherwise_than_it_gives_them_back_is_told_to_compile_twice(folder):
    for name, text in {"again.py": AGAIN, "once.py": ONCE, "force.py": IN_FORCE}.items():
        (folder / name).write_text(text)
    done = lab(folder, "inspect", "again.py", "once.py", "force.py", "--target", "cpu:8", "--no-prove", "--json")
    told, *silent = (found["notes"] for found in json.loads(done.stdout))
    (note,) = (note for note in told if " anew " in note)
    assert note.startswith(
        "JAX compiles step anew at a later call (again.py:22), for what the call before gives back: "
        "state['m'] was on no mesh and is P('fsdp', None); "
        "state['scale'] was weak float32 on no mesh and is float32 P(). Made alike"
    )
    assert any("of shapes or shardings before; --function step shows all" in note for note in told)
    assert not any(" anew " in note or "other set" in note for notes in silent for note in notes)
    # As JAX itself counts on 8 devices what it compiles at each call.
    (first, *later), *silent = natively(folder, "again.py", "once.py", "force.py")
    assert first > 0 and later == [1, 0] and [later for _, *later in silent] == [[0, 0]] * 2


def natively(folder, *scripts: str) -> list[list[int]]:
    """The numbers that each of them prints with those of its three steps."""
    devices = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    code = f"import runpy\nfor script in {scripts}: runpy.run_path(script)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=os.environ | devices
    )
    counts = [int(line.split()[1]) for line in done.stdout.splitlines()]
    return [counts[number : number + 3] for number in range(0, 3 * len(scripts), 3)]


def test_a_script_that_cannot_be_followed_is_one_line(folder):
    done = lab(folder, "inspect", *FAILING, "--target", "gpu:h100:1x8")
    assert (done.returncode, done.stdout) == (2, "")
    refusals = [line for line in done.stderr.splitlines() if line.startswith("lab: ")]
    assert len(refusals) == len(FAILING)
    for refusal, (_, said) in zip(refusals, FAILING.values(), strict=True):
        assert said in refusal


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("train.py",),
            "to follow it as it is, give --target alone, such as --target gpu:h100:1x8, without --mesh; or name",
        ),
        (
            ("train.py", "--mesh", "data=8", "--target", "cpu:8"),
            "or name a function that builds the step for a mesh: train.py:build (it has init, counters)",
        ),
        (("missing.py", "--target", "cpu:8"), "missing.py: no such file"),
        (
            ("train.py", "--target", "cpu:8", "--function", "stop", "--", "--width", "8"),
            "function called on several devices 'stop'",
        ),
        (("train.py", "--target", "cpu:8", "--calls", "1", "--", "--width", "8"), "--calls follows more or fewer"),
    ],
)
def test_what_a_script_needs_is_said(folder, arguments, said):
    done = lab(folder, "inspect", *arguments)
    assert said in done.stderr + done.stdout
    assert done.returncode == (0 if "--calls" in arguments else 2)


def test_an_option_that_is_the_scripts_own_is_told_where_to_stand(lab):
    answer = lab("inspect", "train.py", "--target", "cpu:8", "--embed", "512")
    assert (answer.status, answer.err) == (
        2,
        "lab: lab inspect has no option --embed; arguments of train.py itself go after --: lab inspect train.py ... "
        "-- --embed ...\n",
    )
    assert "No such option '--embed'" in lab("inspect", "step.hlo", "--embed", "512").err
