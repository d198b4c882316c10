"""Which transfers a GPU's schedule has products to hide behind, of texts written by hand."""

import pytest

from lab.hlo.read import read_text

CONFIG = 'backend_config={"collective_backend_config":{"is_sync":false}}'


def text(between: str, config: str = CONFIG, head: str = "is_scheduled=true, ") -> str:
    return f"""HloModule step, {head}num_partitions=2

%body (p: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {{
  %p = (s32[], f32[8,8]) parameter(0)
  %at = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%at, %one)
  %x = f32[8,8] get-tuple-element(%p), index=1
  %multiplied = f32[8,8] dot(%x, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %out = (s32[], f32[8,8]) tuple(%next, %multiplied)
}}

%condition (q: (s32[], f32[8,8])) -> pred[] {{
  %q = (s32[], f32[8,8]) parameter(0)
  %number = s32[] get-tuple-element(%q), index=0
  %three = s32[] constant(3)
  ROOT %is_less = pred[] compare(%number, %three), direction=LT
}}

ENTRY %main (a: f32[4,8], b: f32[8,8]) -> f32[8,8] {{
  %a = f32[4,8] parameter(0)
  %b = f32[8,8] parameter(1)
  %zero = s32[] constant(0)
  %state = (s32[], f32[8,8]) tuple(%zero, %b)
  %before = f32[8,8] dot(%b, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %all-gather-start = (f32[4,8], f32[8,8]) all-gather-start(%a), replica_groups={{{{0,1}}}}, dimensions={{0}}, {config}
  {between}
  %all-gather-done = f32[8,8] all-gather-done(%all-gather-start)
  ROOT %sum = f32[8,8] dot(%all-gather-done, %before), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""


PRODUCT = "%c = f32[8,8] dot(%b, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
LOOP = "%loop = (s32[], f32[8,8]) while(%state), condition=%condition, body=%body"


@pytest.mark.parametrize(
    ("between", "is_over_products"), [(PRODUCT, True), (LOOP, True), ("%c = f32[8,8] add(%b, %b)", False)]
)
def test_a_product_or_a_loop_of_products_between_start_and_done_hides_a_transfer(between, is_over_products):
    (gather,) = read_text(text(between)).transfers
    assert gather.is_over_products is is_over_products


def test_a_transfer_that_blocks_is_hidden_by_nothing():
    (gather,) = read_text(text(PRODUCT, CONFIG.replace("false", "true"))).transfers
    assert gather.is_over_products is False


@pytest.mark.parametrize("other", [{"head": ""}, {"config": "channel_id=1"}])
def test_what_is_no_gpus_schedule_does_not_tell(other):
    (gather,) = read_text(text(PRODUCT, **other)).transfers
    assert gather.is_over_products is None
