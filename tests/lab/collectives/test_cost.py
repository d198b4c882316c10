"""Statements of cost: their algebra, and what they come to in the closed forms of the book, which share no code with
them."""

from fractions import Fraction
from math import lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.book import collectives as book
from lab.collectives import ALGORITHMS, AlphaBeta, cost, double_tree, permute_cost
from lab.collectives.cost import Cost, at_once, collective, common_shift, permute, rounds
from lab.collectives.pipelined import chain_broadcast, chain_reduce
from lab.core.ledger import Kind
from lab.meshes.axes import Axes

LINK = AlphaBeta(2e-6, 50e9)
RANKS = (2, 3, 4, 5, 6, 8, 9, 16, 64)
POWERS = (2, 4, 8, 64)
SLICES = 4


def data(ranks: int) -> Axes:
    return Axes(("data",), (ranks,))


def dividing(ranks: int) -> int:
    """A number of elements that needs no padding."""
    return 16 * lcm(ranks, 2 ** (ranks.bit_length() - 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("primitive", "algorithm", "formula", "sizes"),
    [
        ("all_reduce", "ring", book.ring_all_reduce_s, RANKS),
        ("all_reduce", "split_ring", book.split_ring_all_reduce_s, RANKS),
        ("all_reduce", "bidirectional_ring", book.bidirectional_ring_all_reduce_s, RANKS),
        ("all_reduce", "doubling", book.doubling_all_reduce_s, RANKS),
        ("all_reduce", "halving_doubling", book.halving_doubling_all_reduce_s, RANKS),
        ("all_reduce", "tree", book.tree_all_reduce_s, RANKS),
        ("reduce_scatter", "ring", book.ring_all_gather_s, RANKS),
        ("reduce_scatter", "halving", book.binomial_scatter_s, POWERS),
        ("reduce_scatter", "circulant", book.binomial_scatter_s, RANKS),
        ("all_gather", "ring", book.ring_all_gather_s, RANKS),
        ("all_gather", "doubling", book.binomial_scatter_s, POWERS),
        ("all_gather", "circulant", book.binomial_scatter_s, RANKS),
        ("broadcast", "tree", book.binomial_broadcast_s, RANKS),
        ("broadcast", "blocks", book.blocks_broadcast_s, RANKS),
        ("reduce", "tree", book.binomial_broadcast_s, RANKS),
        ("reduce", "blocks", book.blocks_broadcast_s, RANKS),
        ("scatter", "tree", book.binomial_scatter_s, RANKS),
        ("gather", "tree", book.binomial_scatter_s, RANKS),
        ("all_to_all", "pairwise", book.ring_all_gather_s, RANKS),
        ("all_to_all", "bruck", book.bruck_all_to_all_s, POWERS),
    ],
)
def test_a_statement_takes_the_time_of_the_closed_form(primitive, algorithm, formula, sizes):
    for ranks in sizes:
        elements = dividing(ranks)
        stated = cost(primitive, algorithm, data(ranks), elements, 4)
        assert stated.time_s(LINK) == pytest.approx(
            formula(4 * elements, ranks, LINK.alpha_s, LINK.bytes_per_s), rel=1e-12
        ), ranks


@pytest.mark.parametrize("slices", [1, 3, 8])
@pytest.mark.parametrize(("primitive", "algorithm"), [("broadcast", chain_broadcast), ("reduce", chain_reduce)])
def test_a_chain_takes_the_time_of_the_closed_form(primitive, algorithm, slices):
    for ranks in RANKS:
        stated = cost(primitive, algorithm(slices), data(ranks), 48 * slices, 4)
        assert stated.time_s(LINK) == pytest.approx(
            book.chain_broadcast_s(192 * slices, ranks, LINK.alpha_s, LINK.bytes_per_s, slices)
        )


@pytest.mark.parametrize("algorithm", ["ring", "split_ring", "bidirectional_ring", "circulant"])
def test_an_all_reduce_by_blocks_sends_no_more_than_it_must(algorithm):
    """2 (P - 1) / P n: `ch12.ring_optimal`."""
    for ranks in RANKS:
        elements = 2 * ranks
        stated = cost("all_reduce", algorithm, data(ranks), elements, 4)
        assert stated.bytes_sent == stated.mean_bytes_sent == book.all_reduce_wire_bytes(4 * elements, ranks)


@pytest.mark.parametrize(("ranks", "steps"), [(2, 1), (3, 2), (5, 3), (6, 3), (16, 4), (17, 5)])
def test_the_circulant_all_reduce_takes_twice_the_fewest_rounds_for_every_number_of_ranks(ranks, steps):
    assert cost("all_reduce", "circulant", data(ranks), ranks, 1).steps == 2 * steps


@pytest.mark.parametrize(("ranks", "split", "both"), [(4, 6, 4), (5, 8, 4), (8, 14, 8)])
def test_only_blocks_sent_both_ways_save_steps_of_a_ring(ranks, split, both):
    found = [
        cost("all_reduce", name, data(ranks), 2 * ranks, 1).steps
        for name in ("ring", "split_ring", "bidirectional_ring")
    ]
    assert found == [split, split, both]


@pytest.mark.parametrize("algorithm", ["tree", "chain"])
def test_a_broadcast_sends_p_minus_1_buffers_in_all_whatever_its_tree(algorithm):
    """Not n log2 P, which is what the root of a binomial tree sends (D-50)."""
    for ranks in RANKS:
        stated = cost("broadcast", algorithm, data(ranks), 16, 4)
        assert stated.mean_bytes_sent * ranks == (ranks - 1) * 64
    assert cost("broadcast", "tree", data(64), 16, 4).bytes_sent == 6 * 64


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(2, 70))
def test_the_double_tree_takes_no_more_steps_than_it_says(ranks):
    stated = cost("all_reduce", "double_tree", data(ranks), 8 * ranks, 1)
    depth = ranks.bit_length() - 1
    assert 2 * SLICES <= stated.steps <= 4 * (depth + SLICES - 1)
    assert {message.elements for round in stated.rounds for message in round.messages} == {ranks}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(2, 70))
def test_a_rank_is_inner_in_one_tree_at_most_and_sends_and_gets_one_slice_a_turn(ranks):
    edges = double_tree._two_trees(ranks)
    inner = [{edge.parent for edge in edges if edge.tree == tree} for tree in (0, 1)]
    assert not inner[0] & inner[1]
    assert [len({edge.child for edge in edges if edge.tree == tree}) for tree in (0, 1)] == [ranks - 1] * 2
    for turn in double_tree._down_trees(ranks, SLICES):
        assert len({hop.source for hop in turn}) == len({hop.target for hop in turn}) == len(turn)


@pytest.mark.slow
def test_a_double_tree_nears_the_bytes_of_a_ring_as_slices_grow_thinner():
    elements = 2**16
    sent = [
        cost("all_reduce", double_tree.all_reduce(slices), data(64), elements, 1).bytes_sent / elements
        for slices in (1, 16, 256)
    ]
    assert sent[0] > sent[1] > sent[2] > 2 and sent[2] < 2.1


sizes = st.lists(st.integers(1, 6), min_size=2, max_size=4)


@pytest.mark.slow
@given(sizes, st.integers(1, 3))
@settings(deadline=None)
def test_levels_send_what_a_ring_over_all_ranks_does(sizes, blocks):
    """`ch12.volume_identity`, for any number of levels: 2 (G - 1) / G + 2 (N - 1) / (N G) = 2 (P - 1) / P."""
    axes = Axes(tuple("abcd"[: len(sizes)]), tuple(sizes))
    elements = blocks * axes.size
    levels, ring = (cost("all_reduce", name, axes, elements, 4) for name in ("hierarchical", "ring"))
    assert levels.bytes_sent == ring.bytes_sent == book.all_reduce_wire_bytes(4 * elements, axes.size)
    assert levels.steps == 2 * sum(size - 1 for size in sizes)


@pytest.mark.slow
@given(sizes, st.integers(1, 3))
@settings(deadline=None)
def test_levels_take_the_time_of_the_closed_form_over_links_of_their_own(sizes, blocks):
    names = tuple("abcd"[: len(sizes)])
    links = {name: AlphaBeta(1e-6 * (i + 1), 1e11 / (i + 1)) for i, name in enumerate(names)}
    axes = Axes(names, tuple(sizes))
    stated = cost("all_reduce", "hierarchical", axes, blocks * axes.size, 4)
    levels = [(axes[name], links[name].alpha_s, links[name].bytes_per_s) for name in reversed(names)]
    assert stated.time_s(links) == pytest.approx(book.levels_all_reduce_s(4 * blocks * axes.size, levels))


@pytest.mark.parametrize(("side", "axes"), [(2, 2), (4, 2), (2, 3), (3, 3)])
def test_a_torus_sends_along_all_axes_at_once(side, axes):
    mesh = Axes(("a", "b", "c")[:axes], (side,) * axes)
    elements = 2 * axes * mesh.size
    stated = cost("all_reduce", "torus", mesh, elements, 4)
    assert stated.time_s(LINK) == pytest.approx(
        book.torus_all_reduce_s(4 * elements, side, axes, LINK.alpha_s, LINK.bytes_per_s)
    )
    assert stated.bytes_sent == book.all_reduce_wire_bytes(4 * elements, mesh.size)


def test_a_flat_message_over_two_axes_is_as_slow_as_the_slower_of_those_it_crosses():
    mesh = Axes.of({"hosts": 2, "gpus": 2})
    links = {"hosts": AlphaBeta(5.0, 1.0), "gpus": AlphaBeta(1.0, 10.0)}
    assert cost("all_reduce", "ring", mesh, 4, 1).time_s(links) == 6 * 6.0
    # Doubling exchanges within a host, then between hosts.
    assert cost("all_reduce", "doubling", mesh, 10, 1).time_s(links) == (1 + 1) + (5 + 10)


def test_padding_counts_10_numbers_over_4_ranks_as_12():
    assert cost("all_reduce", "ring", data(4), 10, 4).bytes_sent == 6 * 3 * 4


def test_a_row_may_be_the_element():
    assert cost("reduce_scatter", "ring", data(4), 6, 40).bytes_sent == 3 * 2 * 40


@pytest.mark.parametrize("primitive", ALGORITHMS)
def test_one_rank_costs_nothing_and_neither_do_no_elements_but_of_a_barrier(primitive):
    for name, algorithm in ALGORITHMS[primitive].items():
        axes = Axes.of({"a": 1, "b": 1}) if algorithm.misfit(data(1)) else data(1)
        wide = Axes.of({"a": 2, "b": 2}) if algorithm.misfit(data(4)) else data(4)
        assert cost(primitive, name, axes, 16, 4) == Cost(bytes_per_element=4)
        assert (cost(primitive, name, wide, 0, 4) == Cost(bytes_per_element=4)) is (primitive != "barrier")
        assert cost(primitive, name, wide, 16, 4).steps > 0


@pytest.mark.parametrize("algorithm", ALGORITHMS["barrier"])
def test_a_barrier_sends_one_number_whatever_n(algorithm):
    one, many = (cost("barrier", algorithm, data(5), elements, 4) for elements in (1, 1000))
    assert one == many and {message.elements for round in many.rounds for message in round.messages} == {1}


def test_lax_sends_as_much_for_a_broadcast_as_for_an_all_reduce():
    broadcast, all_reduce = (cost(primitive, "lax", data(8), 64, 4) for primitive in ("broadcast", "all_reduce"))
    assert broadcast.bytes_sent == all_reduce.bytes_sent == book.all_reduce_wire_bytes(256, 8)


def test_costs_add_up_in_order():
    one = rounds(permute(data(2), [(0, 1)], 3))
    two = rounds(permute(data(2), [(0, 1), (1, 0)], 5), times=2)
    assert ((one + two).steps, (one + two).messages, (one + two).bytes_sent, (one + two).mean_bytes_sent) == (
        3,
        3,
        13,
        Fraction(23, 2),
    )
    assert (one * 3).bytes_sent == 9


def test_what_runs_at_once_takes_the_time_of_the_slower():
    short, long = (
        rounds(permute(Axes.of({name: 2}), [(0, 1)], n), times=times) for name, n, times in (("a", 1, 1), ("b", 4, 2))
    )
    together = at_once(short, long)
    assert (together.steps, together.messages, together.bytes_sent) == (2, 3, 9)
    assert together.time_s(AlphaBeta(1.0, 1.0)) == 10


def test_a_ledger_of_a_statement_counts_groups_and_bytes():
    mesh = Axes.of({"data": 2, "tensor": 4})
    (transfer,) = cost("all_gather", "ring", Axes.of({"tensor": 4}), 8, 4).ledger(mesh, "f32").transfers
    assert (transfer.kind, transfer.axes, transfer.group_size, transfer.groups) == (
        Kind.COLLECTIVE_PERMUTE,
        ("tensor",),
        4,
        2,
    )
    assert (transfer.executions, transfer.payload_bytes, transfer.wire_bytes) == (3, 8, 8)


def test_a_permute_is_one_message():
    assert permute_cost(data(4), 1, 10, 4).bytes_sent == permute_cost(data(4), [(0, 1)], 10, 4).bytes_sent == 40
    assert permute_cost(data(4), [(0, 1)], 10, 4).mean_bytes_sent == 10


@pytest.mark.parametrize(
    ("pairs", "over", "shift"),
    [
        ([(0, 2), (1, 3), (2, 0), (3, 1)], ("data",), 1),
        ([(0, 1), (2, 3)], ("tensor",), 1),
        ([(0, 3), (1, 2)], ("data", "tensor"), None),
        ([(0, 0), (1, 1)], ("tensor",), None),
        ([], ("tensor",), None),
        ([(0, 1)], (), None),
    ],
    ids=["a ring", "one way", "by 3 and by 1", "to themselves", "no pairs", "no axes"],
)
def test_pairs_that_all_move_as_far_have_a_common_shift(pairs, over, shift):
    assert common_shift(Axes.parse("data=2,tensor=2"), over, pairs) == shift


def test_a_built_in_collective_crosses_no_axis_of_one_device():
    message = collective(Kind.ALL_GATHER, Axes.parse("data=1,tensor=2"), 8)
    assert (message.axes, message.group_size) == (("tensor",), 2)
