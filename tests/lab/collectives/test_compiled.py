"""Ahead of time for GPUs and TPUs: every algorithm sends what it states, and holds no more than it states."""

from collections import Counter

import jax.numpy as jnp
import pytest

from lab.collectives import ALGORITHMS
from lab.ledger import Kind
from meshes import plugins
from meshes.axes import Axes
from meshes.targets import make_mesh, parse_target
from tests.lab.collectives.sweep import Case, Rows, cases, compiled, rows, shown, stated

gpu = pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
tpu = pytest.mark.skipif(not plugins.installed("tpu"), reason="libtpu is not installed: nothing compiles for TPUs")
SEVERAL = ("hierarchical", "ring_tree", "torus")


def compiled_rows(target: str, axes: Axes, swept: list[Case]) -> Rows:
    to = parse_target(target)
    return shown(compiled(make_mesh(to, axes), swept).as_text(), axes, target=to)


@gpu
@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 16])
def test_gpus_send_what_every_algorithm_states_over_one_axis_of(ranks):
    axes = Axes(("data",), (ranks,))
    assert compiled_rows(f"gpu:h100:1x{ranks}", axes, cases(axes)) == stated(cases(axes))


@gpu
def test_2_hosts_of_6_gpus_send_what_algorithms_by_axes_state():
    axes = Axes(("data", "fsdp", "tensor"), (2, 2, 3))
    swept = cases(axes, lambda _, algorithm: algorithm in SEVERAL)
    assert compiled_rows("gpu:h100:2x6", axes, swept) == stated(swept)


@tpu
def test_8_tpus_send_what_every_algorithm_states_but_scatter_all_they_reduce():
    axes = Axes(("data", "tensor"), (2, 4))
    assert compiled_rows("tpu:v5e:2x4", axes, cases(axes)) == as_tpus_do(stated(cases(axes)))


def as_tpus_do(said: Rows) -> Rows:
    """A reduce_scatter over the whole slice is emitted as an all_reduce whose result is sliced."""
    changed: Rows = Counter()
    for (kind, axes, payload), executions in said.items():
        changed[Kind.ALL_REDUCE if kind is Kind.REDUCE_SCATTER else kind, axes, payload] += executions
    return changed


ROWS = 4096
OF_RANKS = [(p, name) for p, known in ALGORITHMS.items() for name in known if name not in SEVERAL and p != "barrier"]


@gpu
@pytest.mark.parametrize(("primitive", "algorithm"), OF_RANKS)
def test_4_gpus_send_and_hold_what_is_stated(primitive, algorithm):
    assert_sends_and_holds(Axes(("data",), (4,)), primitive, algorithm)


@gpu
@pytest.mark.parametrize("algorithm", SEVERAL)
def test_2_by_2_gpus_send_and_hold_what_is_stated(algorithm):
    assert_sends_and_holds(Axes(("data", "tensor"), (2, 2)), "all_reduce", algorithm)


def assert_sends_and_holds(axes: Axes, primitive: str, algorithm: str) -> None:
    case, target = Case(primitive, algorithm, axes, width=64), parse_target("gpu:h100:1x4")
    per_rank = ROWS // axes.size if primitive in ("all_gather", "gather") else ROWS
    ready = compiled(make_mesh(target, axes), [case], jnp.float32, per_rank)
    assert shown(ready.as_text(), axes, target=target) == rows(case.cost(per_rank).ledger(axes, "f32"))
    workspace_bytes = 4 * case.width * ALGORITHMS[primitive][algorithm].workspace_elements(axes, ROWS)
    alignment = 256 * (case.cost(per_rank).messages + 8)
    assert ready.memory_analysis().temp_size_in_bytes <= workspace_bytes + alignment
