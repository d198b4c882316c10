"""Sentences about the axes of a mesh, of ledgers written by hand."""

from dataclasses import replace

import pytest

from lab.core.ledger import Kind, Ledger, SubAxis, Transfer
from lab.report.axis_lines import axis_lines
from lab.report.html import ledgers
from lab.report.tables import ledger_text

REDUCE = Transfer(Kind.ALL_REDUCE, ("tensor",), 8, 26, "bf16", 33_600_000, link="host")
GATHER = Transfer(Kind.ALL_GATHER, ("fsdp",), 2, 4, "bf16", 1_000_000, link="network")
SCATTER = Transfer(Kind.REDUCE_SCATTER, ("fsdp",), 2, 1, "bf16", 8_000_000, link="network")


def lines(*transfers: Transfer, **told) -> list[str]:
    given = {"mesh": {"fsdp": 2, "tensor": 8}, "target": "gpu:h100:2x8"} | told
    return axis_lines(Ledger(transfers, **given))


def test_26_all_reduces_over_tensor_stay_inside_a_host_and_are_99_percent_of_the_wire():
    """26 x 2 x 7/8 x 33.6 MB of them and 2 MB of 4 gathers."""
    share = 26 * 2 * 7 / 8 * 33.6 / (26 * 2 * 7 / 8 * 33.6 + 2)
    assert lines(GATHER, REDUCE) == [
        f"tensor: 26 all_reduces of 33.6 MB, inside a host (NVLink 4): {100 * share:.3g} % of the wire bytes",
        f"fsdp: 4 all_gathers of 1 MB, between hosts (NDR InfiniBand): {100 * (1 - share):.3g} % of the wire bytes",
    ]


def test_kinds_stand_by_their_bytes_and_sizes_from_least_to_most():
    (line,) = lines(GATHER, replace(GATHER, payload_bytes=4, executions=1), SCATTER, mesh={"fsdp": 2}, target=None)
    assert line == (
        "fsdp: 1 reduce_scatter of 8 MB and 5 all_gathers of 4 B to 1 MB, between hosts: 100 % of the wire bytes"
    )


def test_an_axis_without_transfers_sends_nothing_unless_something_is_not_known():
    assert lines(REDUCE)[1:] == ["fsdp: nothing"]
    assert [line.partition(":")[0] for line in lines(replace(GATHER, axes=None), REDUCE)] == [
        "tensor",
        "axes not known",
    ]
    assert len(lines(REDUCE, is_complete=False)) == 1


def test_a_part_of_an_axis_is_no_idle_axis():
    half = replace(GATHER, axes=None, sub_axes=(SubAxis("tensor", 8, stride=2, size=4),), group_size=4)
    assert [line.partition(":")[0] for line in lines(GATHER, half)] == ["tensor[4 of 8, stride 2]", "fsdp"]


def test_executions_that_are_not_known_make_a_lower_bound_and_shares_of_what_is_known():
    unknown = replace(GATHER, executions=None)
    first, second = lines(REDUCE, unknown)
    assert first.endswith("(NVLink 4): 100 % of the wire bytes that are known")
    assert second == "fsdp: all_gathers of 1 MB, how often is not known, between hosts (NDR InfiniBand)"
    assert lines(unknown, GATHER, mesh={"fsdp": 2}, target=None) == [
        "fsdp: at least 4 all_gathers of 1 MB, between hosts: 100 % of the wire bytes that are known"
    ]


def test_a_branch_that_need_not_run_is_said():
    (line,) = lines(replace(GATHER, conditional=True), mesh={"fsdp": 2}, target=None)
    assert line.startswith("fsdp: 4 all_gathers of 1 MB if every branch runs, between hosts")


def test_groups_that_no_axes_give_are_said_as_such():
    assert lines(replace(REDUCE, axes=None))[0].startswith("axes not known: 26 all_reduces")


@pytest.mark.parametrize("link", ["ici", "dcn"])
def test_links_of_a_tpu_are_named_once(link):
    (line,) = lines(replace(GATHER, link=link), mesh={"fsdp": 8}, target="tpu:v5e:2x4")
    assert f", over {link.upper()}: 100 %" in line


def test_without_a_mesh_or_transfers_nothing_is_said():
    assert lines(REDUCE, mesh=None) == [] and lines() == []
    assert lines(replace(GATHER, group_size=1, axes=())) == []


def test_the_text_and_the_page_say_the_same():
    found = Ledger((REDUCE, GATHER), mesh={"fsdp": 2, "tensor": 8}, target="gpu:h100:2x8")
    page = "".join(str(section.body) for section in ledgers.sections(found))
    for line in axis_lines(found):
        assert f"\n{line}\n" in ledger_text(found) + "\n" and f"<li>{line}</li>" in page


def test_of_a_ring_of_16_over_two_hosts_an_eighth_leaves_a_host():
    (line,) = lines(replace(GATHER, axes=("fsdp", "tensor"), group_size=16))
    assert line.endswith("between hosts (NDR InfiniBand): 100 % of the wire bytes, 12.5 % of it leaves a host")


def test_how_much_of_an_axis_a_schedule_can_hide_is_said_where_every_text_tells():
    hidden, blocking = replace(GATHER, is_over_products=True), replace(SCATTER, is_over_products=False)
    assert lines(hidden, blocking)[0].endswith(": 100 % of the wire bytes, 33.3 % of it overlaps matrix products")
    assert lines(blocking)[0].endswith(": 100 % of the wire bytes, none of it overlaps matrix products")
    assert lines(hidden, SCATTER)[0].endswith(": 100 % of the wire bytes")
