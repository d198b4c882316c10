"""The typed style: the same numbers and transfers as declared, what types refuse, and where they do not help."""

from collections import Counter
from dataclasses import replace

import jax
import pytest

from lab.compile.inspection import inspect_program
from lab.core.ledger import Kind, Ledger
from lab.harness import suite
from lab.harness.decoder.step import SMALL
from lab.harness.registry import load
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.programs.models.collective_hooks import CollectiveHooks
from lab.programs.strategies import program
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.fsdp_tensor import FSDP_TENSOR
from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.programs.strategies.strategy import RESIDUAL, STYLES, Strategy
from lab.programs.strategies.zero1 import ZERO1
from lab.settle import Verdict
from tests.long_tests import long, one_in
from tests.small_runs import small_run

pytestmark = pytest.mark.compiles

OUTSIDE_VERIFY = ["ch17_sequence_parallel", "ch17_ulysses", "ch24_hybrid", "ch24_llama3_405b"]
SEQUENCE = DATA_PARALLEL | SEQUENCE_PARALLEL
on_gpus = pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")


def ledger(strategy: Strategy, style: str, mesh: str, target: str = "cpu:8") -> Ledger:
    devices = make_mesh(parse_target(target), Axes.parse(mesh))
    function, args = program.step(strategy, style, SMALL, devices)
    return inspect_program(function.lower(*args).compile(), (), devices, parse_target(target), source=style)


def transfers(of: Ledger) -> Counter:
    counts = Counter()
    for t in of.split().transfers:
        counts[t.kind, t.axes, t.dtype, t.payload_bytes] += t.executions
    return counts


def test_what_stands_among_the_more_styles_of_an_experiment_is_not_among_its_styles():
    assert {load(name).styles for name in OUTSIDE_VERIFY} == {("declared", "explicit")}
    assert [(run.experiment.name, run.style) for run in suite.in_more_styles(map(load, OUTSIDE_VERIFY[2:]))] == [
        ("ch24_hybrid", "typed"),
        ("ch24_hybrid", "typed"),
        ("ch24_llama3_405b", "typed"),
    ]


@pytest.mark.parametrize("name", one_in(2, ["ch14_data_parallel", "ch24_fsdp_tensor_parallel", *OUTSIDE_VERIFY]))
def test_typed_steps_compute_and_send_on_8_devices_what_theory_says(name):
    result = small_run(load(name), "typed", parameters=SMALL)
    assert result.numerics.worst_relative_error <= result.numerics.tolerance
    assert result.verdict in (Verdict.EXACT, Verdict.EXPLAINED, Verdict.ATTRIBUTED)
    assert not [claim for claim in result.claims if claim.is_undisputed_refutation]


@on_gpus
def test_typed_fsdp_with_tensors_moves_what_declared_does():
    typed, declared = (
        transfers(ledger(FSDP_TENSOR, style, "fsdp=2,tensor=4", "gpu:h100:1x8")) for style in ("typed", "declared")
    )
    assert typed == declared and sum(typed.values()) > 50


def test_a_product_over_a_split_dim_is_refused_until_its_result_has_a_type(monkeypatch):
    monkeypatch.setattr(program, "types", lambda placed: CollectiveHooks(lookup=program.constraints(placed).lookup))
    with pytest.raises(Exception, match="out_sharding") as refused:
        ledger(FSDP_TENSOR, "typed", "fsdp=2,tensor=4")
    assert type(refused.value).__name__ == "ShardingTypeError"


def test_a_lookup_typed_straight_into_a_split_sequence_gathers_the_table(monkeypatch):
    def straight(placed: program.PlacedStrategy) -> CollectiveHooks:
        split = placed.spec(placed.strategy.residual, *RESIDUAL)
        return replace(
            in_two_steps(placed),
            lookup=lambda table_VD, row_BS: table_VD.at[row_BS].get(mode="clip", out_sharding=split),
        )

    in_two_steps, table = program.types, (Kind.ALL_GATHER, ("tensor",), "f32", 4 * SMALL.vocab * SMALL.embed)
    assert table not in transfers(ledger(SEQUENCE, "typed", "data=2,tensor=4"))
    monkeypatch.setattr(program, "types", straight)
    assert table in transfers(ledger(SEQUENCE, "typed", "data=2,tensor=4"))


@long
@on_gpus
def test_a_typed_gradient_is_whole_before_zero1_scatters_it_and_a_declared_one_is_not():
    every_style = replace(ZERO1, styles=STYLES)

    def scattered(style: str) -> int:
        return sum(
            n
            for (kind, *_), n in transfers(ledger(every_style, style, "data=8", "gpu:h100:1x8")).items()
            if kind is Kind.REDUCE_SCATTER
        )

    assert scattered("typed") < scattered("declared")


def test_arrays_carry_their_split_in_their_types():
    devices = make_mesh(parse_target("cpu:8"), Axes.parse("data=2,tensor=4"))
    _, (state, *_) = program.step(SEQUENCE, "typed", SMALL, devices)
    assert set(state.master["embedding"].get_value().sharding.mesh.axis_types) == {jax.sharding.AxisType.Explicit}
