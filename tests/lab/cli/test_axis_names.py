"""JAX takes any text for the name of an axis, and so does the lab."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import lab as sharding_lab
from lab.compile.sources import saved_ledger
from lab.guard import snapshot
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError

pytestmark = pytest.mark.compiles


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return sharding_lab.mesh("cpu:8", **{"my-axis": 4, "data.parallel": 2})


@pytest.fixture(scope="module")
def compiled(mesh):
    x = jax.ShapeDtypeStruct((64, 8), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("my-axis")))
    return jax.jit(lambda x: x.sum(0)).lower(x).compile()


def test_an_axis_with_a_hyphen_is_inspected_budgeted_saved_and_shown(lab, mesh, compiled, tmp_path):
    budget = [sharding_lab.allow("all_reduce", "my-axis", executions=1)]
    found = sharding_lab.assert_communication(compiled, mesh=mesh, budget=budget)
    (tmp_path / "step.hlo").write_text(compiled.as_text())
    options = ["step.hlo", "--mesh", "my-axis=4,data.parallel=2", "--html", "page.html"]
    answer = lab("inspect", *options, "--json")
    (tmp_path / "saved.json").write_text(answer.out)
    assert json.loads(answer.out)["totals"]["by_axes"] == found.to_json()["totals"]["by_axes"]
    assert set(json.loads(answer.out)["totals"]["by_axes"]) == {"my-axis"}
    assert saved_ledger(str(tmp_path / "saved.json")).mesh == {"my-axis": 4, "data.parallel": 2}
    assert "my-axis" in (tmp_path / "page.html").read_text()
    snapshot.write(found, tmp_path / "snapshot.toml")
    assert snapshot.compared(found, tmp_path / "snapshot.toml") is None


@pytest.mark.parametrize("name", ["a b", "a=b", "a,b", "a+b", "a[2 of 4]", "?", "", "a\x1b[2J", 3])
def test_a_name_that_text_about_axes_cannot_hold_is_refused(name):
    with pytest.raises(UsageError, match="axis name .*rename it"):
        Axes((name,), (4,))
