"""Claims of composed steps, asked of ledgers written by hand or predicted."""

import pytest

from lab.core.ledger import Kind, Ledger, SubAxis, Transfer
from lab.harness.claim import Claim, ClaimVerdict
from lab.harness.decoder.composed import ComposedShape, computed, configuration
from lab.harness.decoder.composed_claims import composed_claims
from lab.harness.registry import load
from lab.meshes.axes import DATA, Axes
from lab.programs.composed.step import predict

SMALL = ComposedShape(
    layers=4, batch=8, length=64, embed=64, kv_heads=4, queries=2, head_dim=16, mlp=96, vocab=256, accumulation=2
)


def claimed(name: str, shape: ComposedShape, mesh: str, measured: Ledger) -> Claim:
    return next(claim for claim in composed_claims(shape, Axes.parse(mesh), measured) if claim.id == name)


@pytest.mark.parametrize(("more", "verdict"), [(0, ClaimVerdict.CONFIRMED), (1, ClaimVerdict.REFUTED)])
def test_a_first_stage_without_layers_computes_nothing(more, verdict):
    shape, mesh = SMALL.choosing(stage_layers="E|t*4L"), "data=2,pipe=2,tensor=2"
    theory = computed(shape, Axes.parse(mesh), None)
    assert theory.by_stages[0] == 0 < theory.by_stages[1]
    every = int(theory.every_branch)
    measured = Ledger((), flops=every + more, flops_in_branches={"forward/head": every})
    found = claimed("ch32.flops_per_token", shape, mesh, measured)
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("mesh", "target", "link", "said"),
    [
        (
            "data=4,pipe=2,tensor=3",
            "gpu:h100:3x8",
            "network",
            "stride 1 and spans up to 2 hosts of 8; the slowest link",
        ),
        ("data=2,pipe=2,tensor=4", "gpu:h100:2x8", "host", "stride 1 and stays inside a host of 8; the slowest link"),
        ("tensor=4,data=4", "gpu:h100:2x8", "network", "stride 4 and spans up to 2 hosts of 8; the slowest link"),
    ],
)
def test_of_groups_along_tensor_the_one_over_most_hosts_decides(mesh, target, link, said):
    """Of 3 devices each, {6, 7, 8} and {15, 16, 17} lie in two hosts."""
    shape = SMALL.choosing(embed=96, kv_heads=12, mlp=96, vocab=384, length=96)
    other = {"host": "network", "network": "host"}[link]
    for compiled, verdict in ((link, ClaimVerdict.CONFIRMED), (other, ClaimVerdict.REFUTED)):
        sums = Transfer(Kind.ALL_REDUCE, ("tensor",), Axes.parse(mesh)["tensor"], 1, "bf16", 96, link=compiled)
        found = claimed("ch25.mesh_4d5d", shape, mesh, Ledger((sums,), mesh=Axes.parse(mesh).shape, target=target))
        where = {"host": "inside a host", "network": "between hosts"}[compiled]
        assert found.verdict == verdict and said in found.evidence and found.evidence.endswith(f"is {where}")


def test_gradients_summed_over_parts_of_data_leave_their_volume_undecided():
    """As between slices of TPUs: whole, the predicted sums confirm it."""
    shape, mesh = SMALL.choosing(accumulation=1, dtype="f32"), "data=4,pipe=2,tensor=2"
    whole = predict(configuration(shape, Axes.parse(mesh)), shape)
    assert claimed("ch24.comm_per_axis", shape, mesh, whole).verdict == ClaimVerdict.CONFIRMED
    inside, between = (
        Transfer(kind, None, 2, 1, "f32", 96, sub_axes=(SubAxis("data", 4, stride, 2),))
        for kind, stride in ((Kind.REDUCE_SCATTER, 1), (Kind.SEND_RECV, 2))
    )
    found = claimed("ch24.comm_per_axis", shape, mesh, Ledger((inside, between)))
    assert found.verdict == ClaimVerdict.CALCULATED and "in transfers that do not tell" in found.evidence
    # Without any the claim stays refuted.
    assert claimed("ch24.comm_per_axis", shape, mesh, Ledger(())).verdict == ClaimVerdict.REFUTED


def test_gradients_are_summed_once_a_step_and_what_layers_send_is_not():
    experiment, axes = load("ch24_3d"), Axes.parse("data=2,pipe=2,tensor=2")
    once = experiment.composition(SMALL, axes, None).once_a_step
    more = predict(configuration(SMALL.choosing(accumulation=4), axes), SMALL.choosing(accumulation=4))
    assert all(t.executions == 1 and DATA in t.axes for t in once if t.scope.startswith("layers/"))
    assert {t.scope for t in once} >= {"layers/mlp/up", "embedding", "clip"}
    assert {t.scope for t in more.transfers} - {t.scope for t in once} >= {"forth", "back"}
    assert not any(t.conditional for t in once)
