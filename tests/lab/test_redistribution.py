"""Changing placements: hand-computed plans, the least that any way must send, kernels that follow a plan, and compilers
beside both."""

import doctest
import json
from fractions import Fraction
from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

import lab
import lab.redistribution
from lab.core.dtypes import DTYPES
from lab.core.ledger import Ledger, axes_label
from lab.measure.redistribution.measure import Row, measure, worst_first
from lab.measure.redistribution.pairs import Pair, alike, classes, placements, sums
from lab.measure.redistribution.table import TARGETS, every_pair, measurement, theory
from lab.meshes import plugins
from lab.meshes.axes import DATA, FSDP, TENSOR, Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.layouts import Layout
from lab.meshes.targets import parse_target
from lab.redistribution import Array, Placement, layout_change, least_bytes, plan, route
from lab.redistribution.kernel import redistribute, sharding
from lab.redistribution.plan import steps, tried
from tests.paths import ROOT

CPU = parse_target("cpu:8")
CUBE, SQUARE = Axes.of({"a": 2, "b": 2, "c": 2}), Axes.of({"a": 2, "b": 2})
CLASSES = classes(3, CUBE)
BLOCKS = Array((8, 16, 24))  # 12,288 B.
P = Placement.of


def sends(ledger: Ledger) -> list[tuple[str, str, int]]:
    return [(str(t.kind), axes_label(t), t.payload_bytes) for t in ledger.transfers]


def planned(
    before: Placement, after: Placement, array: Array = BLOCKS, axes: Axes = CUBE
) -> list[tuple[str, str, int]]:
    return sends(plan(before, after, array, axes))


def on_cpu(axes: Axes) -> Mesh:
    return make_mesh(parse_target(f"cpu:{axes.size}"), axes)


@pytest.mark.parametrize(
    ("before", "after", "moves"),
    [
        (P(None, None, None), P("a", ("b", "c"), None), []),
        (P("a", None, None), P(("a", "b"), "c", None), []),
        (P("a", None, None), P(None, None, None), [("all_gather", "a", 12_288)]),
        (P(("a", "b"), None, None), P("a", None, None), [("all_gather", "b", 6_144)]),
        (P("a", None, None), P(None, "a", None), [("all_to_all", "a", 6_144)]),
        (P(("a", "b"), None, None), P(None, ("b", "a"), None), [("all_to_all", "a+b", 3_072)]),
        (P("a", None, "b"), P(None, ("a", "b"), None), [("all_to_all", "a+b", 3_072)]),
        (P(("a", "b"), None, None), P(("b", "a"), None, None), [("collective_permute", "a+b", 3_072)]),
        (P("a", "b", None), P("b", "a", None), [("collective_permute", "a+b", 3_072)]),
        (P("a", None, None), P("a", None, None), []),
    ],
)
def test_a_change_costs_what_is_computed_by_hand(before, after, moves):
    assert planned(before, after) == moves


def test_a_partial_sum_is_scattered_for_half_of_what_it_takes_to_sum_it_everywhere():
    summands = P(None, None, None, partial="ab")
    scattered, summed = (plan(summands, after, BLOCKS, SQUARE) for after in (P("b", "a", None), P(None, None, None)))
    assert sends(scattered) == [("reduce_scatter", "a+b", 12_288)]
    assert sends(summed) == [("all_reduce", "a+b", 12_288)]
    assert 2 * scattered.totals().wire_bytes == summed.totals().wire_bytes == 18_432


def test_replicas_of_a_partial_sum_share_the_work_and_save_a_sixth():
    """Each of the two sums half, and the halves are gathered: 5/4 of the block instead of 3/2."""
    summands, whole = P(None, None, None, partial="ab"), P(None, None, None)
    alone, shared = (plan(summands, whole, BLOCKS, axes).totals().wire_bytes for axes in (SQUARE, CUBE))
    assert (alone, shared) == (18_432, 15_360)


def test_another_dim_costs_an_eighth_of_a_gather_over_8_devices():
    split, whole = P(("a", "b", "c"), None, None), P(None, None, None)
    exchange, gather = (
        plan(split, P(None, ("a", "b", "c"), None), Array((8, 8, 8)), CUBE),
        plan(split, whole, Array((8, 8, 8)), CUBE),
    )
    assert 8 * exchange.totals().wire_bytes == gather.totals().wire_bytes == 7 * 8 * 8 * 4


def test_two_axes_of_unlike_sizes_change_places_for_less_once_the_larger_is_split():
    array, whole = Array((64, 64)), Axes.of({"x": 4, "y": 2})
    coarse = plan(P("x", "y"), P("y", "x"), array, whole).totals().wire_bytes
    fine = plan(P(("h", "l"), "y"), P("y", ("h", "l")), array, whole.split("x", {"h": 2, "l": 2})).totals().wire_bytes
    assert (coarse, fine) == (3_840, 3_072)


def test_eight_devices_in_a_cube_hold_three_dims_in_106_ways_and_change_them_in_339():
    everywhere = placements(3, CUBE)
    assert len(everywhere) == len(set(everywhere)) == 106
    assert len(CLASSES) == 339
    assert len({pair for one in CLASSES for pair in alike(one, CUBE)}) == 106 * 105


@pytest.mark.slow
def test_219_of_339_changes_are_planned_with_the_least_that_any_way_must_send():
    array = Array((32, 64, 128))
    costs = [(plan(*pair, array, CUBE).totals().wire_bytes, least_bytes(*pair, array, CUBE)) for pair in CLASSES]
    assert all(sent >= least for sent, least in costs)
    assert sum(sent == least for sent, least in costs) == 219
    assert max(sent / least for sent, least in costs if least) == 1.75


@pytest.mark.slow
def test_a_partial_sum_costs_between_once_and_19_eighths_of_the_least():
    """248 ways to sum up in a cube, and 70 of them are planned with the least."""
    ratios = [
        plan(*pair, BLOCKS, CUBE).totals().wire_bytes / least_bytes(*pair, BLOCKS, CUBE) for pair in sums(3, CUBE)
    ]
    assert (len(ratios), ratios.count(1)) == (248, 70)
    assert (min(ratios), max(ratios)) == (1, Fraction(19, 8))


def test_the_least_to_sum_up_is_what_scattering_and_summing_over_all_devices_send():
    """(P - 1) / P and 2 (P - 1) / P of 12,288 B, over 8 devices."""
    summands = P(None, None, None, partial="abc")
    least = [
        least_bytes(summands, after, BLOCKS, CUBE) for after in (P(("a", "b", "c"), None, None), P(None, None, None))
    ]
    assert least == [10_752, 21_504]


@pytest.mark.parametrize(
    ("before", "after", "placements_tried"),
    [
        (P("a", None, None), P(None, "a", None), 2),
        (P(("a", "b", "c", "d"), None, None), P(None, None, None), 2),
        (P("a", ("b", "c"), "d"), P(None, ("d", "a"), ("c", "b")), 9),
        (P(None, None, None, partial="abcd"), P("a", "b", ("c", "d")), 2),
    ],
)
def test_a_plan_over_4_axes_tries_few_of_685_placements(before, after, placements_tried):
    axes = Axes.parse("a=2,b=2,c=2,d=2")
    assert len(placements(3, axes)) == 685
    assert sum(1 for _ in tried(before, after, Array((64, 64, 64)), axes)) == placements_tried


@pytest.mark.parametrize("axes", ["a=2,b=2,c=2", "a=3,b=2"])
def test_no_route_is_cheaper_than_the_plan_nor_as_cheap_with_fewer_transfers(axes):
    array, axes = Array((24, 48)), Axes.parse(axes)
    for before, after in [*classes(2, axes)[::4], *sums(2, axes)[::4]]:
        found = plan(before, after, array, axes).totals()
        assert (found.wire_bytes, found.sites) == _cheapest(before, array, axes)[after], f"{before} to {after}"


def _cheapest(before: Placement, array: Array, axes: Axes) -> dict[Placement, tuple[Fraction, int]]:
    """Bytes and transfers to every placement, by trying all moves until nothing gets cheaper."""
    costs, changed = {before: (Fraction(0), 0)}, {before}
    while changed:
        here = changed.pop()
        for move, step in steps(here, array, axes):
            cost = costs[here][0] + step.wire_bytes, costs[here][1] + step.sites
            if move.after not in costs or cost < costs[move.after]:
                costs[move.after] = cost
                changed.add(move.after)
    return costs


def test_a_scalar_is_summed_up_and_needs_nothing_else():
    assert planned(P(), P(), Array(())) == []
    assert planned(P(partial="ab"), P(), Array(()), SQUARE) == [("all_reduce", "a+b", 4)]


def test_bytes_are_those_of_the_dtypes_of_jax():
    assert {name: Array((), name).bytes for name in DTYPES} == {
        name: jnp.dtype(numpy).itemsize for name, (numpy, _) in DTYPES.items()
    }
    assert [Array.of(jax.ShapeDtypeStruct((2, 3), jnp.dtype(numpy))) for numpy, _ in DTYPES.values()] == [
        Array((2, 3), name) for name in DTYPES
    ]


def test_the_example_of_the_package_holds():
    assert doctest.testmod(lab.redistribution) == (0, 5)


def test_plans_and_bounds_take_nothing_from_the_reader_of_compiled_texts():
    folder = Path(lab.__file__).parent / "redistribution"
    assert [file.name for file in folder.glob("*.py") if "lab.hlo" in file.read_text()] == []


@st.composite
def changes(draw) -> tuple[Placement, Placement, Array, Axes]:
    axes = Axes(("a", "b", "c"), tuple(draw(st.lists(st.integers(1, 3), min_size=3, max_size=3))))
    split = st.sampled_from(placements(2, axes))
    return draw(split), draw(split), Array((216, 432)), axes


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(changes())
def test_no_plan_sends_less_than_what_a_device_lacks(change):
    before, after, array, axes = change
    assert plan(before, after, array, axes).totals().wire_bytes >= least_bytes(before, after, array, axes)


@settings(max_examples=20, deadline=None)
@given(changes())
def test_a_route_leads_from_the_first_placement_to_the_last(change):
    before, after, array, axes = change
    moves = route(before, after, array, axes)
    assert [before, *(move.after for move in moves)] == [*(move.before for move in moves), after]


@pytest.mark.parametrize("pair", CLASSES[::30], ids=str)
def test_what_a_device_lacks_is_counted_as_jax_places_it(pair):
    held, needed = (sharding(placement, on_cpu(CUBE)).devices_indices_map(BLOCKS.shape) for placement in pair)
    numbers = np.arange(np.prod(BLOCKS.shape)).reshape(BLOCKS.shape)
    lacking = max(len(np.setdiff1d(numbers[needed[device]], numbers[held[device]])) for device in held)
    assert least_bytes(*pair, BLOCKS, CUBE) == 4 * lacking


@pytest.mark.compiles
@pytest.mark.parametrize(("axes", "some"), [("a=2,b=2,c=2", 45), ("a=4,b=2", 15)])
def test_a_kernel_that_follows_a_route_gives_the_array_and_sends_what_is_planned(axes, some):
    axes = Axes.parse(axes)
    mesh, x = on_cpu(axes), np.arange(np.prod(BLOCKS.shape), dtype=np.float32).reshape(BLOCKS.shape)
    for pair in islice(classes(3, axes), some // 2, None, some):
        np.testing.assert_array_equal(moved(x, pair, mesh), x)


@pytest.mark.compiles
@pytest.mark.parametrize(("axes", "some"), [("a=2,b=2,c=2", 50), ("a=4,b=2", 15)])
def test_a_kernel_that_starts_from_a_partial_sum_gives_the_sum_and_sends_what_is_planned(axes, some):
    axes = Axes.parse(axes)
    mesh = on_cpu(axes)
    for pair in islice(sums(3, axes), some // 2, None, some):
        stack = np.random.default_rng(0).integers(
            -99, 100, (int(np.prod([axes[axis] for axis in pair[0].partial])), *BLOCKS.shape), np.int32
        )
        np.testing.assert_array_equal(moved(stack, pair, mesh), stack.sum(0))


@pytest.mark.compiles
def test_a_partial_sum_that_stays_one_is_a_stack_of_fewer_summands():
    stack = np.arange(4 * 16, dtype=np.int32).reshape(4, 16)
    found = moved(stack, (P(None, partial="ab"), P("a", partial="b")), on_cpu(SQUARE))
    assert found.shape == (2, 16)
    np.testing.assert_array_equal(found.sum(0), stack.sum(0))


def moved(x: np.ndarray, pair: Pair, mesh: Mesh) -> jax.Array:
    """`x` redistributed by a kernel whose compiled text holds just the transfers of the plan."""
    program, placed = jax.jit(lambda x: redistribute(x, *pair, mesh)), jax.device_put(x, sharding(pair[0], mesh))
    found, axes = program(placed), Axes.of(dict(mesh.shape))
    assert found.sharding.is_equivalent_to(sharding(pair[1], mesh), found.ndim)
    array = Array.of(x[0] if pair[0].partial else x)
    measured, expected = lab.inspect(program, placed, mesh=mesh), plan(*pair, array, axes)
    assert sorted(_met(measured)) == sorted(_met(expected)), f"{pair[0]} to {pair[1]}"
    return found


def _met(ledger: Ledger) -> list[tuple[str, str, int, int]]:
    return [(str(t.kind), axes_label(t), t.group_size, t.payload_bytes) for t in ledger.transfers]


@pytest.mark.compiles
def test_a_kernel_plans_for_the_array_that_it_is_given_and_for_no_other():
    change = (P("a", None), P(None, "a"))
    bytes_AB = np.arange(16, dtype=np.int8).reshape(2, 8)
    np.testing.assert_array_equal(moved(bytes_AB, change, on_cpu(SQUARE)), bytes_AB)
    assert planned(*change, Array.of(bytes_AB), SQUARE) == [("all_to_all", "a", 8)]
    with pytest.raises(UsageError, match="3 is not divisible by a=2"):
        redistribute(jnp.zeros((3, 8)), *change, on_cpu(SQUARE))


@pytest.mark.compiles
@pytest.mark.parametrize("shape", [(2, 8), (8,), ()])
def test_a_stack_of_another_number_of_summands_is_refused(shape):
    with pytest.raises(UsageError, match=r"over a\*b is a stack of 4 summands"):
        redistribute(jnp.zeros(shape), P(None, partial="ab"), P(None), on_cpu(SQUARE))


@pytest.mark.compiles
def test_the_partitioner_sends_8_times_the_plan_between_clashing_tilings_of_131072_bytes():
    """c01."""
    row = measure(
        (P("y", None, "x"), P(None, ("x", "y"), None)), Array((16, 32, 64)), on_cpu(Axes.of({"x": 4, "y": 2})), CPU
    )
    assert (row.wire_bytes, row.planned_bytes, row.least_bytes) == (114_688, 14_336, 14_336)
    assert row.rebuilds_the_whole and "rebuilds the whole array on every device" in str(row)


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("target", "kind"), [("cpu:8", "all_reduce"), ("gpu:h100:1x8", "reduce_scatter"), ("tpu:v5e:2x4", "reduce_scatter")]
)
def test_compilers_scatter_a_sum_along_one_dim_and_reduce_it_whole_for_two(target, kind):
    target = parse_target(target)
    if not plugins.installed(target.platform):
        pytest.skip("the compile-only plugin is not installed")
    summands, array = P(None, None, None, partial="abc"), Array((32, 64, 128))
    one, two = (
        measure((summands, after), array, make_mesh(target, CUBE), target)
        for after in (P(None, None, ("a", "b", "c")), P("a", "b", "c"))
    )
    assert sends(one.measured) == [(kind, "a+b+c", 1_048_576)]
    assert sends(two.measured) == [("all_reduce", "a+b+c", 1_048_576)]
    assert sends(one.planned) == sends(two.planned) == [("reduce_scatter", "a+b+c", 1_048_576)]
    assert two.rebuilds_the_whole and two.wire_bytes == 2 * two.least_bytes


@pytest.mark.compiles
def test_a_gather_that_is_asked_for_rebuilds_nothing():
    row = measure((P("a", None, None), P(None, None, None)), BLOCKS, on_cpu(CUBE), CPU)
    assert (row.wire_bytes, row.excess_bytes, row.rebuilds_the_whole) == (6_144, 0, False)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [measure(pair, BLOCKS, on_cpu(CUBE), CPU) for pair in CLASSES[7::30]]


@pytest.mark.compiles
def test_no_compiled_change_sends_less_than_the_plan_nor_the_plan_less_than_the_least(rows):
    assert all(row.wire_bytes >= row.planned_bytes >= row.least_bytes for row in rows)


@pytest.mark.compiles
def test_the_worst_change_stands_first(rows):
    excess = [row.excess_bytes for row in worst_first(rows)]
    assert excess == sorted(excess, reverse=True) and excess[0] > 0


@pytest.mark.compiles
def test_changes_that_differ_in_names_and_dims_only_send_the_same():
    pair = P("a", None, None), P(None, ("b", "a"), None)
    some = sorted(set(alike(pair, CUBE)), key=str)[::9]
    assert len(some) > 2 and len({measure(one, Array((8, 8, 8)), on_cpu(CUBE), CPU).wire_bytes for one in some}) == 1


def test_going_from_data_parallelism_to_fsdp_slices_weights_and_back_gathers_them():
    axes, array = Axes.of({DATA: 2, FSDP: 4}), Array((64, 32))
    replicated, sharded = Layout.of(batch=(DATA, FSDP)), Layout.of(batch=(DATA, FSDP), embed=FSDP)
    assert sends(layout_change(replicated, sharded, ("embed", "mlp"), array, axes)) == []
    assert sends(layout_change(sharded, replicated, ("embed", "mlp"), array, axes)) == [("all_gather", FSDP, 8_192)]


def test_moving_heads_to_the_sequence_is_one_all_to_all():
    axes, array = Axes.of({DATA: 2, TENSOR: 4}), Array((16, 32))
    before, after = Layout.of(batch=DATA, heads=TENSOR), Layout.of(batch=DATA, length=TENSOR)
    assert sends(layout_change(before, after, ("length", "heads"), array, axes)) == [("all_to_all", TENSOR, 512)]


@pytest.mark.parametrize(
    ("attempt", "told"),
    [
        (lambda: P("a", ("b", "a")), "axis 'a' appears twice"),
        (lambda: P("a", partial="a"), "axis 'a' appears twice"),
        (lambda: planned(P("a", None), P(None, None)), "2 dims and the array"),
        (lambda: planned(P("d", None, None), P(None, None, None)), "no axis 'd'"),
        (lambda: planned(P(("a", "b"), None), P(None, None), Array((6, 8))), "6 is not divisible by a*b=4"),
        (lambda: planned(P("a", None, None), P(None, None, None, partial="a")), "can be summed up, and not made"),
        (
            lambda: least_bytes(P(None, None, None, partial="ab"), P(None, None, None, partial="a"), BLOCKS, CUBE),
            "cannot be counted",
        ),
        (lambda: Array((8, 8), "float32"), "dtype 'float32': expected pred, s8"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(attempt, told):
    with pytest.raises(UsageError) as refused:
        attempt()
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_bf16_costs_half_of_f32():
    before, after = Placement.of("a", None), Placement.of(None, None)
    axes = Axes.parse("a=4")
    sent = [plan(before, after, Array((8, 8), dtype), axes).totals().wire_bytes for dtype in ("f32", "bf16")]
    assert sent == [192, 96]


TABLE = json.loads((ROOT / "results/redistribution_2x2x2.json").read_text())["rows"]
THEORY = ("from", "to", "least_bytes", "planned")


@pytest.mark.slow
def test_the_saved_table_has_the_least_and_the_plan_of_all_587_pairs():
    assert [{name: row[name] for name in THEORY} for row in TABLE] == [
        json.loads(json.dumps(theory(pair))) for pair in every_pair()
    ]
    assert len(TABLE) == 587


@pytest.mark.compiles
@pytest.mark.parametrize("row", range(60, 587, 120))
def test_the_saved_table_is_what_compilers_give(row):
    targets = [target for target in TARGETS if plugins.installed(target.platform)]
    for name, found in json.loads(json.dumps(measurement(every_pair()[row], targets))).items():
        assert found == {target: TABLE[row][name][target] for target in found}


def counts(rows: list[dict], target: str) -> tuple[int, int, int, float]:
    """Pairs that send just the plan, that send the least, that rebuild the whole; the worst ratio to the plan."""
    found = [row["compiled"][target] for row in rows]
    as_planned = sum(one["wire_bytes"] == row["planned"]["wire_bytes"] for one, row in zip(found, rows, strict=True))
    least = sum(one["wire_bytes"] == row["least_bytes"] for one, row in zip(found, rows, strict=True))
    return as_planned, least, sum(one["rebuilds_the_whole"] for one in found), max(one["ratio"] or 0 for one in found)


def test_three_compilers_send_just_the_plan_for_155_of_339_changes_and_for_12_64_and_58_of_248_sums():
    changes, summed = ([row for row in TABLE if ("summed" in row["from"]) == is_sum] for is_sum in (False, True))
    assert (len(changes), {counts(changes, str(target)) for target in TARGETS}) == (339, {(155, 132, 57, 12.0)})
    assert (len(summed), [counts(summed, str(target)) for target in TARGETS]) == (
        248,
        [(12, 12, 56, 8.0), (64, 29, 53, 8.0), (58, 25, 54, 8.0)],
    )


def test_no_compiler_sends_less_than_the_plan_nor_the_plan_less_than_the_least():
    sent = [(row["compiled"][target]["wire_bytes"], row) for row in TABLE for target in row["compiled"]]
    assert all(bytes >= row["planned"]["wire_bytes"] >= row["least_bytes"] for bytes, row in sent)
