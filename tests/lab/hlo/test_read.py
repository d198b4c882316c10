"""Forms of compiled text that one has to have met: each is read once, with its bytes, or is told in a note."""

import pytest

from lab.core.ledger import Kind, Ledger
from lab.core.note import NoteKind
from lab.hlo import read_text
from lab.hlo.placement import Devices
from lab.hlo.text import parse
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.report.tables import ledger_text, sent_text
from tests.hlo_corpus.xla_parser import parsed_by_xla

ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

"""


def read(entry: str, *, before: str = "", tables: str = "", partitions: int = 8, **how):
    body = "\n".join(f"  {line.strip()}" for line in entry.strip().splitlines())
    return read_text(
        f"HloModule jit_f, is_scheduled=true, num_partitions={partitions}\n\n{tables}{ADD}{before}ENTRY %main (x: f32[64]) "
        f"-> f32[64] {{\n{body}\n}}\n",
        **how,
    )


def only(ledger):
    (transfer,) = ledger.transfers
    return transfer


@pytest.mark.parametrize(
    ("start", "done", "kind", "payload"),
    [
        (
            "f32[64]{0} all-reduce-start(%x), replica_groups=[2,4]<=[8], to_apply=%add",
            "all-reduce-done",
            Kind.ALL_REDUCE,
            256,
        ),
        (
            "((f32[64]{0}), f32[64]{0}) all-reduce-start(%x), replica_groups=[2,4]<=[8], to_apply=%add",
            "all-reduce-done",
            Kind.ALL_REDUCE,
            256,
        ),
        (
            "(f32[64]{0}, f32[256]{0}) all-gather-start(%x), replica_groups=[2,4]<=[8], dimensions={0}",
            "all-gather-done",
            Kind.ALL_GATHER,
            1024,
        ),
        (
            "((f32[64]{0}), f32[256]{0}) all-gather-start(%x), replica_groups=[2,4]<=[8], dimensions={0}",
            "all-gather-done",
            Kind.ALL_GATHER,
            1024,
        ),
        (
            "((f32[64]{0}), f32[16]{0}) reduce-scatter-start(%x), replica_groups=[2,4]<=[8], dimensions={0}, "
            "to_apply=%add",
            "reduce-scatter-done",
            Kind.REDUCE_SCATTER,
            256,
        ),
        (
            "((f32[64]{0}), f32[64]{0}) all-to-all-start(%x), replica_groups=[2,4]<=[8], dimensions={0}",
            "all-to-all-done",
            Kind.ALL_TO_ALL,
            256,
        ),
        (
            "(f32[64]{0}, f32[64]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x), "
            "source_target_pairs={{0,1},{1,0}}",
            "collective-permute-done",
            Kind.COLLECTIVE_PERMUTE,
            256,
        ),
    ],
)
def test_an_async_pair_counts_once_whatever_its_start_holds(start, done, kind, payload):
    transfer = only(read(f"%x = f32[64]{{0}} parameter(0)\n%s = {start}\nROOT %d = f32[64]{{0}} {done}(%s)"))
    assert (transfer.kind, transfer.payload_bytes, transfer.overlap, transfer.executions) == (kind, payload, "async", 1)


@pytest.mark.parametrize(
    "attribute, overlap", [("", "sync"), (', frontend_attributes={chain_id="3"}', "async"), (", chain_id=3", "async")]
)
def test_what_is_part_of_a_chain_is_async_though_its_text_has_no_start(attribute, overlap):
    line = f"ROOT %s = f32[64]{{0}} all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add{attribute}"
    assert only(read(f"%x = f32[64]{{0}} parameter(0)\n{line}")).overlap == overlap


@pytest.mark.parametrize("run", ["async", "fusion"])
def test_a_wrapped_async_computation_counts_at_its_start(run):
    wrapped = (
        "%wrapped (p: f32[64]) -> f32[64] {\n  %p = f32[64]{0} parameter(0)\n  ROOT %a2a = f32[64]{0} "
        "all-to-all(%p), replica_groups=[1,8]<=[8], dimensions={0}\n}\n\n"
    )
    transfer = only(
        read(
            f"""%x = f32[64]{{0}} parameter(0)
            %start = ((f32[64]{{0}}), f32[64]{{0}}, u32[]) {run}-start(%x), calls=%wrapped
            %update = ((f32[64]{{0}}), f32[64]{{0}}, u32[]) {run}-update(%start), calls=%wrapped
            ROOT %done = f32[64]{{0}} {run}-done(%update), calls=%wrapped""",
            before=wrapped,
        )
    )
    assert (transfer.kind, transfer.executions, transfer.overlap) == (Kind.ALL_TO_ALL, 1, "async")


def test_a_sparsecore_call_is_followed_into_its_computation():
    named = ', metadata={op_name="jit(f)/transpose(jvp(mlp))/add"}'
    called = (
        "%called (p: f32[64]) -> f32[64] {\n  %p = f32[64]{0} parameter(0)\n  ROOT %ar = f32[64]{0} "
        'all-reduce(%p), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add\n}, execution_thread="sparsecore"\n\n'
    )
    transfer = only(
        read(
            f"""%w = f32[64]{{0}} parameter(0)
            %x = f32[64]{{0}} add(%w, %w){named}
            %start = ((f32[64]{{0}}, token[]), f32[64]{{0}}) call-start(%x), async_execution_thread="sparsecore", to_apply=%called
            ROOT %done = f32[64]{{0}} call-done(%start)""",
            before=called,
        )
    )
    assert (transfer.kind, transfer.group_size, transfer.overlap) == (Kind.ALL_REDUCE, 4, "async")
    assert (transfer.phase, transfer.scope) == (
        "backward",
        "mlp",
    )  # Of what feeds the call: the offloaded computation has no names.


def test_tuple_operands_are_parts_and_their_sum_is_the_payload():
    transfer = only(
        read(
            """%x = f32[64]{0} parameter(0)
            %y = bf16[8,2]{1,0:T(8,128)(2,1)S(1)} parameter(1)
            ROOT %ar = (f32[64]{0}, /*index=1*/bf16[8,2]{1,0:T(8,128)(2,1)}) all-reduce(%x, /*index=1*/%y), channel_id=1, replica_groups={}, to_apply=%add"""
        )
    )
    assert transfer.payload_bytes == 256 + 32
    assert [(p.dtype, p.payload_bytes) for p in transfer.parts] == [("f32", 256), ("bf16", 32)]
    assert (transfer.dtype, transfer.group_size) == ("f32+bf16", 8)


def test_reductions_packed_into_one_flat_array_are_their_pieces():
    packed = (
        "%packed (p: f32[16,2], q: f32[32]) -> f32[64] {\n  %p = f32[16,2]{1,0} parameter(0)\n  %q = f32[32]{0} "
        "parameter(1)\n  %flat = f32[32]{0} bitcast(%p)\n  ROOT %c = f32[64]{0} concatenate(%flat, %q), "
        "dimensions={0}\n}\n\n"
    )
    transfer = only(
        read(
            """%x = f32[16,2]{1,0} parameter(0)
            %y = f32[32]{0} parameter(1)
            %f = f32[64]{0} fusion(%x, %y), kind=kLoop, calls=%packed
            ROOT %ar = f32[64]{0} all-reduce(%f), replica_groups={}, to_apply=%add""",
            before=packed,
        )
    )
    assert [p.payload_bytes for p in transfer.parts] == [128, 128]


def test_an_all_reduce_and_slice_in_one_custom_fusion_is_a_reduce_scatter():
    fused = (
        "%all-reduce-scatter (p: f32[64]) -> f32[8] {\n  %p = f32[64]{0} parameter(0)\n  %ar = f32[64]{0} "
        "all-reduce(%p), channel_id=1, replica_groups={}, to_apply=%add\n  %id = u32[] partition-id()\n  ROOT %ds = f32[8]{0} "
        "dynamic-slice(%ar, %id), dynamic_slice_sizes={8}\n}\n\n"
    )
    custom = "%x = f32[64]{0} parameter(0)\nROOT %rs = f32[8]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter"
    assert only(read(custom, before=fused)).kind is Kind.REDUCE_SCATTER
    assert only(read(custom.replace("kCustom", "kLoop"), before=fused)).kind is Kind.ALL_REDUCE


@pytest.mark.parametrize(
    ("size", "root"),
    [
        (16, "ROOT %ds = f32[16]{0} dynamic-slice(%ar, %id), dynamic_slice_sizes={16}"),
        (
            8,
            "%ds = f32[8]{0} dynamic-slice(%ar, %id), dynamic_slice_sizes={8}\n  ROOT %t = (f32[8]{0}, f32[64]{0}) tuple(%ds, %ar)",
        ),
    ],
    ids=["a quarter of the sum for one of eight devices", "the sum is used as a whole too"],
)
def test_a_custom_fusion_that_keeps_more_than_its_part_of_the_sum_is_an_all_reduce(size, root):
    fused = (
        "%fc (p: f32[64]) -> f32[8] {\n  %p = f32[64]{0} parameter(0)\n  %id = u32[] partition-id()\n  %ar = f32[64]{0} "
        f"all-reduce(%p), channel_id=1, replica_groups={{}}, to_apply=%add\n  {root}\n}}\n\n"
    )
    custom = f"%x = f32[64]{{0}} parameter(0)\nROOT %rs = f32[{size}]{{0}} fusion(%x), kind=kCustom, calls=%fc"
    transfer = only(read(custom, before=fused))
    assert (transfer.kind, transfer.wire_bytes) == (Kind.ALL_REDUCE, 448)


@pytest.mark.parametrize(
    ("text", "shift", "pairs"),
    [
        ("{{0,1},{1,2},{2,3},{4,5},{5,6},{6,7}}", 1, ((0, 1), (1, 2), (2, 3))),
        ("{{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}", 1, None),
        ("{{0,3},{3,0},{4,7},{7,4}}", None, ((0, 3), (3, 0))),
    ],
)
def test_a_permute_of_a_chain_keeps_its_pairs_in_text_and_in_json(text, shift, pairs):
    permute = (
        f"%x = f32[64]{{0}} parameter(0)\nROOT %p = f32[64]{{0}} collective-permute(%x), source_target_pairs={text}"
    )
    ledger = read(permute, axes=Axes.parse("data=2,tensor=4"))
    transfer = only(ledger)
    assert (transfer.axes, transfer.shift, transfer.pairs) == (("tensor",), shift, pairs)
    assert only(Ledger.from_json(ledger.to_json())) == transfer


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_message_goes_to_the_pairs_that_its_frontend_attributes_name_quoted_or_not(quote):
    pairs = f"frontend_attributes={{_xla_send_recv_source_target_pairs={quote}{{{{0,1}},{{1,2}},{{2,3}}}}{quote}}}"
    transfer = only(
        read(
            f"""%x = f32[64]{{0}} parameter(0)
            %t = token[] after-all()
            %s = (f32[64]{{0}}, u32[], token[]) send(%x, %t), channel_id=1, {pairs}
            ROOT %d = token[] send-done(%s), channel_id=1"""
        )
    )
    assert (transfer.kind, transfer.group_size, transfer.wire_bytes) == (Kind.SEND_RECV, 4, 256)


def test_a_module_of_one_device_sends_nothing_and_that_is_all_of_it():
    ledger = read("ROOT %x = f32[64]{0} parameter(0)", partitions=1)
    assert (ledger.transfers, [note.kind for note in ledger.notes]) == ((), [NoteKind.ONE_DEVICE])
    assert ledger.is_complete


@pytest.mark.parametrize("indent", ["  ", "    ", "\t", " "])
def test_lines_may_be_indented_otherwise_than_xla_prints_them(indent):
    text = f"ENTRY %main (x: f32[8]) -> f32[8] {{\n{indent}%x = f32[8]{{0}} parameter(0)\n\n{indent}ROOT %r = f32[8]{{0}} negate(%x)\n}}\n"
    (computation,) = parse(text).computations.values()
    assert [(i.name, i.opcode, i.is_root) for i in computation.instructions] == [
        ("x", "parameter", False),
        ("r", "negate", True),
    ]


def test_an_equals_sign_in_a_name_beside_damage_is_no_second_instruction():
    named = '%y = f32[64]{0} negate(%x), metadata={op_name="jit(f)/a = b/neg"}'
    ledger = read(f"%x = f32[64]{{0}} parameter(0)\n{named}\nROOT %z = f32[64]{{0}} add(%y, %gone)")
    damage = [note for note in ledger.notes if note.kind == NoteKind.TEXT_DAMAGED]
    assert "gone of z" in " ".join(damage) and "two instructions" not in " ".join(damage)


@pytest.mark.parametrize("opcode, is_read", [("negate", True), ("9negate", False), ("neg!ate", False)])
def test_a_line_with_what_is_no_opcode_is_not_read(opcode, is_read):
    text = f"ENTRY %main (x: f32[8]) -> f32[8] {{\n  %x = f32[8]{{0}} parameter(0)\n  ROOT %r = f32[8]{{0}} {opcode}(%x)\n}}\n"
    (computation,) = parse(text).computations.values()
    assert [i.name for i in computation.instructions] == (["x", "r"] if is_read else ["x"])


def test_a_permute_in_place_moves_as_many_slices_of_each_of_several_buffers():
    transfer = only(
        read(
            """%x = f32[64]{0} parameter(0)
            %one = f32[8,32]{1,0} broadcast(%x), dimensions={}
            %other = bf16[8,32]{1,0} broadcast(%x), dimensions={}
            %in = (f32[8,32]{1,0}, bf16[8,32]{1,0}) tuple(%one, %other)
            %i = s32[] constant(0)
            %at = (s32[], s32[]) tuple(%i, %i)
            ROOT %cp = (f32[8,32]{1,0}, bf16[8,32]{1,0}) collective-permute(%in, %in, %at, %at), channel_id=1, source_target_pairs={{0,1},{1,0}}, slice_sizes={{2,32},{1,32}}"""
        )
    )
    assert [(part.dtype, part.payload_bytes) for part in transfer.parts] == [("f32", 256), ("bf16", 64)]


@pytest.mark.parametrize(("sizes", "payload"), [("{{2,32}}", 256), ("{{2,32},{1,32}}", 384)])
def test_a_permute_in_place_moves_its_slices(sizes, payload):
    transfer = only(
        read(
            f"""%x = f32[64]{{0}} parameter(0)
            %in = f32[8,32]{{1,0}} broadcast(%x), dimensions={{}}
            %out = f32[16,32]{{1,0}} broadcast(%x), dimensions={{}}
            %i = s32[] constant(0)
            %at = (s32[], s32[]) tuple(%i, %i)
            ROOT %cp = f32[16,32]{{1,0}} collective-permute(%in, %out, %at, %at), channel_id=1, source_target_pairs={{{{0,1}},{{1,0}}}}, slice_sizes={sizes}"""
        )
    )
    assert (transfer.kind, transfer.payload_bytes, transfer.dtype) == (Kind.COLLECTIVE_PERMUTE, payload, "f32")


@pytest.mark.parametrize(
    ("target", "groups"),
    [
        ('"{1,2}x{0:3}"', 4),
        ("{{100000,200000},{100001,200001}}", 2),
        ("{{100000->200000},{200000->100000},{100001->200001},{200001->100001}}", 2),
    ],
)
def test_three_spellings_of_who_meets_over_the_data_centre_network(target, groups):
    send = f"""%x = f32[64]{{0}} parameter(0)
    %token = token[] after-all()
    %send = (f32[64]{{0}}, u32[], token[]) send(%x, %token), channel_id=1, is_host_transfer=true, frontend_attributes={{_xla_megascale_target={target},_xla_megascale_transfer_type="ALL_REDUCE"}}
    ROOT %done = token[] send-done(%send), channel_id=1, is_host_transfer=true"""
    transfer = only(read(send, partitions=4, axes=Axes.parse("data=2,model=4"), target=parse_target("tpu:v5e:2x2*2")))
    assert (transfer.kind, transfer.payload_bytes, transfer.link, transfer.groups, transfer.group_size) == (
        Kind.SEND_RECV,
        256,
        "dcn",
        groups,
        2,
    )
    assert transfer.network_kind is Kind.ALL_REDUCE


@pytest.mark.parametrize(
    ("spelled", "kind"),
    [("ALL_TO_ALL", Kind.ALL_TO_ALL), ("REDUCE_SCATTER", Kind.REDUCE_SCATTER), ("ONE_TO_ONE", None)],
)
def test_a_message_tells_what_the_runtime_makes_of_it(spelled, kind):
    send = f"""%x = f32[64]{{0}} parameter(0)
    %token = token[] after-all()
    ROOT %send = (f32[64]{{0}}, u32[], token[]) send(%x, %token), channel_id=1, is_host_transfer=true, frontend_attributes={{_xla_megascale_target="{{1,2}}x{{0:3}}",_xla_megascale_transfer_type="{spelled}"}}"""
    transfer = only(read(send, partitions=4, axes=Axes.parse("data=2,model=4"), target=parse_target("tpu:v5e:2x2*2")))
    assert (transfer.kind, transfer.network_kind) == (Kind.SEND_RECV, kind)
    assert transfer.wire_bytes == (256 if kind is None else 128)


def test_device_ids_find_their_positions_on_the_mesh():
    send = """%x = f32[64]{0} parameter(0)
    %token = token[] after-all()
    ROOT %send = (f32[64]{0}, u32[], token[]) send(%x, %token), is_host_transfer=true, frontend_attributes={_xla_megascale_target={{100000->200001},{200001->100000},{100001->200000},{200000->100001}}}"""
    where = {"partitions": 2, "axes": Axes.parse("data=2,model=2"), "target": parse_target("tpu:v5e:1x2*2")}
    turned = Devices((0, 0, 1, 1), ("ici", "dcn"), ids=(100000, 100001, 200001, 200000))
    assert (only(read(send, **where, devices=turned)).axes, only(read(send, **where, devices=turned)).shift) == (
        ("data",),
        1,
    )
    assert only(read(send, **where)).axes == ("data", "model")


def test_a_gpu_send_has_axis_and_shift_and_its_recv_counts_nothing():
    pairs = "_xla_send_recv_source_target_pairs={{0,1},{1,2},{2,3}}"
    ledger = read(
        f"""%x = f32[64]{{0}} parameter(0)
        %token = token[] after-all()
        %recv = (f32[64]{{0}}, u32[], token[]) recv(%token), channel_id=1, frontend_attributes={{{pairs}}}
        %send = (f32[64]{{0}}, u32[], token[]) send(%x, %token), channel_id=1, frontend_attributes={{{pairs}}}
        ROOT %done = (f32[64]{{0}}, token[]) recv-done(%recv), channel_id=1""",
        partitions=4,
        axes=Axes.parse("pipe=4"),
    )
    assert (only(ledger).kind, only(ledger).axes, only(ledger).shift) == (Kind.SEND_RECV, ("pipe",), 1)


def test_a_transfer_to_the_host_is_noted_not_counted():
    ledger = read(
        "%x = f32[64]{0} parameter(0)\n%t = token[] after-all()\nROOT %s = (f32[64]{0}, u32[], token[]) send(%x, %t), "
        "is_host_transfer=true"
    )
    assert ledger.transfers == ()
    assert any("host" in note for note in ledger.notes)


def test_a_group_of_one_moves_nothing_and_stays_in_sight():
    transfer = only(
        read(
            "%x = f32[64]{0} parameter(0)\nROOT %ar = f32[64]{0} all-reduce(%x), "
            "replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}, to_apply=%add",
            axes=Axes.parse("x=8"),
        )
    )
    assert (transfer.payload_bytes, transfer.wire_bytes, transfer.axes) == (256, 0, ())


def test_branches_of_a_conditional_are_flagged():
    branch = (
        "%{0} (p{0}: f32[64]) -> f32[64] {{\n  %p{0} = f32[64]{{0}} parameter(0)\n  ROOT %ar{0} = f32[64]{{0}} "
        "all-reduce(%p{0}), replica_groups={{}}, to_apply=%add\n}}\n\n"
    )
    ledger = read(
        "%x = f32[64]{0} parameter(0)\n%i = s32[] constant(0)\nROOT %c = f32[64]{0} conditional(%i, %x, %x), "
        "branch_computations={%left, %right}",
        before=branch.format("left") + branch.format("right"),
    )
    assert [(t.conditional, t.executions) for t in ledger.transfers] == [(True, 1), (True, 1)]


def test_names_that_lie_are_not_believed():
    ledger = read(
        """%all-reduce.1 = f32[64]{0} parameter(0), metadata={op_name="jit(f)/all-reduce(fake)" source_file="replica_groups={{0,1}}"}
        ROOT %psum_invariant.7 = f32[64]{0} all-gather(%all-reduce.1), replica_groups=[8,1]<=[8], dimensions={0}, metadata={op_name="jit(f)/all_to_all, replica_groups={{0,1}}"}"""
    )
    assert (only(ledger).kind, only(ledger).group_size) == (Kind.ALL_GATHER, 1)


def test_groups_of_an_unknown_spelling_go_to_the_notes():
    ledger = read(
        "%x = f32[64]{0} parameter(0)\nROOT %ar = f32[64]{0} all-reduce(%x), replica_groups=<hypercube 8>, "
        "to_apply=%add"
    )
    assert (only(ledger).payload_bytes, only(ledger).group_size, only(ledger).wire_bytes) == (256, None, None)
    assert ledger.to_json()["totals"]["all"]["lower_bound"] is True
    assert not ledger.is_complete
    assert any("groups not understood" in note for note in ledger.notes)


def test_a_gather_named_after_the_weight_is_told_with_the_product_that_it_serves():
    text = """HloModule m, num_partitions=4

ENTRY %m (w: f32[8,32], x: f32[4,32]) -> f32[4,32] {
  %w = f32[8,32]{1,0} parameter(0), metadata={op_name="w"}
  %x = f32[4,32]{1,0} parameter(1), metadata={op_name="x"}
  %g = f32[32,32]{1,0} all-gather(%w), replica_groups={{0,1,2,3}}, dimensions={0}, metadata={op_name="w"}
  %c = f32[32,32]{1,0} copy(%g), metadata={op_name="w"}
  ROOT %d = f32[4,32]{1,0} dot(%x, %c), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/jvp(mlp)/dot_general" source_file="a.py" source_line=7}
}
"""
    (gather,) = read_text(text).transfers
    assert (gather.scope, gather.phase, gather.origin) == ("mlp", "forward", "a.py:7")


def test_an_operation_of_tomorrow_that_names_devices_goes_to_the_notes():
    ledger = read(
        "%x = f32[64]{0} parameter(0)\nROOT %g = f32[64]{0} super-gather(%x), replica_groups=[2,4]<=[8], dimensions={0}"
    )
    assert ledger.transfers == () and not ledger.is_complete
    assert any("super-gather" in note for note in ledger.notes)


@pytest.mark.parametrize(
    ("target", "config"),
    [
        ("mosaic_gpu_v2", 'kernel_hash = "a", uses_xla_collective_metadata = {}, xla_replica_ids = "0,1"'),
        ("tpu_custom_call", '"custom_call_config":{{"body":"TUzv","has_communication":{}}}'),
    ],
)
def test_a_kernel_that_reaches_other_devices_by_itself_is_noted_and_one_that_does_not_is_not(target, config):
    line = (
        f"%x = f32[64]{{{{0}}}} parameter(0)\nROOT %k = f32[64]{{{{0}}}} custom-call(%x), "
        f'custom_call_target="{target}", backend_config={{{{{config}}}}}'
    )
    does, does_not = (read(line.format(answer)) for answer in ("true", "false"))
    assert not does.is_complete and "1 kernel with access to other devices' memory" in does.notes[0]
    assert does_not.is_complete and [note.kind for note in does_not.notes] == [NoteKind.UNKNOWN_FLOPS]


def test_a_start_that_xla_marks_synchronous_overlaps_nothing():
    start = (
        "%x = f32[64]{0} parameter(0)\n%s = ((f32[64]{0}), f32[64]{0}) all-to-all-start(%x), "
        'replica_groups=[1,8]<=[8], backend_config={"collective_backend_config":{"is_sync":SYNC}}\nROOT %d = '
        "f32[64]{0} all-to-all-done(%s)"
    )
    assert only(read(start.replace("SYNC", "true"))).overlap == "sync"
    assert only(read(start.replace("SYNC", "false"))).overlap == "async"


def test_a_collective_that_nothing_runs_is_noted():
    dead = (
        "%dead (p: f32[64]) -> f32[64] {\n  %p = f32[64]{0} parameter(0)\n  ROOT %ar = f32[64]{0} all-reduce(%p), "
        "replica_groups={}, to_apply=%add\n}\n\n"
    )
    ledger = read("ROOT %x = f32[64]{0} parameter(0)", before=dead)
    assert ledger.transfers == ()
    assert any("nothing here runs" in note for note in ledger.notes)


def test_lines_that_are_no_instruction_are_noted():
    ledger = read(
        "%x = f32[64]{0} parameter(0)\n?? something new\nROOT %ar = f32[64]{0} all-reduce(%x), replica_groups={}, "
        "to_apply=%add"
    )
    assert only(ledger).kind is Kind.ALL_REDUCE
    assert any("not understood" in note for note in ledger.notes)


def test_a_text_cut_inside_a_computation_gives_what_it_holds():
    text = (
        f"HloModule f, num_partitions=8\n\n{ADD}ENTRY %main (x: f32[64]) -> f32[64] {{\n  %x = f32[64]{{0}} "
        f"parameter(0)\n  %ar = f32[64]{{0}} all-reduce(%x), replica_groups={{}}, to_apply=%add\n"
    )
    ledger = read_text(text)
    assert only(ledger).payload_bytes == 256
    assert any("ends early" in note for note in ledger.notes)


@pytest.mark.parametrize(
    "line",
    [
        "%d = f32[] dot(f32[84] %x, f32[64]{0} %x), lhs_contracting_dims={0}, rhs_contracting_dims={0}\nROOT %y = f32[64] copy(%x)",
        "ROOT %ar = f32[32] all-reduce(f32[32] %x), replica_groups={}, to_apply=%add",
    ],
)
def test_an_operand_of_another_type_than_where_it_is_defined_is_damage(line):
    assert read(f"%x = f32[64]{{0}} parameter(0)\n{line.replace('84', '64').replace('32]', '64]')}").is_complete
    damaged = read(f"%x = f32[64]{{0}} parameter(0)\n{line}")
    assert not damaged.is_complete and "another type than where it is defined" in damaged.notes[-1]


@pytest.mark.parametrize(
    "first",
    [
        'metadata={op_name="}, replica_groups={{0,1,2,3,4,5,6,7}}"}',
        'frontend_attributes={_pairs={{0,1}},replica_groups={{0,1}},a="}, to_apply=%x"}, metadata={op_name="x"}',
        'backend_config={"a":{"b":"}, replica_groups={{0,1}}"}}',
    ],
)
def test_attributes_are_found_after_metadata_and_configuration(first):
    attributes = "replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add"
    line = "%x = f32[64]{0} parameter(0)\nROOT %ar = f32[64]{0} all-reduce(%x)"
    for ledger in (read(f"{line}, {first}, {attributes}"), read(f"{line}, {attributes}, {first}")):
        assert (only(ledger).group_size, ledger.is_complete) == (2, True)


def test_a_comment_that_goes_on_in_the_next_line_is_not_read_over():
    hidden = (
        '%x = f32[64]{0} parameter(0)\n%a = f32[64]{0} copy(%x), metadata={op_name="x" /*\n%ar = f32[64]{0} all-reduce(%a), '
        "replica_groups={}, to_apply=%add\n%c = f32[64]{0} copy(%x), metadata=x */}\nROOT %d = f32[64]{0} copy(%a)"
    )
    assert not read(hidden).is_complete
    path = '%x = f32[64]{0} parameter(0), metadata={op_name="a/*/b"}\nROOT %t = f32[64]{0} copy(/*index=0*/%x)'
    assert read(path).is_complete


def test_a_type_that_xla_does_not_have_is_damage():
    line = "%x = f32[64]{{0}} parameter(0)\n%y = {0}[64]{{0}} convert(%x)\nROOT %z = f32[64]{{0}} convert(%y)"
    complete = {
        name: read(line.format(name)).is_complete for name in ("f31", "s65", "bf8", "f8e4m3b11fnuz", "u2", "c128")
    }
    assert complete == {"f31": False, "s65": False, "bf8": False, "f8e4m3b11fnuz": True, "u2": True, "c128": True}


def test_a_path_in_the_table_of_files_says_nothing_of_devices():
    tables = 'FileNames\n1 "/sweep/replica_count=4,num_partitions=2/train.py"\n\n'
    ledger = read("ROOT %x = f32[64]{0} parameter(0)", tables=tables)
    assert (ledger.devices, ledger.is_complete) == (8, True)


def test_a_text_that_is_no_hlo_is_unusable():
    with pytest.raises(UsageError, match="no HLO module"):
        read_text("Dear reader,\nthis is a letter.", source="letter.txt")


def test_a_mesh_of_another_size_is_unusable():
    with pytest.raises(UsageError, match="runs on 8 devices but the mesh x=4 has 4"):
        read("ROOT %x = f32[64]{0} parameter(0)", axes=Axes.parse("x=4"))


def test_links_follow_from_the_hosts_that_a_group_spans():
    gather = "%x = f32[64]{0} parameter(0)\nROOT %ag = f32[64]{0} all-gather(%x), replica_groups=GROUPS, dimensions={0}"
    target = parse_target("gpu:h100:2x4")
    assert only(read(gather.replace("GROUPS", "[2,4]<=[8]"), target=target)).link == "host"
    assert only(read(gather.replace("GROUPS", "[4,2]<=[2,4]T(1,0)"), target=target)).link == "network"


def test_a_mesh_whose_second_axis_spans_the_slices_is_read_with_its_own_domains():
    gather = (
        "%x = f32[64]{0} parameter(0)\nROOT %ag = f32[64]{0} all-gather(%x), replica_groups={{0,1},{2,3}}, "
        "dimensions={0}"
    )
    where = {"partitions": 4, "axes": Axes.parse("data=4,model=2"), "target": parse_target("tpu:v5e:2x2*2")}
    assert only(read(gather, **where)).axes == ("model",)
    assert only(read(gather, **where, devices=Devices((0, 1) * 4, ("ici", "dcn")))).axes is None


def test_an_all_to_all_of_pieces_is_one_buffer():
    transfer = only(
        read(
            """%x = f32[8,4]{1,0} parameter(0)
            %y = f32[8,4]{1,0} parameter(1)
            ROOT %a = (f32[8,4]{1,0}, f32[8,4]{1,0}) all-to-all(%x, %y), replica_groups={{0,1},{2,3},{4,5},{6,7}}"""
        )
    )
    assert (transfer.payload_bytes, transfer.parts) == (256, ())


def test_a_body_that_both_passes_run_is_backward_in_the_loop_of_the_backward_pass():
    """XLA keeps one of equal computations, with the names of the forward pass, and copies it."""
    ring = """%ring (t: (s32[], f32[64])) -> (s32[], f32[64]) {
  %t = (s32[], f32[64]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %y = f32[64] get-tuple-element(%t), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %moved = f32[64] collective-permute(%y), source_target_pairs={{0,1},{1,0}}, metadata={op_name="jit(f)/jvp(layers)/while/body/keys/ppermute"}
  ROOT %both = (s32[], f32[64]) tuple(%next, %moved)
}

%before (t: (s32[], f32[64])) -> pred[] {
  %t = (s32[], f32[64]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %last = s32[] constant(3)
  ROOT %less = pred[] compare(%i, %last), direction=LT
}

"""
    ledger = read(
        """%x = f32[64] parameter(0)
        %zero = s32[] constant(0)
        %start = (s32[], f32[64]) tuple(%zero, %x)
        %there = (s32[], f32[64]) while(%start), condition=%before, body=%ring, metadata={op_name="jit(f)/jvp(layers)/while"}
        %y = f32[64] get-tuple-element(%there), index=1
        %again = (s32[], f32[64]) tuple(%zero, %y)
        %back = (s32[], f32[64]) while(%again), condition=%before, body=%ring.clone, metadata={op_name="jit(f)/transpose(jvp(layers))/rematted_computation/while"}
        ROOT %z = f32[64] get-tuple-element(%back), index=1""",
        before=ring + ring[: ring.index("%before")].replace("%ring ", "%ring.clone "),
    )
    assert [(transfer.phase, transfer.executions) for transfer in ledger.transfers] == [("forward", 3), ("backward", 3)]


@pytest.mark.parametrize("groups", ["{{0,1},{2,3}}", "{ {0,1}, {2,3} }", "{{0, 1} , {2, 3}}"])
@pytest.mark.parametrize(
    ("operation", "names", "more"),
    [
        ("all-gather", "replica_groups", ", dimensions={0}, use_global_device_ids=true"),
        ("collective-permute", "source_target_pairs", ""),
    ],
)
def test_blanks_in_lists_of_devices_change_nothing(groups, operation, names, more):
    size = 16 if operation == "all-gather" else 8
    text = (
        f"HloModule m, num_partitions=4\n\nENTRY %e (x: f32[8]) -> f32[{size}] {{\n  %x = f32[8]{{0}} parameter(0)\n"
        f"  ROOT %r = f32[{size}]{{0}} {operation}(%x), channel_id=1, {names}={groups}{more}\n}}\n"
    )
    parsed_by_xla(text)
    ledger = read_text(text)
    (transfer,) = ledger.transfers
    assert (ledger.is_complete, ledger.notes, transfer.group_size, transfer.groups) == (True, (), 2, 2)


def test_a_loop_s_name_tells_nothing_of_one_value_that_comes_out_of_it():
    """A gradient added up over micro-batches, whose sum XLA moved out of their loop without a name."""
    text = """HloModule m, num_partitions=2

%add (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %s = bf16[] add(%a, %b)
}

%body (p: (s32[], f32[64])) -> (s32[], f32[64]) {
  %p = (s32[], f32[64]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = f32[64]{0} get-tuple-element(%p), index=1
  %twice = f32[64]{0} add(%x, %x), metadata={op_name="jit(step)/while/body/transpose(jvp(norm))/add"}
  ROOT %t = (s32[], f32[64]{0}) tuple(%next, %twice)
}

%condition (q: (s32[], f32[64])) -> pred[] {
  %q = (s32[], f32[64]{0}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %four = s32[] constant(4)
  ROOT %less = pred[] compare(%j, %four), direction=LT
}

ENTRY %e (y: f32[64]) -> bf16[64] {
  %y = f32[64]{0} parameter(0)
  %zero = s32[] constant(0)
  %init = (s32[], f32[64]{0}) tuple(%zero, %y)
  %loop = (s32[], f32[64]{0}) while(%init), condition=%condition, body=%body, metadata={op_name="jit(step)/while"}
  %sum = f32[64]{0} get-tuple-element(%loop), index=1
  %narrow = bf16[64]{0} convert(%sum)
  ROOT %r = bf16[64]{0} all-reduce(%narrow), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=%add
}
"""
    (transfer,) = read_text(text).transfers
    assert (transfer.phase, transfer.scope, transfer.executions) == (None, "", 1)
    (told,) = read_text(
        text.replace("convert(%sum)", 'convert(%sum), metadata={op_name="jit(step)/update/cast"}')
    ).transfers
    assert (told.phase, told.scope) == ("update", "update")


@pytest.mark.parametrize(("rows", "room"), [(64, 512), (512, 64)], ids=["there", "back"])
def test_a_ragged_exchange_sends_at_most_the_smaller_of_its_buffers(rows, room):
    ledger = read(
        f"%x = bf16[{rows},8]{{1,0}} parameter(0)\n%o = bf16[{room},8]{{1,0}} parameter(1)\n%i = s32[8]{{0}} parameter(2)\n"
        f"ROOT %r = bf16[{room},8]{{1,0}} ragged-all-to-all(%x, %o, %i, %i, %i, %i), replica_groups={{{{0,1,2,3,4,5,6,7}}}}"
    )
    (transfer,) = ledger.transfers
    assert (transfer.payload_bytes, transfer.wire_bytes) == (64 * 8 * 2, 64 * 8 * 2)
    assert ledger.totals().upper_bound and not ledger.totals().lower_bound
    assert "<= 1.024 kB" in ledger_text(ledger) and "at most 1.024 kB in 1 execution" in sent_text(ledger.totals())
