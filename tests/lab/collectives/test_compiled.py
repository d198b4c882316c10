"""Ahead of time for GPUs and TPUs: every algorithm sends what it states, and holds no more than it states."""

from collections import Counter
from dataclasses import replace

import jax.numpy as jnp
import pytest

from lab.collectives import ALGORITHMS
from lab.core.ledger import Kind
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from tests.lab.collectives.sweep import Case, Rows, cases, compiled, rows, shown, stated
from tests.long_tests import long

pytestmark = pytest.mark.compiles

gpu = pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
tpu = pytest.mark.skipif(not plugins.installed("tpu"), reason="libtpu is not installed: nothing compiles for TPUs")
FOUR, TWO_BY_TWO = Axes.parse("data=4"), Axes.parse("data=2,tensor=2")


AT_ONCE = 5
"""Kernels of a program: the compilers for TPUs take longer for one of many than for many of few."""


def compiled_rows(target: str, axes: Axes, swept: list[Case]) -> Rows:
    to, some = parse_target(target), [swept[i : i + AT_ONCE] for i in range(0, len(swept), AT_ONCE)]
    return sum((shown(compiled(make_mesh(to, axes), few).as_text(), axes, target=to) for few in some), Counter())


def by_axes(axes: Axes) -> list[Case]:
    """The algorithms that take several axes one by one."""
    return cases(axes, lambda primitive, name: ALGORITHMS[primitive][name].misfit(FOUR) is not None)


@gpu
@pytest.mark.parametrize("ranks", [3, 8, *(pytest.param(ranks, marks=long) for ranks in (2, 5, 16))])
def test_gpus_send_what_every_algorithm_states_over_one_axis_of(ranks):
    axes = Axes(("data",), (ranks,))
    assert compiled_rows(f"gpu:h100:1x{ranks}", axes, cases(axes)) == stated(cases(axes))


@gpu
def test_2_hosts_of_6_gpus_send_what_algorithms_by_axes_state():
    axes = Axes(("data", "fsdp", "tensor"), (2, 2, 3))
    assert compiled_rows("gpu:h100:2x6", axes, by_axes(axes)) == stated(by_axes(axes))


@tpu
@pytest.mark.parametrize(("target", "ranks"), [("tpu:v5e:2x4", 8), pytest.param("tpu:v5p:2x2x4", 16, marks=long)])
def test_a_slice_of_tpus_sends_what_every_algorithm_states_but_reduces_all_to_scatter_it(target, ranks):
    axes = Axes(("data",), (ranks,))
    assert compiled_rows(target, axes, cases(axes)) == as_tpus_do(stated(cases(axes)))


@tpu
@pytest.mark.parametrize(("target", "ranks"), [pytest.param("tpu:v5p:2x2x1", 2, marks=long), ("tpu:v5p:2x2x3", 3)])
def test_tpus_do_so_over_one_axis_of_two_of(target, ranks):
    """A slice is a multiple of the 2 x 2 chips of a host, so these numbers can be had as one axis of a mesh alone."""
    swept = cases(Axes(("tensor",), (ranks,)))
    mesh = Axes(("data", "tensor"), (parse_target(target).devices // ranks, ranks))
    assert compiled_rows(target, mesh, swept) == as_tpus_do(stated(swept))


@tpu
def test_2_by_4_tpus_send_what_algorithms_by_axes_state():
    axes = Axes(("data", "tensor"), (2, 4))
    assert compiled_rows("tpu:v5e:2x4", axes, by_axes(axes)) == stated(by_axes(axes))


def as_tpus_do(said: Rows) -> Rows:
    """A reduce_scatter of arrays this small is emitted as an all_reduce whose result is sliced."""
    changed: Rows = Counter()
    for (kind, axes, payload), executions in said.items():
        changed[Kind.ALL_REDUCE if kind is Kind.REDUCE_SCATTER else kind, axes, payload] += executions
    return changed


ROWS = 4096


@gpu
@pytest.mark.parametrize(
    "case", [*cases(FOUR), *by_axes(TWO_BY_TWO)], ids=lambda case: f"{case.primitive}-{case.algorithm}"
)
def test_4_gpus_send_and_hold_what_is_stated(case):
    case, target = replace(case, width=64), parse_target("gpu:h100:1x4")
    per_rank = ROWS // case.axes.size if case.primitive in ("all_gather", "gather") else ROWS
    ready = compiled(make_mesh(target, case.axes), [case], jnp.float32, per_rank)
    assert shown(ready.as_text(), case.axes, target=target) == rows(case.cost(per_rank).ledger(case.axes, "f32"))
    workspace_bytes = 4 * case.width * ALGORITHMS[case.primitive][case.algorithm].workspace_elements(case.axes, ROWS)
    alignment = 256 * (case.cost(per_rank).messages + 8)
    assert ready.memory_analysis().temp_size_in_bytes <= workspace_bytes + alignment
