"""Layout tiles of a TPU's arguments, counted from the entry's layouts."""

import pytest

from lab.hlo.padding import argument_padding


def entry(*arguments: str) -> str:
    return (
        "HloModule jit_f, is_scheduled=true, "
        f"entry_computation_layout={{({', '.join(arguments)})->f32[9,9]{{1,0:T(8,128)}}}}\n\nENTRY main {{\n"
    )


@pytest.mark.parametrize(
    ("argument", "padding"),
    [
        ("f32[64,300]{1,0:T(8,128)}", 64 * 84 * 4),
        ("f32[300,64]{0,1:T(8,128)}", 64 * 84 * 4),
        ("f32[2,64,2,2,64]{4,3,2,1,0:T(2,128)}", 2 * 64 * 2 * 2 * 64 * 4),
        ("bf16[3,10,128]{2,1,0:T(8,128)(2,1)}", 3 * 6 * 128 * 2),
        ("s32[]{:T(128)}", 508),
        ("f32[256]{0:T(256)}", 0),
        ("f32[64,300]{1,0}", 0),
        ("f32[64,300]{1,0:T(8,128)S(5)}", 0),
        ("bf16[64,300]{1,0:T(8,128)(2,1)S(5)}", 0),
    ],
)
def test_the_most_minor_dims_are_filled_up_to_whole_tiles(argument, padding):
    assert argument_padding(entry(argument)) == padding


def test_arguments_add_up_and_results_do_not_count():
    assert argument_padding(entry("s32[]{:T(128)}", "/*index=5*/s32[]{:T(128)}")) == 2 * 508


def test_a_text_without_an_entry_layout_has_none():
    assert argument_padding("HloModule jit_f\n\nENTRY main {\n") == 0
