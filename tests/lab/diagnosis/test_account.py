"""Advice that takes an edit names the value, the PartitionSpec and the line, and what is calculated for it is what the
edited program, written by hand, sends and computes."""

import json
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from markupsafe import escape

from lab import diagnosis
from lab.compile import inspection
from lab.core import codec
from lab.diagnosis.account import Edit, by_way
from lab.diagnosis.finding import Finding
from lab.diagnosis.proof import TAKES_AN_EDIT, Measured, Trial, proven
from lab.diagnosis.remedy import Donate, Sums
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.report.diagnosis import edit_text, finding_text, proof_text
from lab.report.html import reports
from tests.cases.compiling import ahead_of_time_gpu, ahead_of_time_tpu, array, cpu, mesh_on
from tests.lab.diagnosis.diagnosing import diagnosed, only
from tests.lab.diagnosis.edits import EDITS, rows_of_other_devices
from tests.lab.diagnosis.test_proof import example, read, sums

PARTS = {
    "permuted_by_gather": ("x f32[1024,256] P('data', None)", "in_specs P('data', None) of x in jax.shard_map", 16),
    "reduced_in_loop": (
        "the gradient of w f32[256,256] P()",
        "in_specs P() of w and P(None, 'data', None) of micro_batches in jax.shard_map",
        10,
    ),
    "summed_apart": (
        "the gradient of table f32[1024,64] P()",
        "in_specs P() of table, P('data') of tokens and P('data', None) of target in jax.shard_map",
        13,
    ),
    "summed_before_product": (
        "the result of gather, made of pages f32[128,16,64] P('data', None, None)",
        "in_specs P('data', None, None) of pages in jax.shard_map",
        11,
    ),
    "last_message_unused": ("k f32[256,32] P('data', None)", "", 16),
    "summed_every_round": ("x f32[256,512] P(None, 'data')", "in_specs P(None, 'data') of x in jax.shard_map", 13),
    "condition_reduced": ("the result of reduce_max, made of x f32[1024,64] P('data', None)", "", 12),
    "summed_across_calls": (
        "total f32[256,256] P()",
        "in_shardings and out_shardings P('data') of total, with a first dim of 8",
        10,
    ),
    "last_stage_broadcast": (
        "the result of squeeze, made of ws f32[4,64,64] P('pipe', None, None)",
        "P('pipe') of the outputs of all stages [stages, ..], in a constraint or as out_specs",
        16,
    ),
    "experts_gathered": (
        "the tokens of w f32[8,64,128] P('expert', None, None)",
        "P('expert') of the dispatched tokens [groups, experts, ..], then P(None, 'expert')",
        14 if jax.__version_info__ >= (0, 11) else 15,  # Newer XLA names a gather after what it moves.
    ),
    "kept_whole": ("ws[1] f32[256,256] P('fsdp', None) and ws[2] f32[256,256] P('fsdp', None)", "", 11),
    "donation_unused": ("state f32[1024,64] P('data', None)", "dtype f32 of result bf16[128,64]", 10),
    "collected_anew": ("cache f32[4,1024,16,64] P(None, None, 'tensor', None)", "", 11),
    "offload_undone": ("the values named result", "", 21),
    "moved_to_reshape": (
        "the result of dot_general, made of w f32[256,512] P(None, 'tensor')",
        "P(None, None, 'tensor') of w, its parts along dim 1, or P(None, 'tensor') of each alone",
        10,
    ),
}


@cache
def untried(kind):
    """Its finding, of the example, with the diagnosis; nothing is compiled again, as nothing can be tried."""
    target, axes, build = example(kind)
    place = parse_target(target)
    if not plugins.installed(place.platform):
        pytest.skip(f"the {place.platform} plugin is not installed")
    mesh = make_mesh(place, Axes.parse(axes))
    found = diagnosis.of(read(build(mesh), mesh, place), prove=True)
    return found, found.findings[0], mesh, place


@pytest.mark.compiles
@pytest.mark.parametrize("kind", PARTS)
def test_advice_that_takes_an_edit_names_the_value_the_spec_and_the_line(kind):
    found, finding, _, _ = untried(kind)
    value, write, line = PARTS[kind]
    assert (finding.kind, finding.proof.not_tried) == (kind, TAKES_AN_EDIT)
    assert finding.edit == Edit(value, write, f"lab/diagnosis/examples/{kind}.py:{line}")
    # Text, JSON and page agree.
    told = [edit_text(finding), proof_text(finding)]
    assert told[0] == f"edit: {finding.edit.text}" and all(each in finding_text(1, finding) for each in told)
    account = finding.account.text
    comes_to = f"by calculation {account}" if account else "what it spares is not calculated"
    assert told[1] == f"not tried: {TAKES_AN_EDIT}; {comes_to}"
    page = reports.findings(found)
    assert all(f"{each[0].upper()}{escape(each[1:])}" in page for each in told)
    json_text = json.loads(codec.to_text(finding.json_object()))
    assert json_text["edit"] == codec.to_json(finding.edit) and json_text["account"] == codec.to_json(finding.account)


@pytest.mark.compiles
@pytest.mark.parametrize("kind", EDITS)
def test_what_is_calculated_for_an_edit_is_what_the_edited_program_sends_and_multiplies(kind):
    found, finding, mesh, place = untried(kind)
    account, better = finding.account, read(EDITS[kind](mesh), mesh, place)
    sent = {way: size for way, size in by_way(better.ledger.transfers).items() if size}
    calculated = {(row.axes, row.link): row.after for row in account.sent if row.after}
    (_, flops, memory), (_, more_flops, more_memory) = sums(found), sums(better)
    if account.at_most:
        assert all(0 < size <= calculated[way] for way, size in sent.items())
        assert 0 < more_flops - flops <= account.flops and memory - more_memory <= -account.memory
    else:
        assert (calculated, account.flops) == (sent, (more_flops or 0) - (flops or 0))
    if kind in ("donation_unused", "collected_anew"):
        # Copies of a layer may go as well.
        assert more_memory - memory <= account.memory + 64 < 64


@pytest.mark.compiles
def test_what_is_not_known_of_an_edit_is_a_bound():
    permuted, asked, picked = (
        untried(kind)[1] for kind in ("permuted_by_gather", "condition_reduced", "experts_gathered")
    )
    (row,) = permuted.account.sent
    assert 0 < rows_of_other_devices() <= row.after and permuted.account.at_most and permuted.cost.at_least
    assert "917,504 B -> at most 131,072 B sent over data inside hosts" in proof_text(permuted)
    assert "7 B -> at most as much sent each time over data inside hosts" in proof_text(asked)
    assert [each.after for each in picked.account.sent] == [None] and picked.cost.at_most


def test_findings_whose_remedy_saves_nothing_stand_behind_those_with_advice():
    def finding(kind):
        return Finding(kind, "It holds 10 B.", "give it up", memory_bytes=10, remedy=(Donate((kind,)),))

    def attempt(remedy):
        return Measured(Sums(memory=90 if remedy == (Donate(("saves",)),) else 100), {})

    trial = Trial(Measured(Sums(memory=100), {}), 0.0, None)
    first, last = proven([finding("in_vain"), finding("saves")], trial, attempt)
    assert (first.kind, last.kind, last.is_in_vain) == ("saves", "in_vain", True)
    assert last.advice.startswith("a change was tried, and saved nothing with this compiler: 1 argument donated: 100 B")
    assert "try: " not in finding_text(2, last) and "try: give it up" in finding_text(1, first)


def summed_by_blocks(x):
    own = jnp.cumsum(x, axis=1)
    totals = jax.lax.all_gather(own[:, -1], "data")
    before = jnp.arange(len(totals)) < jax.lax.axis_index("data")
    return own + jnp.sum(jnp.where(before[:, None], totals, 0), axis=0)[:, None]


def best_of_the_best(x):
    values, places = jax.lax.top_k(x, 4)
    both = (values, places + jax.lax.axis_index("data") * x.shape[1])
    values, places = (jax.lax.all_gather(each, "data", axis=1, tiled=True) for each in both)
    best, at = jax.lax.top_k(values, 4)
    return best, jnp.take_along_axis(places, at, axis=1)


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("operation", "better", "out"),
    [
        (lambda x: jnp.cumsum(x, axis=1), summed_by_blocks, P(None, "data")),
        (lambda x: jax.lax.top_k(x, 4), best_of_the_best, P()),
    ],
    ids=["cumsum", "top_k"],
)
def test_along_a_split_dim_blocks_or_two_stages_send_what_is_calculated(operation, better, out):
    mesh = cpu(data=8)
    x = array(mesh, (4, 8192), None, "data")
    account = only(diagnosed(mesh, operation, x, out=out)).account
    mapped = jax.shard_map(better, mesh=mesh, in_specs=P(None, "data"), out_specs=out, check_vma=False)
    sent = by_way(inspection.read_program(jax.jit(mapped), (x,), mesh, None, source="better").ledger.transfers)
    assert {(row.axes, row.link): row.after for row in account.sent if row.after} == sent


def parts_of_two_products(x, w, v):
    first, second = jnp.split((x @ w) @ v, 2, axis=-1)
    return first * second


@pytest.mark.compiles
def test_no_weight_is_named_where_either_of_two_may_be_meant():
    mesh = cpu(tensor=4, other=2)
    w, v = array(mesh, (128, 512), None, "tensor"), array(mesh, (512, 1024), None, "tensor")
    found = diagnosed(mesh, parts_of_two_products, array(mesh, (64, 128)), w, v).findings
    edit = next(finding.edit for finding in found if finding.kind == "moved_to_reshape")
    assert (edit.value, edit.write) == ("the result of dot_general", "")


@pytest.mark.compiles
@pytest.mark.parametrize(
    "target",
    [pytest.param("gpu:h100:1x8", marks=ahead_of_time_gpu), pytest.param("tpu:v5e:2x4", marks=ahead_of_time_tpu)],
)
def test_a_split_and_its_gradient_are_as_many_bytes_as_the_program_with_parts_of_their_own_spares(target):
    """XLA takes the gradient apart and together again: what it moves last is named after what it moves."""
    mesh = mesh_on(target, data=2, tensor=4)

    def gradient(has_parts):
        def loss(w, x):
            parts = jnp.unstack(jnp.einsum("bd,dpf->bpf", x, w), axis=1) if has_parts else jnp.split(x @ w, 2, axis=1)
            return jnp.sum((jax.nn.silu(parts[0]) * parts[1]) ** 2)

        return jax.grad(loss)

    x, split = array(mesh, (64, 64), "data"), (None, "tensor")
    w, parts = array(mesh, (64, 256), *split), array(mesh, (64, 2, 128), None, *split)
    told = only(diagnosed(mesh, gradient(False), w, x, out=P(*split), target=target))
    better = diagnosed(mesh, gradient(True), parts, x, out=P(None, *split), target=target)
    assert told.kind == "moved_to_reshape"
    calculated = {(row.axes, row.link): row.after for row in told.account.sent if row.after}
    assert calculated == by_way(better.ledger.transfers)
