"""Exchanges of gradients in a training step: what theory asks of them and what they keep, in bytes; and three whole
steps of those that lose nothing against the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from lab.book.compression import low_rank_ratio, sparse_ratio
from lab.core.ledger import Kind
from lab.harness.decoder.compressed import SMALL, CompressedShape
from lab.harness.decoder.step import decoder_experiment
from lab.harness.decoder.three_steps import compare_steps
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.memory.state import static_bytes
from lab.programs.models.shape import DecoderShape
from lab.programs.pipelines.program import PipelineShape
from lab.programs.pipelines.program import step as pipeline_step
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.exchange import Exchange
from lab.programs.strategies.exchanged import by_exchange, exchanged
from lab.programs.strategies.hybrid import HYBRID
from lab.programs.strategies.program import step
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.terms import UPDATE
from lab.programs.strategies.update import frozen, momenta, optimizer, optimizer_of_momenta
from lab.programs.strategies.zero1 import ZERO1
from lab.programs.strategies.zero3 import ZERO3
from lab.programs.transforms.codecs import signs
from lab.programs.transforms.methods import METHODS
from lab.programs.transforms.power_sgd import Matrices, matrices, power_sgd
from lab.programs.transforms.quantized import padded
from lab.programs.transforms.sparse import random_k, top_k
from tests.cases.compiling import cpu
from tests.long_tests import long

DATA8 = Axes.of({"data": 8})
SHAPE = DecoderShape().shrunk()
MATRICES = 2 * (4 * 48 * 64 - 2 * 48 * 32 + 3 * 48 * 80) + 2 * 96 * 48
"""Two layers of queries and outputs 48 x 64, keys and values 48 x 32, three matrices 48 x 80; embedding and head."""
NORMS = 5 * 48


def sent(strategy, axes=DATA8, shape=SHAPE):
    return sorted(
        (str(t.kind), t.dtype, t.payload_bytes)
        for t in strategy.predict(shape, axes).transfers
        if t.scope == "exchange"
    )


def test_data_parallelism_of_48_wide_layers_has_50688_numbers_in_matrices():
    asked = DATA_PARALLEL.predict(SHAPE, DATA8).transfers
    assert MATRICES == 50_688
    assert sum(t.payload_bytes * t.executions for t in asked if t.scope != "loss") == 4 * (MATRICES + NORMS)


@pytest.mark.parametrize("method", METHODS)
def test_norms_and_the_loss_are_still_summed_in_full(method):
    asked = (DATA_PARALLEL | METHODS[method](4, 0.01)).predict(SHAPE, DATA8).transfers
    rest = [t.payload_bytes for t in asked if t.scope != "exchange"]
    assert sorted(rest) == [4, 4 * 48, 2 * 4 * 48, 2 * 4 * 48]
    assert {t.phase for t in asked if t.scope == "exchange"} == {UPDATE}


def test_8_bits_send_a_byte_a_number_and_a_scale_for_128_there_and_back():
    whole = -(-MATRICES // (8 * 128)) * 8 * 128
    assert sent(DATA_PARALLEL | METHODS["int8"](0, 0)) == [
        ("all_gather", "f32", whole // 32),
        ("all_gather", "s8", whole),
        ("all_to_all", "f32", whole // 32),
        ("all_to_all", "s8", whole),
    ]


@pytest.mark.parametrize(
    ("method", "bits", "block"), [("qsgd", 4, 512), ("terngrad", 2, 512), ("one_bit_adam", 1, 1024)]
)
def test_fewer_bits_share_bytes(method, bits, block):
    whole = -(-MATRICES // (8 * block)) * 8 * block
    codes, scales = whole * bits // 8, whole // block * 4
    exchanged = sent(DATA_PARALLEL | METHODS[method](0, 0))
    assert sorted(exchanged) == sorted(
        (kind, dtype, size) for kind in ("all_gather", "all_to_all") for dtype, size in (("u8", codes), ("f32", scales))
    )


@pytest.mark.parametrize(
    ("numbers", "whole"), [(1, 1 << 14), (100_000, 7 << 14), (1 << 24, 1 << 24), ((1 << 24) + 1, 9 << 21)]
)
def test_of_many_numbers_scales_fill_whole_rows_of_128(numbers, whole):
    assert padded(numbers, 16, signs()) == whole


def test_top_1_percent_gathers_values_and_indices_of_every_rank_and_random_ones_values_alone():
    kept = -(-MATRICES // 100 // 128) * 128
    assert kept * 8 / MATRICES == pytest.approx(sparse_ratio(0.01) * 4, rel=0.3)
    gathered = 8 * kept * 4
    assert sent(DATA_PARALLEL | top_k(0.01)) == [("all_gather", "f32", gathered), ("all_gather", "s32", gathered)]
    assert sent(DATA_PARALLEL | random_k(0.01)) == [("all_reduce", "f32", kept * 4)]


def test_factors_of_rank_2_are_as_much_smaller_as_the_book_says():
    asked = sent(DATA_PARALLEL | power_sgd(2))
    book = sum(
        stack * rows * columns * low_rank_ratio(rows, columns, 2)
        for stack, rows, columns in [(2, 48, 64)] * 2 + [(2, 48, 32)] * 2 + [(2, 48, 80)] * 3 + [(1, 96, 48)] * 2
    )
    assert {kind for kind, *_ in asked} == {"all_reduce"} and sum(size for *_, size in asked) == 4 * book


def test_factors_have_no_more_ranks_than_their_matrices():
    full = sum(stack * 48 * (48 + columns) for stack, columns in [(2, 64)] * 2 + [(2, 80)] * 3 + [(1, 96)] * 2)
    full += 2 * 2 * 32 * (48 + 32)
    assert sum(size for *_, size in sent(DATA_PARALLEL | power_sgd(1 << 20))) == 4 * full


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ((4, 48, 8, 2, 4), Matrices((4,), 48, 64)),
        ((4, 8, 2, 4, 48), Matrices((4,), 64, 48)),
        ((96, 48), Matrices((), 96, 48)),
    ],
)
def test_a_matrix_of_several_dims_is_cut_where_its_factors_are_smallest(sizes, found):
    assert matrices(sizes) == found


@pytest.mark.parametrize(
    ("method", "kept"),
    [
        ("int8", 0),
        ("qsgd", 0),
        ("top_k", 4 * MATRICES),
        ("random_k", 4 * MATRICES),
        ("one_bit_adam", 4 * (57344 + 57344 // 8)),
    ],
)
def test_errors_fed_back_take_4_bytes_a_number_between_steps(method, kept):
    exchanged = DATA_PARALLEL | METHODS[method](4, 0.01)
    assert static_bytes(exchanged, SHAPE, DATA8) - static_bytes(DATA_PARALLEL, SHAPE, DATA8) == kept


def test_of_weights_split_over_tensor_each_rank_exchanges_its_part():
    mesh = Axes.of({"data": 2, "tensor": 4})
    asked = (DATA_PARALLEL | TENSOR_PARALLEL | random_k(1.0)).predict(SHAPE, mesh).transfers
    (exchanged,) = (t for t in asked if t.scope == "exchange")
    assert (exchanged.kind, exchanged.axes, exchanged.payload_bytes) == (Kind.ALL_REDUCE, ("data",), MATRICES)


def test_two_exchanges_do_not_compose_and_one_is_one_with_itself():
    assert (top_k(0.01) | top_k(0.01)).exchange is top_k(0.01).exchange
    with pytest.raises(UsageError, match="two strategies both exchange gradients"):
        top_k(0.01) | random_k(0.01)


@pytest.mark.parametrize(("strategy", "axis"), [(ZERO3, "fsdp"), (ZERO1, "data")])
def test_where_no_whole_gradient_is_summed_there_is_none_to_exchange(strategy, axis):
    with pytest.raises(UsageError, match="there is none to exchange; compose with DATA_PARALLEL"):
        (strategy | top_k(0.01)).predict(SHAPE, Axes.of({axis: 8}))


def test_a_step_refuses_the_exchange_that_its_ledger_refuses():
    mesh = make_mesh(parse_target("cpu:8"), Axes.of({"fsdp": 8}))
    with pytest.raises(UsageError, match="there is none to exchange; compose with DATA_PARALLEL"):
        step(ZERO3 | top_k(0.01), "explicit", SHAPE, mesh)


@pytest.mark.parametrize(
    "transform, wrong, line",
    [
        (power_sgd, 0, r"power_sgd\(rank=0\): expected 1 or more"),
        (top_k, 2.0, "share=2: "),
        (random_k, -1, "share=-1: "),
    ],
)
def test_a_rank_or_a_share_that_sends_nothing_or_more_than_all_is_refused(transform, wrong, line):
    with pytest.raises(UsageError, match=line):
        transform(wrong)


def test_a_pipeline_refuses_an_exchange():
    mesh = make_mesh(parse_target("cpu:8"), Axes.of({"data": 4, "pipe": 2}))
    with pytest.raises(UsageError, match="an exchange of gradients with the axis pipe"):
        pipeline_step(DATA_PARALLEL | top_k(0.01), PipelineShape(), mesh)


def test_a_method_by_a_wrong_name_and_a_share_of_nothing_are_refused():
    with pytest.raises(UsageError, match="no method 'topk'"):
        CompressedShape(method="topk")
    with pytest.raises(UsageError, match="share=0: expected"):
        CompressedShape(share=0.0)


def test_numbers_of_a_method_that_always_rounds_are_said_not_to_be_compared():
    with pytest.raises(UsageError, match="int8 rounds all that it sends"):
        SMALL.choosing(method="int8")


@pytest.mark.parametrize("method", ["top_k", "int8"])
def test_gradients_that_no_one_vector_holds_are_refused(method):
    large = DecoderShape(layers=8, embed=8192, mlp=32768)
    with pytest.raises(UsageError, match="numbers of gradients in one vector=.*: expected less than 2\\^31"):
        (DATA_PARALLEL | METHODS[method](4, 0.01)).predict(large, DATA8)


@pytest.mark.compiles
def test_adamw_of_momenta_moves_by_them_over_second_moments_that_stay_as_they_were():
    w, g = np.array([1.0, -2.0, 0.5]), np.array([0.1, 0.02, -0.3])
    moments = optimizer().init(jnp.asarray(w))
    for _ in range(3):
        _, moments = optimizer().update(jnp.asarray(g), moments, jnp.asarray(w))
    second = 0.05 * g**2 * (1 + 0.95 + 0.95**2) / (1 - 0.95**3)
    moments = frozen(moments)
    first = momenta(jnp.asarray(2 * g), moments)
    assert first == pytest.approx(0.9 * g * (1 - 0.9**3) + 0.1 * 2 * g, rel=1e-5)
    changes, after = optimizer_of_momenta().update(first, moments, jnp.asarray(w))
    moved = np.asarray(first, np.float64) / (1 - 0.9**4) / np.sqrt(second)
    assert changes == pytest.approx(-3e-4 * (moved + 0.1 * w), rel=1e-5)
    assert after[0].nu == pytest.approx(second, rel=1e-5) and after[0].mu is first and after[0].count == 4


def test_of_all_methods_1_bit_adam_alone_exchanges_momenta():
    assert [name for name in METHODS if METHODS[name](4, 0.01).exchange.of_momentum] == ["one_bit_adam"]


@pytest.mark.compiles
def test_what_ranks_exchange_of_momenta_adds_up_to_them_and_each_step_has_its_number():
    draw, count = np.random.default_rng(28).standard_normal, 3
    dims = {"matrix": ("embed", "mlp"), "norm": ("embed",)}

    def tree(*first: int) -> dict[str, nnx.Variable]:
        return {name: nnx.Variable(draw((*first, *[4] * len(of)), np.float32), dims=of) for name, of in dims.items()}

    def run(gradients, kept, step, over):
        return jax.lax.psum(gradients, over), kept + step

    exchange = Exchange(run, lambda sizes, ranks: (), lambda sizes, ranks: jnp.zeros((), jnp.int32), of_momentum=True)
    strategy, axes, own = DATA_PARALLEL | by_exchange(exchange), Axes.of({"data": 2}), tree(2)
    adam, *others = optimizer().init(tree())
    adam = adam._replace(count=jnp.int32(count), mu=tree())

    def on_rank(own, moments, memory):
        return exchanged(strategy, jax.tree.map(lambda x: x[0], own), moments, (memory,), axes)

    specs = {"matrix": P(), "norm": P("data")}  # A norm's gradient is summed already, where it is.
    mapped = jax.shard_map(
        on_rank, mesh=cpu(data=2), in_specs=(P("data"), P(), P("data")), out_specs=(specs, (P("data"),))
    )
    sums, memory = jax.jit(mapped)(own, (adam, *others), jnp.zeros(2, jnp.int32))
    g, mu = (np.asarray(each["matrix"].get_value()) for each in (own, adam.mu))
    assert sums["matrix"].get_value() == pytest.approx(0.9 * mu + 0.1 * g.sum(0), rel=1e-5)
    assert np.asarray(memory[0]).tolist() == [count, count]


@pytest.mark.compiles
@pytest.mark.parametrize(
    ("strategy", "axes", "accumulation"),
    [
        pytest.param(DATA_PARALLEL | power_sgd(1 << 20), DATA8, 1, id="factors of full rank", marks=long),
        pytest.param(
            DATA_PARALLEL | TENSOR_PARALLEL | random_k(1.0), Axes.of({"data": 2, "tensor": 4}), 2, id="all, of parts"
        ),
        pytest.param(HYBRID | random_k(1.0), Axes.of({"data": 2, "fsdp": 4}), 1, id="all, of shards", marks=long),
    ],
)
def test_three_steps_of_an_exchange_that_loses_nothing_are_those_of_one_device(strategy, axes, accumulation):
    step = decoder_experiment("step", 28, "", strategy, lambda target: axes, lambda shape, axes, measured: ())
    shape = DecoderShape().shrunk(accumulation=accumulation)
    found = compare_steps(step, "explicit", make_mesh(parse_target("cpu:8"), axes), shape)
    assert found.steps == 3 and found.worst_relative_error <= found.tolerance
