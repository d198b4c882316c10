"""Orders of a mesh's axes: blocks counted element by element, costs by hand and by who sends to whom."""

from collections import Counter
from dataclasses import replace
from itertools import product
from math import lcm

import numpy as np
import pytest

from lab.core.ledger import Kind, Ledger, Transfer
from lab.experiments import ch23_device_mesh as mesh
from lab.experiments.ch23_device_mesh import Assumed, cost, costs, held_already
from lab.harness.question import answer
from lab.meshes.axes import AXIS_ORDER, Axes
from lab.meshes.errors import UsageError
from lab.programs.composed.step import predict
from lab.programs.models.shape import DecoderShape
from lab.report.traffic import levels, traffic

SMALL = DecoderShape(layers=8).shrunk(layers=8, batch=64)


def elements(axes: Axes, sizes: dict[str, int], rank: int) -> set[tuple[int, ...]]:
    """Of an array with these dims, those on a rank: found by trying every element."""
    place = dict(zip(axes.names, np.unravel_index(rank, axes.sizes), strict=True))
    ways = {name: axes.shape.get(name, 1) for name in sizes}
    return {
        at
        for at in product(*map(range, sizes.values()))
        if all(i * ways[name] // sizes[name] == place.get(name, 0) for name, i in zip(sizes, at, strict=True))
    }


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("data=2,tensor=4", "tensor=4,data=2"),
        ("data=2,tensor=4", "data=4,tensor=2"),
        ("data=2,tensor=4", "data=8"),
        ("data=2,tensor=8", "tensor=8,data=2"),
        ("data=3,tensor=2", "data=2,pipe=3"),
        ("data=6", "data=6"),
    ],
)
def test_what_a_rank_holds_already_is_counted_element_by_element(before, after):
    old, new = Axes.parse(before), Axes.parse(after)
    sizes = {name: lcm(old.shape.get(name, 1), new.shape.get(name, 1)) for name in {**old.shape, **new.shape}}
    for rank, share in enumerate(held_already(old, new)):
        wanted = elements(new, sizes, rank)
        assert share == pytest.approx(len(wanted & elements(old, sizes, rank)) / len(wanted))


def test_reversing_data_2_tensor_4_moves_all_ranks_but_the_first_and_the_last():
    held = held_already(Axes.parse("data=2,tensor=4"), Axes.parse("tensor=4,data=2"))
    assert held.nonzero()[0].tolist() == [0, 7]


def test_a_mesh_of_other_ranks_is_refused():
    with pytest.raises(UsageError, match="reshaped=data=4: 4 ranks, expected the 128 of fsdp=4,pipe=4,context=2"):
        answer(mesh.EXPERIMENT, {"reshaped": "data=4"})


@pytest.mark.parametrize("order", [AXIS_ORDER[::-1], ("tensor", "pipe", "data", "fsdp", "context", "expert")])
def test_what_a_step_sends_does_not_depend_on_the_order_of_its_axes(order):
    configuration = Assumed(fsdp=2, tensor=2).configuration

    def sent(chosen):
        return Counter(
            replace(t, axes=tuple(sorted(t.axes)), provenance=Transfer.provenance)
            for t in predict(chosen, SMALL).transfers
        )

    assert sent(replace(configuration, order=order)) == sent(configuration)


LEDGER = Ledger(
    (
        Transfer(Kind.ALL_REDUCE, ("tensor",), 4, 1, "bf16", 3 * 10**11),
        Transfer(Kind.ALL_GATHER, ("data",), 4, 2, "bf16", 10**11),
        Transfer(Kind.COLLECTIVE_PERMUTE, ("data",), 4, 1, "bf16", 45 * 10**9, shift=1),
    )
)


@pytest.mark.parametrize(
    ("order", "across", "seconds"),
    [
        # 450 GB/s inside a domain of 8, 50 GB/s between: 450 GB over tensor, 150 and 45 over data.
        ("data=4,tensor=4", ("data",), 450 / 450 + (150 + 45) / 50),
        ("tensor=4,data=4", ("tensor",), 450 / 50 + (150 + 45) / 450),
        ("data=2,tensor=8", ("data",), 450 / 450 + (150 + 45) / 50),
        ("tensor=4,data=2", (), (450 + 150 + 45) / 450),
    ],
)
def test_axes_that_cross_take_nine_times_as_long_on_h100s(order, across, seconds):
    found = cost(LEDGER, Axes.parse(order), "dgx-h100")
    assert found.across == across and found.seconds == pytest.approx(seconds)


def test_an_axis_crosses_where_a_host_sends_to_another():
    for found in costs(Assumed()):
        axes = found.axes
        for name in axes.names:
            alone = Ledger((Transfer(Kind.ALL_GATHER, (name,), axes[name], 1, "bf16", 8),))
            hosts = traffic(alone, axes, levels(axes, np.arange(axes.size) // 8, "host")[0])
            assert (hosts.bytes.trace() < hosts.bytes.sum()) == (name in found.across)


def test_of_24_orders_four_keep_tensor_and_context_inside_a_host_and_the_worst_takes_5_7_times_as_long():
    found = costs(Assumed())
    assert len(found) == len({each.axes.names for each in found}) == 24
    assert [set(each.axes.names) - set(each.across) for each in found[:5]] == [{"tensor", "context"}] * 4 + [{"tensor"}]
    assert found[-1].seconds / found[0].seconds == pytest.approx(5.75, abs=0.01)
    rows = {row.what: row.value for row in answer(mesh.EXPERIMENT, {}).rows}
    assert rows["best order, the first axis outermost"].startswith("fsdp, pipe, context, tensor (context and tensor in")
    assert rows["worst order"] == "tensor, context, fsdp, pipe (pipe inside a domain)"


@pytest.mark.parametrize(
    ("reshaped", "stay"),
    [
        # 32 f + 8 p + 4 c + t = 32 t + 16 c + 4 p + f where f = t and p = 3 c.
        ("tensor=4,context=2,pipe=4,fsdp=4", "0, 28, 33, 61, 66, 94, 99, 127"),
        ("fsdp=4,pipe=4,context=2,tensor=4", f"{', '.join(map(str, range(16)))} and 112 more"),
        ("fsdp=2,pipe=4,context=4,tensor=4", "none"),
    ],
)
def test_ranks_that_stay_where_they_are_are_named(reshaped, stay):
    rows = answer(mesh.EXPERIMENT, {"reshaped": reshaped}).rows
    assert [row.value for row in rows if row.what.endswith(": these are")] == [stay]


def test_with_experts_tensor_parallelism_is_not_innermost():
    best = costs(Assumed(model="mixtral-8x22b", pipe=1, context=1, expert=8))[0]
    assert best.axes.names[-1] == "expert"
