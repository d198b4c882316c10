"""Which line of a stack is shown."""

from itertools import permutations

from lab.core.frame import Frame
from lab.hlo.origins import Origins


def frame(written: str) -> Frame:
    """`model.py:8 Block.up`; `flax/` begins a file of an installed package."""
    place, _, function = written.partition(" ")
    file, _, line = place.rpartition(":")
    return Frame(file, int(line), function, file.startswith(("flax/", "maxtext/")))


def labels(*stacks: str) -> list[str | None]:
    """Stacks as `inner < outer`."""
    found = [tuple(map(frame, stack.split(" < "))) if stack else () for stack in stacks]
    origins = Origins.of(found)
    return [origins.shown_line(stack)[0] for stack in found]


EINSUM = "helpers.py:5 einsum"


def test_a_helper_is_shown_by_its_callers():
    assert labels(f"{EINSUM} < model.py:8 q", f"{EINSUM} < model.py:9 k", "model.py:12 norm") == [
        "model.py:8 q via helpers.py:5",
        "model.py:9 k via helpers.py:5",
        "model.py:12 norm".partition(" ")[0],
    ]


def test_a_line_that_only_a_helper_reaches_is_left_with_it():
    dense = "linears.py:110 product < linears.py:209 Dense.__call__"
    assert labels(
        f"{dense} < attentions.py:839 Attention.out < decoder.py:50 Layer.__call__",
        f"{dense} < attentions.py:700 Attention.query < decoder.py:50 Layer.__call__",
        f"{dense} < linears.py:400 Mlp.__call__ < decoder.py:60 Layer.__call__",
    ) == [
        "attentions.py:839 Attention.out via linears.py:110",
        "attentions.py:700 Attention.query via linears.py:110",
        "linears.py:400 Mlp via line 110",
    ]


def test_a_wrapper_of_a_wrapper_is_left_as_well():
    placed, own = "sharding.py:50 place", "attentions.py:300 Attention.place"
    assert labels(
        f"{placed} < {own} < attentions.py:710 Attention.__call__",
        f"{placed} < {own} < attentions.py:720 Attention.__call__",
        f"{placed} < decoder.py:9 Layer.__call__",
    ) == [
        "attentions.py:710 Attention via sharding.py:50",
        "attentions.py:720 Attention via sharding.py:50",
        "decoder.py:9 Layer via sharding.py:50",
    ]


def test_a_block_of_several_lines_that_is_called_twice_is_no_wrapper():
    stacks = [f"block.py:{line} block < model.py:{caller} model" for line in (8, 9) for caller in (30, 31)]
    assert labels(*stacks) == ["block.py:8", "block.py:8", "block.py:9", "block.py:9"]


def test_a_wrapper_far_outside_does_not_stand_for_a_line_that_is_clear():
    stacks = [f"mlp.py:{line} Mlp.__call__ < util.py:3 residual < model.py:{line} model" for line in (8, 9)]
    assert labels(*stacks) == ["mlp.py:8", "mlp.py:9"]


def test_a_wrapper_around_the_shown_line_is_not_left():
    inner = [f"{EINSUM} < attention.py:{line} query < attention.py:{line + 9} attention" for line in (12, 13)]
    stacks = [f"{one} < util.py:3 residual < model.py:{line} model" for one, line in zip(inner, (50, 60), strict=True)]
    assert labels(*stacks) == [f"attention.py:{line} query via helpers.py:5" for line in (12, 13)]


def test_a_helper_with_one_caller_is_shown_itself():
    assert labels(f"{EINSUM} < model.py:8 q < model.py:30 model", "model.py:31 model") == [
        "helpers.py:5",
        "model.py:31",
    ]


def test_in_one_file_there_are_lines_alone():
    assert labels("a.py:5 einsum < a.py:8 q < a.py:20 step", "a.py:5 einsum < a.py:9 k < a.py:20 step") == [
        "a.py:8 via line 5",
        "a.py:9 via line 5",
    ]


def test_lines_of_packages_do_not_count_beside_the_users():
    linear = "flax/linear.py:422 Linear.__call__"
    assert labels(
        f"{linear} < model.py:8 up", f"{linear} < model.py:9 down", "flax/linear.py:430 bias < model.py:9 d"
    ) == [
        "model.py:8",
        "model.py:9",
        "model.py:9",
    ]


def test_of_a_program_that_is_installed_the_lines_of_packages_count():
    dense, step = "flax/linear.py:422 Dense.__call__ < flax/module.py:9 wrapped", "train.py:20 step"
    lines = [f"maxtext/attentions.py:{line} Attention.project" for line in (700, 710, 720)]
    others = [f"maxtext/decoders.py:{line} Decoder.__call__ < {step}" for line in (1, 2, 3)]
    assert labels(*(f"{dense} < {one} < {step}" for one in lines), *others) == [
        *(f"maxtext/attentions.py:{line} Attention.project via flax/linear.py:422" for line in (700, 710, 720)),
        *(f"maxtext/decoders.py:{line}" for line in (1, 2, 3)),
    ]


def test_nothing_is_shown_of_no_stack():
    assert labels("", "a.py:1 f") == [None, "a.py:1"]


def test_the_order_of_transfers_does_not_matter():
    stacks = f"{EINSUM} < m.py:8 q", f"{EINSUM} < m.py:9 k", f"{EINSUM} < helpers.py:9 project < m.py:10 v", "m.py:1 n"
    expected = dict(zip(stacks, labels(*stacks), strict=True))
    for order in permutations(stacks):
        assert dict(zip(order, labels(*order), strict=True)) == expected
