"""Which branches each stage takes: what the traced step does, against what `taken` says of it."""

from dataclasses import replace

import pytest

from lab.core.ledger import Kind, Ledger, Transfer
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.programs.pipelines import program
from lab.programs.pipelines.program import PipelineShape
from lab.programs.pipelines.taken import computed_by_stages, sent_by_stages
from lab.programs.strategies.context_parallel import RING
from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL
from tests.lab.programs.pipelines.every_rank import UNKNOWN, Site, Walk
from tests.long_tests import long

SHAPE = PipelineShape(
    layers=7,
    batch=16,
    length=16,
    embed=24,
    kv_heads=4,
    head_dim=6,
    mlp=40,
    vocab=48,
    dtype="f32",
    remat="none",
    accumulation=4,
    experts=4,
    dense_layers=2,
    mtp=1,
    stage_layers="Et*3|t*4mL",
)
CASES = {
    "1f1b": (SEQUENCE_PARALLEL, {}),
    "interleaved": (SEQUENCE_PARALLEL, {"chunks": 2, "stage_layers": "Ett|tt|t|ttmL"}),
    "zb_h1": (SEQUENCE_PARALLEL, {"remat": "full"}),
    "gpipe": (RING, {"layers": 5, "mtp": 0, "stage_layers": "Et*3|ttL"}),
}


@pytest.mark.compiles
@pytest.mark.parametrize(
    "schedule", ["interleaved", "zb_h1", pytest.param("1f1b", marks=long), pytest.param("gpipe", marks=long)]
)
def test_each_stage_computes_and_sends_in_the_branches_that_it_takes(schedule):
    strategy, sizes = CASES[schedule]
    shape = replace(SHAPE, schedule=schedule, **sizes)
    axes = Axes.parse("pipe=2,context=4" if strategy is RING else "pipe=2,tensor=4")
    function, args = program.step(strategy, shape, make_mesh(parse_target("cpu:8"), axes))
    traced = function.trace(*args).jaxpr

    def executions(place: dict[str, int] | None):
        walk = Walk(place)
        walk.run(traced, [UNKNOWN] * len(traced.jaxpr.invars))
        return walk.executions

    by_stage = [executions(dict.fromkeys(axes.names, 0) | {"pipe": stage}) for stage in range(2)]

    def said(site: Site, most: int):
        if site.primitive != "dot_general":
            sent = Transfer(Kind.ALL_GATHER, None, 4, most, "f32", 1, conditional=True, scope=site.scope)
            each = sent.wire_bytes
            ledger = Ledger((sent,), devices=8, mesh=axes.shape)
            return tuple(n / each for n in sent_by_stages(strategy, shape, axes, ledger))
        n = most * site.amount
        ledger = Ledger((), devices=8, mesh=axes.shape, flops=n, flops_in_branches={site.scope: n})
        return tuple(n / site.amount for n in computed_by_stages(strategy, shape, axes, ledger))

    in_branches = {site: most for site, most in executions(None).items() if site.conditional}
    assert {site.scope.partition("/")[2] for site in in_branches} >= {"dense/mlp/up", "layers/mlp/up", "head"}
    for site, most in in_branches.items():
        assert tuple(done[site] for done in by_stage) == said(site, most), site
