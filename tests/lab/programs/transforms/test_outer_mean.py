"""The mean over replicas in few bits, against NumPy's own."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from lab.core.ledger import Kind
from lab.meshes.axes import REPLICA, Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.transforms.local_sgd import DILOCO, RoundShape, inner, predict
from lab.programs.transforms.outer_mean import BLOCK, CHUNK, FORMATS, check_format, mean, sent


def rounded(x: np.ndarray, bits: int) -> np.ndarray:
    """To the nearest of 2^bits - 1 steps of each block's largest, in float32 as the kernel."""
    blocks = np.pad(x, (0, -x.size % BLOCK)).reshape(-1, BLOCK)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(2 ** (bits - 1) - 1)
    steps = np.round(blocks / np.where(scale > 0, scale, np.float32(1)))
    return (steps * scale).ravel()[: x.size]


@pytest.mark.compiles
@pytest.mark.parametrize(("outer", "bits"), [("int8", 8), ("int4", 4)])
def test_a_mean_of_integers_is_that_of_numbers_rounded_block_by_block_and_rounded_again(outer, bits):
    mesh = make_mesh(parse_target("cpu:4"), Axes.of({REPLICA: 4}))
    x_RN = np.random.default_rng(0).standard_normal((4, 1000)).astype(np.float32)
    x_RN[:, :BLOCK] = 0
    of_all = jax.shard_map(
        lambda x_1N: mean(x_1N[0], REPLICA, FORMATS[outer]),
        mesh=mesh,
        in_specs=PartitionSpec(REPLICA),
        out_specs=PartitionSpec(),
    )
    expected = rounded(np.mean([rounded(x, bits) for x in x_RN], axis=0), bits)
    largest = np.abs(x_RN).max()
    found = np.asarray(jax.jit(of_all)(x_RN))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * largest)
    assert 0.1 / 2**bits < np.abs(found - x_RN.mean(axis=0)).max() / largest < 1 / (2 ** (bits - 1) - 1)
    assert not found[:BLOCK].any()


def test_four_bits_send_an_eighth_of_float32_and_a_scale_for_256_numbers():
    axes = Axes.of({REPLICA: 2})
    wide, narrow = (list(sent("w", (2 * CHUNK,), FORMATS[outer], REPLICA, 1, axes)) for outer in ("f32", "int4"))
    assert [(t.kind, t.dtype, t.payload_bytes) for t in narrow] == [
        (Kind.ALL_TO_ALL, "u8", CHUNK),
        (Kind.ALL_TO_ALL, "f32", 2 * CHUNK // BLOCK * 4),
        (Kind.ALL_GATHER, "u8", CHUNK),
        (Kind.ALL_GATHER, "f32", 2 * CHUNK // BLOCK * 4),
    ]
    of_numbers, of_scales = (sum(t.wire_bytes for t in narrow if t.dtype == dtype) for dtype in ("u8", "f32"))
    (whole,) = wide
    assert 8 * of_numbers == whole.wire_bytes == BLOCK * of_scales
    # Each rank sums whole rows of scales, of however few numbers.
    assert next(sent("w", (1,), FORMATS["int4"], REPLICA, 1, axes)).payload_bytes == CHUNK


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: check_format("fp8"), "outer=fp8: expected f32, int8, int4"),
        (lambda: RoundShape(every=0), "every=0: expected 1 step or more"),
        (lambda: RoundShape(every=4, fragments=3), "fragments=3 of layers=4 in every=4 steps: expected a divisor"),
        (lambda: RoundShape(every=4, fragments=2, delay=2), "delay=2: expected 0 or more, and less than"),
        (
            lambda: inner(Axes.of({"data": 8})),
            "mesh data=8: expected replica, and inside it some of data, fsdp, tensor",
        ),
        (
            partial(predict, DILOCO, RoundShape(batch=3), Axes.of({REPLICA: 2, "fsdp": 4})),
            "batch=3 over replica=2: expected a multiple",
        ),
    ],
)
def test_what_no_round_can_be_is_refused_in_a_line(wrong, said):
    with pytest.raises(UsageError) as refusal:
        wrong()
    assert str(refusal.value).startswith(said)
