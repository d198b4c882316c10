"""Advice that takes an edit names the value, the PartitionSpec and the line, and what is calculated for it is what the
edited program, written by hand, sends and computes."""

import json
from functools import cache

import pytest
from markupsafe import escape

from lab import diagnosis
from lab.core import codec
from lab.diagnosis.account import Edit, by_way
from lab.diagnosis.proof import TAKES_AN_EDIT
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.report.diagnosis import edit_text, finding_text, proof_text
from lab.report.html import reports
from tests.lab.diagnosis.edits import EDITS, rows_of_other_devices
from tests.lab.diagnosis.test_proof import example, read

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
        "the result of dot_general, made of w f32[8,64,128] P('expert', None, None)",
        "P('expert') of the dispatched tokens [groups, experts, ..], then P(None, 'expert')",
        15,
    ),
    "kept_whole": ("ws[1] f32[256,256] P('fsdp', None) and ws[2] f32[256,256] P('fsdp', None)", "", 11),
    "moved_to_reshape": (
        "the result of dot_general, made of w f32[256,512] P(None, 'tensor')",
        "P(None, None, 'tensor') of w, its parts along dim 1",
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
    assert told[1] == f"not tried: {TAKES_AN_EDIT}; by calculation {finding.account.text}"
    page = reports.findings(found)
    assert all(f"{each[0].upper()}{escape(each[1:])}" in page for each in told)
    json_text = json.loads(codec.to_text(finding.json_object()))
    assert json_text["edit"] == codec.to_json(finding.edit) and json_text["account"] == codec.to_json(finding.account)


@pytest.mark.compiles
@pytest.mark.parametrize("kind", EDITS)
def test_what_is_calculated_for_an_edit_is_what_the_edited_program_sends_and_multiplies(kind):
    found, finding, mesh, place = untried(kind)
    better = read(EDITS[kind](mesh), mesh, place).ledger
    sent = {way: size for way, size in by_way(better.transfers).items() if size}
    calculated = {(row.axes, row.link): row.after for row in finding.account.sent if row.after}
    more = better.flops - found.ledger.flops if better.flops else 0
    if finding.account.at_most:
        assert all(0 < size <= calculated[way] for way, size in sent.items()) and 0 < more <= finding.account.flops
    else:
        assert (calculated, finding.account.flops) == (sent, more)


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
