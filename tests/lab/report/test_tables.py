import re
from dataclasses import replace

import pytest

from lab.core.frame import Frame
from lab.core.ledger import Kind, Ledger, Memory, Part, SubAxis, Transfer
from lab.report.tables import facts, ledger_text

GATHER = Transfer(
    Kind.ALL_GATHER, ("fsdp",), 8, 4, "bf16", 1_000_000, phase="forward", scope="layers_0/mlp", origin="model.py:88"
)
MB = 10**6
REDUCE = Transfer(Kind.ALL_REDUCE, ("data",), 2, 1, "f32", 4)


def row(text: str, start: str) -> list[str]:
    """The cells of the only line that starts so."""
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return line.split()


def ledger(*transfers: Transfer, **rest) -> Ledger:
    return Ledger(transfers, "step", devices=16, mesh={"data": 2, "fsdp": 8}, **rest)


def test_the_headline_names_devices_mesh_and_target():
    assert ledger_text(ledger(target="cpu:16")).splitlines()[0] == "step: 16 devices, mesh data=2,fsdp=8, cpu:16"


def test_four_gathers_of_a_megabyte_over_eight_send_3_5_megabytes():
    assert row(ledger_text(ledger(GATHER)), "all_gather")[:8] == [
        "all_gather",
        "fsdp",
        "1",
        "4",
        "1",
        "MB",
        "3.5",
        "MB",
    ]


def test_arrays_are_counted_beside_executions_where_the_compiler_combined_some():
    both = replace(GATHER, parts=(Part("bf16", 400_000), Part("bf16", 600_000)))
    text = ledger_text(ledger(both, REDUCE))
    assert [row(text, start)[2:5] for start in ("all_gather", "all_reduce")] == [["1", "4", "8"], ["1", "1", "1"]]
    assert row(text, "all  ")[1:3] == ["5", "9"]
    assert "arrays" not in ledger_text(ledger(GATHER, REDUCE))


def test_totals_are_sorted_by_bytes_and_everything_stands_last():
    *_, totals = ledger_text(ledger(REDUCE, GATHER)).split("\n\ntotal")
    assert [line.split()[0] for line in totals.splitlines()[2:5]] == ["fsdp", "data", "all"]


def test_layers_that_differ_by_number_share_a_row_of_two_sites():
    second = Transfer(
        Kind.ALL_GATHER, ("fsdp",), 8, 4, "bf16", 1_000_000, phase="forward", scope="layers_1/mlp", origin="model.py:88"
    )
    cells = row(ledger_text(ledger(GATHER, second)), "all_gather")
    assert cells[2:4] == ["2", "8"]
    assert "layers_*/mlp" in cells


def test_rows_stand_by_wire_bytes_the_largest_first():
    text = ledger_text(ledger(REDUCE, GATHER))
    assert text.index("all_gather") < text.index("all_reduce")


def test_a_column_that_says_nothing_is_left_out():
    assert "origin" in ledger_text(ledger(GATHER))
    assert "origin" not in ledger_text(ledger(REDUCE))


def test_axes_that_are_not_known_show_the_group_size():
    assert row(ledger_text(ledger(Transfer(Kind.ALL_REDUCE, None, 4, 1, "f32", 8))), "all_reduce")[1:3] == ["?", "(4)"]


def test_a_part_of_an_axis_stands_by_its_name_in_both_tables():
    half = Transfer(Kind.ALL_REDUCE, None, 4, 1, "f32", 8, sub_axes=(SubAxis("fsdp", 8, stride=2, size=4),))
    text = ledger_text(ledger(half, replace(GATHER, axes=None)))
    assert row(text, "all_reduce")[1:5] == ["fsdp[4", "of", "8,", "stride"] and "?" in row(text, "all_gather")
    assert "fsdp[4 of 8, stride 2]  all_reduce " in text
    assert ledger(half).to_json()["transfers"][0]["axes"] is None and list(
        ledger(half).to_json()["totals"]["by_axes"]
    ) == ["fsdp[4 of 8, stride 2]"]


def test_a_permute_shows_its_shift():
    assert "fsdp shift 1" in ledger_text(ledger(Transfer(Kind.COLLECTIVE_PERMUTE, ("fsdp",), 8, 1, "f32", 8, shift=1)))


def test_a_transfer_in_a_branch_says_so():
    assert "all_reduce if taken" in ledger_text(
        ledger(Transfer(Kind.ALL_REDUCE, ("data",), 2, 1, "f32", 8, conditional=True))
    )


def test_unknown_executions_make_the_total_a_lower_bound():
    unknown = Transfer(Kind.ALL_REDUCE, ("data",), 2, None, "f32", 4)
    text = ledger_text(ledger(GATHER, unknown))
    assert row(text, "all_reduce")[2:4] == ["1", "?"]
    assert row(text, "all  ")[1:3] == [">=", "4"]


def test_memory_flops_and_notes_follow_the_tables():
    text = ledger_text(ledger(REDUCE, flops=2_000_000, memory=Memory(1000, 2000, 3000, 500, None), notes=("cut",)))
    assert text.splitlines()[-3:] == [
        "matrix products: 2 MFLOP a step on each device",
        "memory of one device: arguments 1 kB, outputs 2 kB, of which 500 B alias donated arguments, temporaries 3 kB",
        "note: cut",
    ]


def test_a_ledger_without_transfers_says_why():
    text = ledger_text(ledger(notes=("no transfers: one device",)))
    assert text == "step: 16 devices, mesh data=2,fsdp=8\n\nnote: no transfers: one device"


def test_lines_are_never_folded_in_a_pipe():
    long = Transfer(Kind.ALL_REDUCE, ("data",), 2, 1, "f32", 8, scope="a/" * 200)
    assert "a/" * 200 in ledger_text(ledger(long))


def test_markup_in_a_scope_is_printed_as_it_is():
    assert "[red]x[/red]" in ledger_text(
        ledger(Transfer(Kind.ALL_REDUCE, ("data",), 2, 1, "f32", 8, scope="[red]x[/red]"))
    )


def test_printing_a_ledger_prints_its_table():
    assert str(ledger(GATHER)) == ledger_text(ledger(GATHER))


def test_paths_are_relative_to_their_common_folder_which_stands_below_the_headline():
    found = [replace(GATHER, origin=f"/home/me/project/{place}") for place in ("src/model.py:12", "train.py:3")]
    note = "the first at /home/me/project/train.py:3: cast it"
    text = ledger_text(ledger(*found, replace(REDUCE, origin="/v/lib/site-packages/flax/nnx.py:5"), notes=(note,)))
    assert text.splitlines()[1] == "paths are relative to /home/me/project/" and text.count("/home/me/project") == 1
    assert {line.split()[-1] for line in text.splitlines() if line.startswith("all_") and "MB" not in line[-9:]} >= {
        "src/model.py:12",
        "train.py:3",
        "flax/nnx.py:5",
    }
    assert text.endswith("note: the first at train.py:3: cast it")


def test_paths_of_which_one_is_relative_stay_as_they_are():
    text = ledger_text(ledger(GATHER, replace(REDUCE, origin="/home/me/model.py:3")))
    assert "/home/me/model.py:3" in text and "paths are relative" not in text


@pytest.mark.parametrize(
    ("target", "figures", "said"),
    [
        (None, {"peak": 25 * MB}, "temporaries 10 MB, peak 25 MB"),
        (None, {"peak": 21 * MB}, "temporaries 10 MB, peak 21 MB, with 6 MB of temporaries at once"),
        ("gpu:h100:1x8", {"peak": 28 * MB}, "peak 28 MB, with 3 MB of constants"),
        ("tpu:v5e:2x4", {"peak": 28 * MB}, "with 3 MB of constants or of temporaries in on-chip memory (VMEM)"),
        (
            "tpu:v5e:2x4",
            {"peak": 65 * MB, "on_chip": 50 * MB},
            "temporaries 10 MB, peak 65 MB, which counts 50 MB of temporaries in on-chip memory (VMEM) in place of "
            "these",
        ),
    ],
)
def test_memory_adds_up_to_its_peak_or_says_what_it_has_otherwise(target, figures, said):
    memory = Memory(arguments=10 * MB, outputs=8 * MB, temporaries=10 * MB, aliased=3 * MB, **figures)
    (line,) = [line for line in facts(Ledger((), memory=memory, target=target)) if line.startswith("memory of one")]
    assert line.endswith(said)


def test_a_ledger_of_a_known_chip_says_whether_its_peak_fits():
    text = ledger_text(ledger(REDUCE, target="gpu:h100:2x8", memory=Memory(1, 1, 1, 1, 40_402_575_704)))
    assert text.splitlines()[-1].startswith("it fits: the peak of 40.4 GB is 63.4 % of 63.76 GB: by default JAX")


def test_both_lines_of_an_origin_are_relative_and_transfers_of_other_callers_have_rows_of_their_own():
    one, other = (
        replace(
            GATHER,
            scope="",
            function=name,
            origin=f"/home/me/project/model.py:{line} {name} via /home/me/project/lib/helpers.py:5",
            stack=(Frame("/home/me/project/lib/helpers.py", 5, "einsum"), Frame("/home/me/project/model.py", line)),
        )
        for name, line in (("up", 8), ("down", 9))
    )
    text = ledger_text(ledger(one, replace(one, stack=()), other))
    assert text.splitlines()[1] == "paths are relative to /home/me/project/"
    rows = [re.split("  +", row) for row in text.splitlines() if " via " in row]
    assert [(row[2], row[-2:]) for row in rows] == [
        ("2", ["up()", "model.py:8 up via lib/helpers.py:5"]),
        ("1", ["down()", "model.py:9 down via lib/helpers.py:5"]),
    ]


def test_a_line_of_one_file_that_stands_for_a_helper_is_relative_too():
    text = ledger_text(ledger(replace(GATHER, origin="/home/me/project/train.py:8 via line 5")))
    assert "paths are relative to /home/me/project/\n" in text and " train.py:8 via line 5" in text


def test_a_combination_has_no_row_with_arrays_of_the_function_that_it_is_named_after():
    one = replace(GATHER, scope="", function="up")
    both = replace(one, parts=(Part("bf16", 400_000), Part("bf16", 600_000)))
    rows = [re.split("  +", row) for row in ledger_text(ledger(both, one)).splitlines() if row.endswith(one.origin)]
    assert [(row[2], "up()" in row) for row in rows] == [("1", False), ("1", True)]
