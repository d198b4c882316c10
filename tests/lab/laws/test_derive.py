"""Laws of programs that are written down here, whose transfers are known at every size: nothing is compiled."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import ceil

import pytest

from lab.core.ledger import Kind, Memory, Phase
from lab.laws.derive import About, Start, derived
from lab.laws.evaluate import OutsideLaw
from lab.laws.formula import text
from lab.laws.law import Law
from lab.laws.measurement import Argument, Measurement, Product, Refusal, Site, Split
from lab.laws.verify import checked, verified, without_totals
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError

ABOUT = About("step.py:build", "cpu:2", "cpu", None, "jax")
START = Start({"fsdp": 2, "layers": 4, "embed": 64}, Axes.of({"fsdp": 2}))
GATHER = Site(
    Kind.ALL_GATHER,
    ("fsdp",),
    True,
    Phase.FORWARD,
    "mlp",
    "layer",
    "step.py:7",
    "mlp/dot",
    "bf16",
    False,
    None,
    2,
    0,
    0,
    False,
    False,
    False,
)


def measurement(sizes, *sites, flops=0, padded=1):
    f, D = sizes["fsdp"], sizes["embed"]
    held = 4 * D * D // f
    return Measurement(
        tuple(replace(site, group_size=f) for site in sites),
        (Product("mlp/dot", "mlp", Phase.FORWARD, flops),) if flops else (),
        (Argument("w", held),),
        (Split("argument w, dim 0", ("fsdp",), (D,)),),
        flops or None,
        Memory(held, 0, 0, 0, None),
        (),
        True,
    )


def gathers(sizes, name="mlp/dot", share=Fraction(1)):
    D, L = sizes["embed"], sizes["layers"]
    return replace(GATHER, op_name=name, payload_bytes=2 * D * D, executions=int(L * share))


def law_of(program, start=START) -> Law:
    asked = []

    def measure(some):
        asked.extend(dict(sizes) for sizes in some)
        return [program(sizes) for sizes in some]

    return derived(ABOUT, start, measure)[0]


def test_a_transfer_has_laws_of_payload_executions_and_group():
    law = law_of(lambda sizes: measurement(sizes, gathers(sizes)))
    (term,) = law.terms
    assert (text(term.payload), text(term.executions), text(term.group)) == ("2 * embed^2", "layers", "fsdp")
    assert text(law.memory["arguments"]) == "4 * embed^2 / fsdp"
    assert [each.text for each in law.conditions] == ["embed % fsdp == 0"]
    assert not [each for each in law.refused if each.kind]


def test_names_that_move_with_sizes_are_not_what_is_matched():
    """A combiner names a transfer after either of two."""

    def program(sizes):
        return measurement(sizes, gathers(sizes, "other" if sizes["layers"] > 4 else "mlp/dot"))

    (term,) = law_of(program).terms
    assert (term.level, text(term.executions)) == (2, "layers")


def test_what_is_joined_at_some_sizes_only_is_a_sum_of_what_others_are():
    """At four layers two gathers of other scopes are one, named after the first: that one seems to stay as layers
    double."""

    def program(sizes):
        up, down = (replace(gathers(sizes, scope), scope=scope) for scope in ("up", "down"))
        alone = replace(gathers(sizes, "out"), scope="out")
        if sizes["layers"] == 4:
            return measurement(sizes, alone, replace(up, executions=2 * up.executions))
        return measurement(sizes, alone, up, down)

    law = law_of(program)
    assert [text(term.executions) for term in law.terms] == ["3 * layers"]
    assert not [each for each in law.refused if each.kind]


def test_payloads_whose_order_changes_under_one_name_are_terms_of_their_own():
    """The matrix is smaller than the columns at 64, as large at 128, and larger beyond."""

    def program(sizes):
        D, L = sizes["embed"], sizes["layers"]
        sent = Counter({2 * D * D: 3}) + Counter({256 * D: L})
        large = sorted(sent, reverse=True)
        return measurement(
            sizes,
            *(replace(GATHER, payload_bytes=n, executions=sent[n], rank=large.index(n)) for n in sent),
        )

    law = law_of(program)
    found = {(text(term.payload), text(term.executions)) for term in law.terms}
    assert found == {("2 * embed^2", "3"), ("256 * embed", "layers")}


def test_what_depends_on_data_is_refused_by_name_and_nothing_else_is():
    def program(sizes):
        loop = replace(gathers(sizes, "while"), scope="search", executions=None)
        return measurement(sizes, gathers(sizes), loop)

    law = law_of(program)
    (refused,) = [each for each in law.refused if each.kind]
    assert (refused.what, refused.reason) == ("all_gather over fsdp, search", "how often it runs depends on the data")
    assert [term.scope for term in law.terms] == ["mlp"]


def test_an_algorithm_chosen_by_size_is_refused_not_fitted():
    def program(sizes):
        many = replace(gathers(sizes), payload_bytes=min(2 * sizes["embed"] ** 2, 10_000))
        return measurement(sizes, many)

    law = law_of(program)
    assert law.terms == ()
    (refused,) = [each for each in law.refused if each.kind]
    assert "no sum of up to 3 powers of embed" in refused.reason
    assert refused.share == 1.0


def test_a_held_out_size_that_refutes_a_law_is_not_forgotten():
    """Products are padded to multiples of 8 a device: the law then says where it holds, and is equal there."""

    def program(sizes):
        f, L, D = sizes["fsdp"], sizes["layers"], sizes["embed"]
        flops = 2 * L * D * 8 * ceil(D / f / 8)
        return measurement(sizes, gathers(sizes), flops=flops)

    law = verified(ABOUT, START, lambda some: [program(sizes) for sizes in some], lambda devices: devices <= 64)
    assert text(law.flops) == "2 * embed^2 * layers / fsdp"
    assert [each.text for each in law.flops_where] == ["embed % (16 * fsdp) == 0"]
    assert [check.is_equal for check in law.checks] == [True, True, True, True]
    odd, mixed, large, _ = (dict(check.sizes) for check in law.checks)
    assert odd["fsdp"] == 3
    assert odd["embed"] % 2
    assert mixed["embed"] % (16 * mixed["fsdp"]) == 0
    at_odd, at_large = law.at(odd), law.at(large)
    assert (at_odd["flops"], at_large["flops"]) == (None, program(large).flops)


def test_a_dim_of_as_many_rows_a_device_asks_for_nothing():
    def program(sizes):
        rows = Split("argument x, dim 0", ("fsdp",), (6 * sizes["fsdp"],))
        found = measurement(sizes, gathers(sizes))
        return replace(found, splits=(*found.splits, rows))

    assert [each.text for each in law_of(program).conditions] == ["embed % fsdp == 0"]


def test_what_is_rounded_up_says_which_size_has_to_divide():
    """Room for five quarters of a share of the tokens: compiled sizes tell that neither layers nor columns matter."""
    start = Start({"fsdp": 2, "layers": 4, "embed": 64, "tokens": 128}, Axes.of({"fsdp": 2}))

    def program(sizes):
        f, L, D, T = sizes["fsdp"], sizes["layers"], sizes["embed"], sizes["tokens"]
        routed = replace(GATHER, payload_bytes=2 * D * ceil(5 * T / 4 / 16), executions=L, group_size=f)
        return measurement(sizes, routed)

    law = verified(ABOUT, start, lambda some: [program(sizes) for sizes in some], lambda devices: devices <= 64)
    (term,) = law.terms
    assert text(term.payload_of_step) == "5 * embed * layers * tokens / 32"
    assert [each.text for each in term.where] == ["tokens % 64 == 0"]
    assert [(check.is_equal, check.under_law == check.wire_bytes) for check in law.checks] == [(True, True)] * 4
    assert dict(law.checks[0].sizes)["layers"] % 2 == 1


def test_a_transfer_that_rounds_up_is_not_refuted_where_its_law_is_silent():
    start = Start({"fsdp": 2, "layers": 4, "embed": 64}, Axes.of({"fsdp": 2}))

    def program(sizes):
        rounded = replace(GATHER, payload_bytes=64 * ceil(sizes["embed"] / 64), executions=1)
        return measurement(sizes, rounded)

    law = verified(ABOUT, start, lambda some: [program(sizes) for sizes in some], lambda devices: devices <= 64)
    found = Measurement((replace(GATHER, payload_bytes=128, executions=1),), (), (), (), None, None, (), True)
    check, wrong, _ = checked(law, start.mesh, {"fsdp": 2, "layers": 4, "embed": 66}, found)
    assert (check.is_equal, check.under_law, wrong) == (True, 0, [])


def test_memory_that_is_the_largest_of_several_sums_is_refused_and_what_stays_is_a_bound():
    """A step holds columns that do not grow with the matrix, until the matrix is larger."""

    def program(sizes):
        D, L = sizes["embed"], sizes["layers"]
        held = 4 * D * D // sizes["fsdp"]
        memory = Memory(held, 8 + 4 * D, max(4096 * D, D * D), 0, held + 8 + 4 * D + max(4096 * D, D * D * L))
        return replace(measurement(sizes, gathers(sizes)), memory=memory, outputs=(Argument("result 0", 4 * D),))

    law = verified(ABOUT, START, lambda some: [program(sizes) for sizes in some], lambda devices: devices <= 64)
    assert {name: text(of) for name, of in law.memory.items() if name in ("arguments", "outputs")} == {
        "arguments": "4 * embed^2 / fsdp",
        "outputs": "4 * embed + 8",
    }
    assert "peak" not in law.memory
    assert text(law.memory_at_least["peak"]) == "4 * embed^2 / fsdp + 4 * embed + 8"
    assert [each.what for each in law.refused if "peak" in each.what] == ["memory: peak"]
    assert all(check.is_equal for check in law.checks)


def test_a_size_that_the_program_does_not_use_is_noted():
    start = replace(START, sizes={**START.sizes, "heads": 4})
    assert law_of(lambda sizes: measurement(sizes, gathers(sizes)), start).notes == (
        "heads changes nothing that was measured: does the program use it?",
    )


@pytest.mark.parametrize("name", ["[0]['layers'][{}]['up']", "[0].layers[{}]", "[0][{}]['up']", "[0][{}]"])
def test_arguments_of_a_list_of_layers_have_a_law_together(name):
    def program(sizes):
        one = measurement(sizes, gathers(sizes))
        rows = Argument("[1]", 2 * sizes["embed"])
        layers = tuple(replace(one.arguments[0], name=name.format(i)) for i in range(sizes["layers"]))
        held = Memory(sum(each.bytes for each in (*layers, rows)), 0, 0, 0, None)
        return replace(one, arguments=(*layers, rows), memory=held)

    law = law_of(program)
    assert text(law.memory["arguments"]) == "4 * embed^2 * layers / fsdp + 2 * embed"
    alone = name == "[0][{}]"
    assert (
        text(law.arguments[name.format(0 if alone else "*")]) == "4 * embed^2" + " * layers" * (not alone) + " / fsdp"
    )


def test_memory_that_a_last_check_refutes_is_no_part_of_the_law():
    sizes = {"fsdp": 4, "layers": 8, "embed": 128}
    law = law_of(lambda sizes: measurement(sizes, gathers(sizes)))
    other = measurement(sizes, gathers(sizes))
    check, wrong, _ = checked(law, START.mesh, sizes, replace(other, memory=replace(other.memory, temporaries=77)))
    assert (wrong, [each.what for each in check.differences]) == ([], ["memory: temporaries"])
    asks = replace(law, flops=law.memory["arguments"], flops_where=law.conditions)
    wrong_flops = replace(check.differences[0], what="FLOPs")
    assert without_totals(asks, replace(check, differences=(wrong_flops,)))[0].flops_where == ()
    kept, check = without_totals(law, check)
    assert (check.is_equal, "temporaries" in law.memory, "temporaries" in kept.memory) == (True, True, False)
    assert kept.refused[-1].reason.endswith("by the law 0, compiled 77")


@pytest.mark.parametrize("name", ["embed", "width"])
def test_a_choice_of_the_smaller_array_is_met_by_sizes_of_other_ratios(name):
    """Doubled one at a time, and grown together, columns and widths stay within eight times each other."""
    start = Start({"fsdp": 2, "layers": 4, "embed": 64, "width": 64}, Axes.of({"fsdp": 2}))
    other = {"embed": "width", "width": "embed"}[name]

    def program(sizes):
        smaller = name if sizes[name] <= 8 * sizes[other] else other
        gather = replace(GATHER, payload_bytes=4 * sizes[smaller], executions=1, group_size=sizes["fsdp"])
        return Measurement((gather,), (), (), (), None, None, (), True)

    law = verified(ABOUT, start, lambda some: [program(sizes) for sizes in some], lambda devices: devices <= 64)
    assert law.terms == ()
    assert [each.kind for each in law.refused if each.kind] == [Kind.ALL_GATHER]


def test_a_law_that_comes_to_no_count_where_its_conditions_hold_is_refuted():
    """Doubled it is half of the layers, and one more where they are odd."""

    def program(sizes):
        L = sizes["layers"]
        return measurement(sizes, replace(gathers(sizes), executions=(L + 1) // 2))

    start = replace(START, sizes=START.sizes | {"layers": 32})
    law = verified(ABOUT, start, lambda some: [program(sizes) for sizes in some], lambda devices: devices <= 64)
    assert len(law.checks) == 4
    for check in law.checks:
        terms = law.at(check.sizes)["terms"]
        assert [term["executions"] for term in terms] in ([], [(check.sizes["layers"] + 1) // 2])


def test_a_law_that_fewer_compiles_were_held_against_says_so():
    def program(sizes):
        is_first = sizes["embed"] in (64, 128) and sizes["layers"] in (4, 8) and sizes["fsdp"] in (2, 4)
        return measurement(sizes, gathers(sizes)) if is_first else Refusal("memory")

    law = verified(ABOUT, START, lambda some: [program(sizes) for sizes in some], lambda devices: devices <= 64)
    assert law.checks == ()
    assert "held against 0 compiles, not 3" in law.notes[0]


def test_sizes_that_degrees_outgrow_are_met_by_the_first_sizes_on_many_devices():
    """Heads are copied where there are fewer than devices; in all other compiles there are as many or more."""
    start = Start({"tensor": 2, "heads": 8}, Axes.of({"tensor": 2}))

    def program(sizes):
        held = max(sizes["heads"], sizes["tensor"])
        gather = replace(GATHER, axes=("tensor",), payload_bytes=64 * held, executions=1, group_size=sizes["tensor"])
        return Measurement((gather,), (), (), (), None, None, (), True)

    law = verified(ABOUT, start, lambda some: [program(sizes) for sizes in some], lambda devices: devices <= 64)
    assert law.terms == ()
    assert "1,024 at tensor=16, where the formula" in next(each.reason for each in law.refused if each.kind)


def alone_over(sizes, is_gathered_by_one=False):
    """A gather over fsdp of what is split over both axes, and a sum over tensor; where fsdp is 1 nothing is gathered."""
    f, t, D, L = sizes["fsdp"], sizes["tensor"], sizes["embed"], sizes["layers"]
    gather = replace(GATHER, payload_bytes=2 * D * D // t, executions=L, group_size=f)
    total = replace(GATHER, kind=Kind.ALL_REDUCE, axes=("tensor",), payload_bytes=2 * D, executions=L, group_size=t)
    there = [each for each in (gather, total) if each.group_size > 1]
    if f == 1 and is_gathered_by_one:
        there.append(replace(total, payload_bytes=4 * D))
    return Measurement(tuple(there), (), (), (Split("argument w, dim 0", ("tensor",), (D,)),), None, None, (), True)


def test_groups_of_one_device_send_nothing_where_a_compile_says_so():
    start = Start({"fsdp": 2, "tensor": 2, "layers": 4, "embed": 64}, Axes.of({"fsdp": 2, "tensor": 2}))

    def law_of(program):
        return verified(ABOUT, start, lambda some: [program(sizes) for sizes in some], lambda devices: devices <= 64)

    law = law_of(alone_over)
    assert [(v.name, v.least) for v in law.variables if v.is_axis] == [("fsdp", 1), ("tensor", 1)]
    sizes = {"fsdp": 1, "tensor": 8, "layers": 5, "embed": 128}
    assert [term["kind"] for term in law.at(sizes)["terms"]] == ["all_reduce"]
    assert law.at(sizes)["payload_bytes"] == 5 * 2 * 128
    with pytest.raises(OutsideLaw, match="fsdp=1, tensor=1: one degree of 1 at a time was compiled"):
        law.at(sizes | {"tensor": 1})
    law = law_of(partial(alone_over, is_gathered_by_one=True))
    assert [(v.name, v.least) for v in law.variables if v.is_axis] == [("fsdp", 2), ("tensor", 1)]
    assert "fsdp=1 is another program: all_reduce over tensor is 8 x" in law.notes[0]


def test_a_term_that_no_size_explains_is_refuted_and_then_refused():
    """Right at every size that is doubled, wrong at all others."""

    def program(sizes):
        L = sizes["layers"]
        return measurement(
            sizes, replace(gathers(sizes), executions=L if L in (4, 8) and sizes["embed"] in (64, 128) else 1)
        )

    law = verified(ABOUT, START, lambda some: [program(sizes) for sizes in some], lambda devices: devices <= 64)
    assert law.terms == ()
    assert [each.kind for each in law.refused if each.kind] == [Kind.ALL_GATHER]


def test_sizes_that_the_program_refuses_are_left_out():
    def program(sizes):
        return Refusal("layers: even, please") if sizes["layers"] == 8 else measurement(sizes, gathers(sizes))

    law = law_of(program)
    assert text(law.terms[0].executions) == "layers"
    assert {each.sizes["layers"] for each in law.compiled} == {4, 16}


def test_a_program_that_is_refused_at_first_says_why():
    with pytest.raises(UsageError, match=r"refused at the first sizes \(fsdp=2, layers=4, embed=64\): no"):
        law_of(lambda sizes: Refusal("no"))
    with pytest.raises(UsageError) as raised:
        law_of(lambda sizes: Refusal("no", ("File step.py, line 7",)))
    assert raised.value.__notes__ == ["File step.py, line 7"]
    with pytest.raises(UsageError, match="embed cannot be varied"):
        law_of(lambda sizes: measurement(sizes, gathers(sizes)) if sizes["embed"] == 64 else Refusal("64 alone"))


def test_terms_that_are_right_as_a_sum_alone_become_one():
    """Four layers are three in a loop that is written out three times and one behind it; sixteen, fifteen and one."""

    def program(sizes):
        L, one = sizes["layers"], replace(GATHER, payload_bytes=4 * sizes["embed"] ** 2)
        sites = replace(one, op_name="loop", executions=L - L % 3), replace(one, executions=L % 3)
        return measurement(sizes, *(site for site in sites if site.executions))

    law = verified(ABOUT, START, lambda some: [program(sizes) for sizes in some], lambda devices: devices <= 64)
    assert [check.is_equal for check in law.checks] == [True] * 4
    for check in law.checks:
        (term,) = law.at(check.sizes)["terms"]
        assert term["executions"] == check.sizes["layers"]


def test_a_dim_that_is_split_at_some_sizes_alone_is_noted():
    """The longer of two dims is split: neither has to divide everywhere."""
    start = replace(START, sizes=START.sizes | {"width": 64})

    def program(sizes):
        longer = int(sizes["width"] > sizes["embed"])
        dims = [Split(f"argument w, dim {dim}", (), (sizes[name],)) for dim, name in enumerate(("embed", "width"))]
        found = measurement(sizes, gathers(sizes))
        return replace(found, splits=(*dims, replace(dims[longer], axes=("fsdp",))))

    law = law_of(program, start)
    assert [each.text for each in law.conditions] == []
    assert law.notes == tuple(
        f"argument w, dim {dim} is split over fsdp at some sizes alone: where it has to divide is not told"
        for dim in (0, 1)
    )
    assert law_of(lambda sizes: measurement(sizes, gathers(sizes))).notes == ()


def test_a_mesh_of_the_programs_own_has_a_law_without_its_conditions():
    """All devices, two of which share what is split over `rows`."""

    def program(sizes):
        half = sizes["fsdp"] // 2
        gather = replace(GATHER, axes=("rows",), payload_bytes=2 * sizes["embed"], executions=1, group_size=half)
        return Measurement((gather,), (), (), (Split("argument w, dim 0", ("rows",), (64,)),), None, None, (), True)

    law = law_of(program, replace(START, sizes={"fsdp": 4, "embed": 64}))
    assert [(term.axes, text(term.group)) for term in law.terms] == [(("rows",), "fsdp / 2")]
    assert (law.conditions, len(law.notes), "of a mesh of the program's own" in law.notes[0]) == ((), 1, True)
