"""`lab restart` of a small step: what remains, what is refused, and its JSON."""

import time
from pathlib import Path

import pytest

from lab.meshes import plugins
from tests.json_keys import valid
from tests.lab.cli.test_cli import assert_refused
from tests.long_tests import long

STEP = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def build(mesh):
    def put(shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    def step(w, m, x):
        m = 0.9 * m + jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return w - 0.1 * m, m

    w = put((64, 128), P("data", "tensor"))
    return jax.jit(step, donate_argnums=(0, 1)), (w, w, put((32, 64), P("data")))
"""
ASKED = ("restart", "step.py:build", "--mesh", "data=4,tensor=2", "--target", "cpu:8", "--store", "25GB/s")


@pytest.fixture
def step(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("step.py").write_text(STEP)


@pytest.mark.compiles
def test_the_state_of_lost_devices_comes_from_the_store_and_the_rest_from_peers(lab, step):
    answer = lab(*ASKED, "--lose", "2", "--json")
    found = valid("restart", answer.out)
    assert answer.status == 0 and found["unplaced"] == []
    refused, half, one = found["losses"][0]["meshes"]
    assert refused["mesh"] == {"data": 3, "tensor": 2} and "partitioned 3 times" in refused["refused"]
    # Rows 48 to 63 are gone. Of data=2 the first device has rows 0 to 15 of its 32, the second, which had 16 to 31, none;
    # each takes 16 rows of others; 1,024 B a row of both arrays, half of it along each coordinate of tensor.
    assert half["restore"] == {
        "state": 65_536,
        "gone": 16_384,
        "held": 16_384,
        "from_peers": 32_768,
        "most_from_peers": 8192,
        "most_gone": 8192,
    }
    assert one["mesh"] == {"data": 1, "tensor": 2} and half["idle"] == 2 and half["batch"] == 1


@pytest.mark.compiles
def test_the_table_names_losses_and_refusals(lab, step):
    answer = lab(*ASKED, "--lose", "2", "--lose", "4")
    assert answer.status == 0, answer.err
    for part in ("2 devices lost", "4 devices lost", "data=3,tensor=2 is refused", "from store", "goodput"):
        assert part in answer.out


LARGE = STEP.replace("(64, 128)", "(1 << 16, 1 << 17)").replace("(32, 64)", "(1 << 13, 1 << 16)")


@pytest.mark.compiles
@pytest.mark.skipif(not plugins.installed("gpu"), reason="the GPU plugin is not installed")
def test_what_makes_a_step_fit_on_the_devices_that_remain_is_compiled(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("step.py").write_text(LARGE.replace(", donate_argnums=(0, 1)", ""))
    asked = ("restart", "step.py:build", "--mesh", "data=2,tensor=2", "--target", "gpu:h100:1x4", "--store", "25GB/s")
    answer = lab(*asked, "--lose", "2", "--json", "--html", "page.html")
    (mesh,) = valid("restart", answer.out)["losses"][0]["meshes"]
    # In and out lie w and m, half of each on a device: 4 x 17.2 GB; donated they lie there once.
    state = 2 * (1 << 33) * 4 // 2
    (donated,) = mesh["levers"]
    assert answer.status == 0 and mesh["fits"] is False and mesh["peak"] >= 2 * state
    assert donated["change"] == "donated state" and donated["fits"] and state < donated["peak"] < mesh["peak"]
    page = Path("page.html").read_text()
    assert "a mesh remains after each loss" in page and "with a lever" in page


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (("--lose", "host"), "--lose host: target cpu:8 has none"),
        (("--lose", "8"), "--lose 8 devices: that is 8 of the 8 devices"),
        (("--mtbf", "soon"), "--mtbf soon: expected a time"),
        (("--set", "layers=2"), "--set layers=2: a parameter of experiments, and step.py:build is a program of yours"),
        (("--mesh", "data=4,tensor=4"), "mesh data=4,tensor=4 has 16 devices and target cpu:8 has 8"),
    ],
)
def test_what_cannot_be_lost_is_a_line(lab, step, more, line):
    assert_refused(lab(*ASKED, *more), line)


@long
@pytest.mark.compiles
@pytest.mark.parametrize(
    ("name", "losses", "store"),
    [
        ("ch34_llama3_405b", ("host", "rack", "1024"), "2TB/s"),
        ("ch35_deepseek_v3", ("host", "rack", "256"), "2TB/s"),
    ],
)
def test_every_mesh_that_remains_fits_or_has_a_lever_within_five_minutes(lab, name, losses, store):
    start = time.monotonic()
    answer = lab("restart", name, *(part for loss in losses for part in ("--lose", loss)), "--store", store, "--json")
    assert time.monotonic() - start < 300
    found = valid("restart", answer.out)
    assert answer.status == 0 and len(found["losses"]) == 3
    for loss in found["losses"]:
        kept = [mesh for mesh in loss["meshes"] if not mesh["refused"]]
        assert kept and all(mesh["peak"] and (mesh["fits"] or mesh["levers"]) for mesh in kept)


@long
@pytest.mark.compiles
@pytest.mark.skipif(not plugins.installed("gpu"), reason="the GPU plugin is not installed")
def test_what_lab_fit_tries_is_compiled_where_an_experiment_does_not_fit(lab):
    sizes = ("preset=llama3-8b", "layers=4", "batch=64", "remat=none")
    asked = [part for size in sizes for part in ("--set", size)]
    answer = lab(
        "restart", "ch24_hybrid", "--target", "gpu:h100:2x8", *asked, "--lose", "8", "--store", "25GB/s", "--json"
    )
    meshes = [mesh for mesh in valid("restart", answer.out)["losses"][0]["meshes"] if mesh["fits"] is False]
    assert meshes and all(mesh["levers"][-1]["fits"] for mesh in meshes)
