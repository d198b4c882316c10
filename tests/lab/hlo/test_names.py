"""Phase and scope from op_names."""

import pytest

from lab.hlo.names import phase, scope, within


@pytest.mark.parametrize("depth, found", [(1, "mlp"), (50, "mlp"), (51, "jvp(mlp)")])
def test_names_are_looked_for_in_fifty_transformations_of_one_another(depth, found):
    assert scope(f"jit(f)/{'jvp(' * depth}mlp{')' * depth}/dot_general") == found


@pytest.mark.parametrize(
    ("op_name", "expected"),
    [
        ("jit(step)/jvp()/while/body/closed_call/layers/mlp/up/dot_general", "layers/mlp/up"),
        ("jit(step)/call_exported/jit(served)/mlp/dot_general", "mlp"),
        (
            "jit(step)/transpose(jvp(layers))/while/body/checkpoint/rematted_computation/mlp/up/dot_general",
            "layers/mlp/up",
        ),
        ("jit(step)/jit(shmap_body)/jvp(layers/mlp)/psum_invariant", "layers/mlp"),
        ("jit(step)/shard_map/loss/psum", "loss"),
        ("jit(f)/layers/(up:down)", "layers"),
        ("jit(f)/branch_0_fun/head/add", "head"),
        ("jit(f)/jvp(loss)/mul;jit(f)/transpose(jvp(loss))/sub", "loss"),
        ("jit(f)/mlp/ij,jk->ik/dot_general", "mlp"),
        ("jit(f)/layers/mlp/layers/mlp/checkpoint/dot_general", "layers/mlp"),
        ("jit(f)/head/layers/checkpoint/dot_general", "head/layers"),
        ("broadcast.1", ""),
        (None, ""),
    ],
)
def test_scope_keeps_what_the_user_named(op_name, expected):
    assert scope(op_name) == expected


@pytest.mark.parametrize(
    ("op_name", "differentiated", "expected"),
    [
        ("jit(f)/jvp(mlp)/dot_general", True, "forward"),
        ("jit(f)/transpose(jvp(mlp))/dot_general", True, "backward"),
        ("jit(f)/adam/mul", True, "update"),
        ("jit(f)/dot_general", False, "forward"),
        ("jit(f)/transpose", False, "forward"),
        (None, True, None),
    ],
)
def test_phase_follows_from_the_name_stack(op_name, differentiated, expected):
    assert phase(op_name, differentiated) == expected


@pytest.mark.parametrize(
    ("op_name", "loops", "expected"),
    [
        # JAX lowers the inner loop's body once, and names it after the first stack.
        (
            "jit(f)/jvp(dense)/while/body/core/while/body/keys/ppermute",
            ("jit(f)/transpose(jvp(layers))/while", "jit(f)/transpose(jvp(layers))/while/body/core/while"),
            "jit(f)/transpose(jvp(layers))/while/body/core/while/body/keys/ppermute",
        ),
        # The loop inside has the first one's name, too.
        (
            "jit(f)/dense/while/body/core/while/body/keys/ppermute",
            ("jit(f)/layers/while", "jit(f)/dense/while/body/core/while"),
            "jit(f)/layers/while/body/core/while/body/keys/ppermute",
        ),
        ("jit(f)/layers/while/body/up/dot", ("jit(f)/layers/while",), "jit(f)/layers/while/body/up/dot"),
        # Of three loops XLA names the innermost as if it were in the outermost, or not at all.
        (
            "jit(f)/while/body/jvp(layers)/while/body/up/dot",
            ("jit(f)/while", "jit(f)/while/body/while", "jit(f)/while/body/jvp(layers)/while"),
            "jit(f)/while/body/jvp(layers)/while/body/up/dot",
        ),
        (
            "jit(f)/while/body/jvp(layers)/while/body/up/dot",
            ("jit(f)/while", "jit(f)/while/body/while", ""),
            "jit(f)/while/body/jvp(layers)/while/body/up/dot",
        ),
        # An iteration of it is peeled off.
        (
            "jit(f)/while/body/jvp(layers)/while/body/up/dot",
            ("jit(f)/while", "jit(f)/while/body/while"),
            "jit(f)/while/body/jvp(layers)/while/body/up/dot",
        ),
        # What compilers moved in from outside of all loops.
        ("jit(f)/embedding/gather", ("jit(f)/layers/while",), "jit(f)/embedding/gather"),
        ("jit(f)/dense/while/body/up/dot", ("jit(f)/fori_loop",), "jit(f)/dense/while/body/up/dot"),
    ],
)
def test_what_is_lowered_once_for_several_loops_is_named_after_the_loop_that_runs_it(op_name, loops, expected):
    assert within(op_name, loops) == expected
