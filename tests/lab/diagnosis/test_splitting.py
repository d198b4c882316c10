"""What a split of repeated products would send, in texts of compilers."""

import pytest

from lab import diagnosis
from lab.diagnosis.program import Program
from lab.hlo.read import read
from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target

AXES = Axes.parse("data=2,tensor=4")
TEXT = """HloModule step, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

ENTRY %main (x: f32[1024,1024], w: f32[1024,1024], other: {other}) -> (f32[1024,1024], {other}) {{
  %x = f32[1024,1024]{{1,0}} parameter(0), sharding={{devices=[2,1,4]<=[8] last_tile_dim_replicate}}
  %w = f32[1024,1024]{{1,0}} parameter(1), sharding={{replicated}}
  %other = {other} parameter(2)
  %dot = f32[1024,1024]{{1,0}} dot(%x, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %sums = (f32[1024,1024]{{1,0}}, {other}) all-reduce(%dot, %other), channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true, to_apply=%add
  %whole = f32[1024,1024]{{1,0}} get-tuple-element(%sums), index=0
  %part = {other} get-tuple-element(%sums), index=1
  %twice = {other} multiply(%part, %part)
  ROOT %out = (f32[1024,1024]{{1,0}}, {other}) tuple(%whole, %twice)
}}
"""


@pytest.mark.parametrize("other", ["f32[]", "f32[8]{0}", "f32[8,8]{1,0}"])
def test_a_matrix_summed_with_an_array_of_another_rank_is_split_by_itself(other):
    reading = read(TEXT.format(other=other), source="step", axes=AXES, target=parse_target("tpu:v5e:2x4"))
    found = diagnosis.of(Program(reading.ledger, reading, AXES, parse_target("tpu:v5e:2x4"))).findings
    (repeated,) = [finding for finding in found if finding.kind == "computed_redundantly"]
    assert "repeated by all devices along tensor" in repeated.sentence
