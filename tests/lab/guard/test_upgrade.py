"""A program beside what another release made of it: here this release, with a flag whose default the other had."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lab.compile.inspection import read_program
from lab.compile.xla_flags import Flag
from lab.guard.differences import About
from lab.guard.upgrade import Compiled, under_flags, under_release
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target

pytestmark = pytest.mark.compiles
PASSES = "xla_disable_hlo_passes"


@pytest.fixture(scope="module")
def program():
    mesh = make_mesh(parse_target("cpu:8"), Axes.of({"data": 8}))
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    x_BD = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=rows)
    w_DD = jax.ShapeDtypeStruct((16, 16), jnp.float32, sharding=whole)
    step = jax.jit(jax.grad(lambda w, x: jnp.sum(x @ w @ w)), out_shardings=whole)
    return read_program(step, (w_DD, x_BD), mesh, None, source="step")


@pytest.fixture(scope="module")
def before(program):
    """As a release would have it in which the simplifier of algebra were off by default."""
    other = under_flags(program, {PASSES: "algsimp"}).after
    return replace(other, release="0.0", flags={}, defaults=dict(other.defaults) | {PASSES: Flag("algsimp", "")})


def test_a_default_that_another_release_had_is_named_where_setting_it_back_undoes_the_difference(program, before):
    found = under_release(program, before, {})
    assert found.is_set_back and found.tried == {PASSES: "algsimp"}
    assert {each.about for each in found.differences} >= {About.FLOPS}
    assert set(found.flags) == {((f"{PASSES}=algsimp",),)}


def test_a_difference_that_no_default_undoes_is_given_to_none(program, before):
    found = under_release(program, replace(before, defaults=Compiled.of(program, {}).defaults), {})
    assert found.differences and set(found.flags) == {()} and found.tried == {}


def test_a_given_flag_is_left_out_to_see_what_it_makes(program):
    found = under_release(program, Compiled.of(program, {}), {PASSES: "algsimp"})
    assert found.differences and set(found.flags) == {((f"{PASSES}=algsimp",),)}


def test_without_trials_differences_are_told_all_the_same(program, before):
    found = under_release(program, before, {}, is_tried=False)
    assert (
        found.differences and set(found.flags) == {()} and found.after.sites.ledger.flops != before.sites.ledger.flops
    )
