"""Chapter 23 against NumPy's own order of elements."""

import numpy as np
import pytest

from lab.book.device_mesh import (
    coordinates_of,
    domains_spanned,
    free_degree,
    group_count,
    groups,
    local_elements,
    process_groups,
    rank_of,
    resplit_wire_bytes,
    strides,
)


def test_rank_and_coordinates_are_those_of_numpy_for_all_256_ranks_of_8_by_4_by_8():
    for rank in range(256):
        assert coordinates_of(rank, [8, 4, 8]) == np.unravel_index(rank, (8, 4, 8))
        assert rank_of(coordinates_of(rank, [8, 4, 8]), [8, 4, 8]) == rank


def test_rank_0_of_8_by_4_by_8_has_tensor_peers_1_apart_pipe_peers_8_and_data_peers_32():
    data, pipe, tensor = (groups([8, 4, 8], [axis])[0].tolist() for axis in range(3))
    assert (tensor, pipe, data) == (list(range(8)), [0, 8, 16, 24], list(range(0, 256, 32)))


@pytest.mark.parametrize("axes", [[0], [1], [2], [0, 2], [1, 2], [0, 1, 2], []])
def test_groups_over_any_axes_hold_every_rank_once(axes):
    members = groups([2, 3, 4], axes)
    assert sorted(members.flat) == list(range(24)) and len(members) == group_count([2, 3, 4], axes)


def test_data_and_context_of_2_by_2_by_2_by_2_are_summed_over_0_2_8_10():
    assert groups([2, 2, 2, 2], [0, 2]).tolist() == [[0, 2, 8, 10], [1, 3, 9, 11], [4, 6, 12, 14], [5, 7, 13, 15]]


def test_process_groups_are_as_many_as_there_are_groups_of_single_axes():
    assert process_groups([64, 1, 8]) == sum(len(groups([64, 1, 8], [axis])) for axis in range(3)) == 584


def test_the_second_replica_of_4_by_4_by_8_is_32_ranks_from_64_on():
    ranks = np.arange(128).reshape(4, 4, 8)[2]
    assert (ranks.min(), ranks.max()) == (64, 95) and ranks[:, 0].tolist() == [64, 72, 80, 88]


def test_a_transposed_mesh_has_the_same_groups_by_name_and_a_reshaped_one_has_not():
    ranks = np.arange(32).reshape(4, 8)
    by_name = {tuple(group) for group in ranks.T.T}
    assert by_name == {tuple(group) for group in groups([4, 8], [1])} != {tuple(group) for group in groups([8, 4], [1])}


@pytest.mark.parametrize(
    ("ranks", "stride", "domain", "first"),
    [(8, 1, 8, 0), (8, 4, 8, 0), (8, 16, 8, 3), (5, 3, 8, 6), (4, 8, 8, 0), (3, 7, 2, 1)],
)
def test_nodes_spanned_are_those_that_members_lie_in(ranks, stride, domain, first):
    assert domains_spanned(ranks, stride, domain, first) == len({(first + i * stride) // domain for i in range(ranks)})


def test_a_sweep_of_strides_is_one_call():
    assert domains_spanned(8, np.array([1, 4, 8, 16]), 8).tolist() == [1, 4, 8, 8]


def test_gathering_the_inner_axis_before_slicing_the_outer_keeps_0_to_3_together():
    shards = np.arange(8).reshape(2, 4)
    left_to_right = [np.concatenate([shard[2 * d : 2 * d + 2] for shard in shards]).tolist() for d in range(2)]
    inner_first = np.split(np.concatenate(shards), 2)
    assert left_to_right[0] == [0, 1, 4, 5] and inner_first[0].tolist() == [0, 1, 2, 3]


def test_moving_the_split_to_another_dim_sends_an_eighth_of_a_gather():
    assert resplit_wire_bytes(4 * 2**20, 8) * 8 == 4 * 2**20 * 7 / 8


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: rank_of([2, 4, 0], [8, 4, 8]), "coordinates"),
        (lambda: strides([8, 0]), "sizes=0"),
        (lambda: strides([8, 1.5]), "sizes=1.5"),
        (lambda: local_elements([10, 4], [4, 1]), "shape=.*10 is not divisible by 4"),
        (lambda: free_degree(10, 4), "devices=10"),
        (lambda: domains_spanned(8, 0, 8), "stride=0"),
        (lambda: resplit_wire_bytes(-1, 8), "payload_bytes=-1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, named):
    with pytest.raises(ValueError, match=named):
        call()
