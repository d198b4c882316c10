"""Laws of one program under two releases, written down here: nothing is compiled."""

from dataclasses import replace

from lab.core.ledger import Kind
from lab.laws.comparison import Comparison, FormulaDifference
from lab.laws.law import Refused
from tests.lab.laws.test_derive import GATHER, gathers, law_of, measurement

GATHERED = "all_gather over fsdp, mlp, forward"


def of(*programs):
    return Comparison.of(*map(law_of, programs)).differences


def gathering(**changes):
    def program(sizes):
        site = gathers(sizes)
        return measurement(sizes, replace(site, **{name: change(site, sizes) for name, change in changes.items()}))

    return program


def test_the_same_program_has_the_same_law():
    assert of(gathering(), gathering()) == ()


def test_a_formula_that_changes_is_named_with_its_term_and_line():
    assert of(gathering(), gathering(executions=lambda site, sizes: 2 * site.executions)) == (
        FormulaDifference(GATHERED, "executions", "layers", "2 * layers", ("step.py:7",)),
        FormulaDifference(
            GATHERED, "payload of a step", "2 * embed^2 * layers", "4 * embed^2 * layers", ("step.py:7",)
        ),
    )
    halved = gathering(payload_bytes=lambda site, sizes: site.payload_bytes // 2)
    assert [(each.of, each.after) for each in of(gathering(), halved)] == [
        ("payload", "embed^2"),
        ("payload of a step", "embed^2 * layers"),
    ]


def test_a_transfer_that_another_release_does_not_have_is_gone_with_its_formula():
    def summed(sizes):
        total = replace(GATHER, kind=Kind.ALL_REDUCE, scope="", payload_bytes=4 * sizes["embed"], executions=1)
        return measurement(sizes, gathers(sizes), total)

    what = "all_reduce over fsdp, layer, forward"
    assert of(summed, gathering()) == (
        FormulaDifference(what, "transfer", "1 x, 4 * embed B a step", "", ("step.py:7",)),
    )
    (back,) = of(gathering(), summed)
    assert (back.before, back.after) == ("", "1 x, 4 * embed B a step")


def test_another_name_of_the_same_transfer_is_no_other_law():
    moved = gathering(origin=lambda site, sizes: "step.py:9", scope=lambda site, sizes: "attention")
    assert of(gathering(), moved) == ()


def test_flops_arguments_and_what_has_no_law_are_told():
    def heavier(sizes):
        found = gathering()(sizes)
        held = replace(found.arguments[0], bytes=2 * found.arguments[0].bytes)
        memory = replace(found.memory, arguments=held.bytes)
        return replace(found, arguments=(held,), memory=memory, flops=sizes["embed"])

    def lighter(sizes):
        return replace(gathering()(sizes), flops=min(sizes["embed"], 100))

    told = [(each.what, each.before, each.after) for each in of(lighter, heavier)]
    assert told == [
        (
            "FLOPs",
            "no law: no sum of up to 3 powers of embed gives what is compiled (64: 64, 128: 100, 256: 100, 192: 100, 512: 100)",
            "embed",
        ),
        ("bytes of arguments", "4 * embed^2 / fsdp", "8 * embed^2 / fsdp"),
        ("bytes of argument w", "4 * embed^2 / fsdp", "8 * embed^2 / fsdp"),
        ("bytes of peak at least", "4 * embed^2 / fsdp", "8 * embed^2 / fsdp"),
    ]


def test_a_transfer_without_a_law_is_not_taken_for_one_that_is_gone():
    law = law_of(gathering())
    refused = replace(law, terms=(), refused=(Refused(Kind.ALL_GATHER, ("fsdp",), "all_gather over fsdp", "why", 1.0),))
    assert [(each.of, each.before, each.after) for each in Comparison.of(law, refused).differences] == [
        ("transfer", "layers x, 2 * embed^2 * layers B a step", "no law"),
        ("law", "", "no law: why"),
    ]
    renamed = replace(refused, refused=(replace(refused.refused[0], what="all_gather over fsdp, mlp"),))
    assert Comparison.of(refused, renamed).differences == ()
