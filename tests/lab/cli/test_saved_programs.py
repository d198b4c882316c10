"""What JAX saved of a program is inspected as the program is: artifacts of `jax.export`, and executables."""

import json
import subprocess
import sys

import pytest

from lab.compile.saved import Saved, saved_as
from lab.meshes import plugins

pytestmark = pytest.mark.compiles
pytest.importorskip("flatbuffers")

STEP = """
from typing import NamedTuple
import jax, jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

class State:
    def __init__(self, params, mu, count):
        self.params, self.mu, self.count = params, mu, count

KEYS = [jax.tree_util.GetAttrKey(name) for name in ("params", "mu", "count")]
jax.tree_util.register_pytree_with_keys(
    State, lambda s: (list(zip(KEYS, (s.params, s.mu, s.count))), None), lambda _, parts: State(*parts)
)

def build(mesh):
    def array(shape, *spec):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, P(*spec)))

    weights = {"up": array((256, 1024), "data", "model"), "down": array((1024, 256), "model", "data")}
    state = State(weights, weights, jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, P())))

    def step(state, x, unused, *, rate):
        def loss(w):
            with jax.named_scope("mlp"):
                return jnp.mean(jnp.square(jax.nn.relu(x @ w["up"]) @ w["down"]))

        grads = jax.grad(loss)(state.params)
        mu = jax.tree.map(lambda m, g: 0.9 * m + g, state.mu, grads)
        params = jax.tree.map(lambda w, m: w - rate * m, state.params, mu)
        return State(params, mu, state.count + 1), grads["up"]

    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    whole = NamedSharding(mesh, P())
    jitted = jax.jit(step, donate_argnums=0, out_shardings=(shardings, whole))
    named = {"rate": jax.ShapeDtypeStruct((), jnp.bfloat16, sharding=whole)}
    return jitted, (state, array((2048, 256), "data"), array((8, 8))), named

def lowered(mesh):
    jitted, args, named = build(mesh)
    return jitted.lower(*args, **named)

def typed(mesh):
    rows = jax.ShapeDtypeStruct((64, 256), jnp.float32, sharding=NamedSharding(mesh, P("data", "model")))
    return jax.jit(lambda x: jnp.sum(jnp.sin(x), axis=0)), (rows,)
"""
SAVE = """
import pickle, sys
import lab
targets = sys.argv[1:]
meshes = [lab.mesh(target, data=4, model=2) for target in targets]
import jax
from jax import export
from jax.experimental.serialize_executable import serialize
from jax.sharding import AxisType, Mesh
import jax.numpy as jnp
import step

export.register_pytree_node_serialization(
    step.State, serialized_name="step.State", serialize_auxdata=lambda _: b"", deserialize_auxdata=lambda _: None
)

def save(name, content):
    with open(name, "wb") as file:
        file.write(content)

for target, mesh in zip(targets, meshes):
    kind = target[:3]
    jitted, args, named = step.build(mesh)
    save(kind, export.export(jitted, platforms=["cuda" if kind == "gpu" else kind])(*args, **named).serialize())

mesh = meshes[0]
explicit = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)
jitted, args = step.typed(explicit)
save("typed", export.export(jitted)(*args).serialize())
save("everywhere", export.export(jitted, platforms=["cpu", "cuda", "tpu"])(*args).serialize())
save("executable", pickle.dumps(serialize(jitted.lower(*args).compile())))
save("alone", export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((8,), jnp.float32)).serialize())
rows = jax.ShapeDtypeStruct(export.symbolic_shape("b, 8"), jnp.float32)
save("symbols", export.export(jax.jit(jnp.sin))(rows).serialize())
"""
TARGETS = ["cpu:8", *["gpu:h100:2x4"] * plugins.installed("gpu")]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    (folder / "step.py").write_text(STEP)
    subprocess.run([sys.executable, "-c", SAVE, *TARGETS], cwd=folder, check=True, timeout=200)
    whole = (folder / "cpu").read_bytes()
    (folder / "damaged").write_bytes(whole[:-500])
    return folder


def inspected(lab, *arguments: str):
    answer = lab("inspect", *arguments, "--json")
    assert answer.status == 0, answer.err
    return json.loads(answer.out)


def told(found) -> list:
    """All that is said, without what the compiler calls its instructions."""
    keys = "kind axes executions dtype payload_bytes phase scope origin overlap link".split()
    return sorted([str(each[key]) for key in keys] for each in found["transfers"])


@pytest.mark.parametrize("target", TARGETS)
def test_what_export_saved_is_the_program_with_its_names_scopes_lines_and_donations(lab, artifacts, target):
    saved = inspected(lab, str(artifacts / target[:3]), "--target", target)
    source = f"{artifacts / 'step.py'}:lowered"
    program = inspected(lab, source, "--mesh", "data=4,model=2", "--target", target)
    assert saved["mesh"] == {"data": 4, "model": 2}
    assert told(saved) == told(program) != []
    assert "mlp" in {each["scope"] for each in saved["transfers"]}
    assert [(each["kind"], each["sentence"]) for each in saved["findings"]] == [
        (each["kind"], each["sentence"]) for each in program["findings"]
    ]
    assert saved["state"] == program["state"] and {"parameters", "moments"} <= set(saved["state"])
    assert saved["flops"] == program["flops"]
    for part in ("arguments", "outputs", "aliased"):
        assert saved["memory"][part] == program["memory"][part]


@pytest.mark.parametrize("name", ["typed", "everywhere", "executable"])
def test_typed_meshes_modules_of_several_platforms_and_executables_send_512_bytes(lab, artifacts, name):
    saved = inspected(lab, str(artifacts / name), "--target", "cpu:8")
    assert saved["mesh"] == {"data": 4, "model": 2}
    assert [(t["kind"], t["axes"], t["payload_bytes"]) for t in saved["transfers"]] == [("all_reduce", ["data"], 512)]


def test_what_was_exported_for_one_device_sends_nothing(lab, artifacts):
    assert inspected(lab, str(artifacts / "alone"))["transfers"] == []


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("cpu", "--target tpu:v5p:2x2x2", 'was exported for cpu, and the target is tpu:v5p:2x2x2; name another --target, or export with platforms=["tpu"]'),
        ("cpu", "--target cpu:4", "was exported for 8 devices, and target cpu:4 has 4"),
        ("cpu", "--mesh data=8", "was exported for mesh data=4,model=2, found --mesh data=8"),
        ("symbols", "", "found an argument float32[b,8]; export the function for numbers"),
        ("damaged", "", "cannot be read as what jax.export serialized"),
        ("executable", "", "is an executable, which XLA loads where it runs: --target attached, or"),
        ("everywhere", "--target gpu:h100:1x2", "was exported for 8 devices, and target gpu:h100:1x2 has 2"),
        ("executable", "--target gpu:h100:1x8", "is an executable, which XLA loads where it runs"),
    ],
)  # fmt: skip
def test_what_a_saved_program_cannot_be_is_one_line(lab, artifacts, name, options, said):
    answer = lab("inspect", str(artifacts / name), *options.split())
    assert (answer.status, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert said in answer.err


def test_a_saved_program_is_told_by_its_content(artifacts, tmp_path):
    assert saved_as(str(artifacts / "cpu")) == Saved.EXPORT
    assert saved_as(str(artifacts / "executable")) == Saved.EXECUTABLE
    (tmp_path / "step.jax_export").write_text("HloModule step")
    assert saved_as(str(tmp_path / "step.jax_export")) is saved_as(str(tmp_path / "missing")) is None
