"""Codecs against NumPy: what they write, what they lose, and by Monte-Carlo that random ones are right on average."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from lab.book.compression import qsgd_variance
from lab.programs.transforms import codecs

pytestmark = pytest.mark.compiles

KEY = jax.random.key(0)


@pytest.fixture
def x_KB(request) -> np.ndarray:
    return np.random.default_rng(28).normal(size=(4, 1024)).astype(np.float32)


def rounded(codec: codecs.Codec, x_KB: np.ndarray, key: jax.Array = KEY) -> np.ndarray:
    return np.asarray(codec.decode(*codec.encode(jnp.asarray(x_KB), key)), np.float64)


def bytes_of(codec: codecs.Codec, x_KB: np.ndarray) -> tuple[int, int]:
    codes, scales = codec.encode(jnp.asarray(x_KB), KEY)
    return codes.nbytes, scales.nbytes


@pytest.mark.parametrize(
    ("make", "bits"),
    [(codecs.int8, 8), (codecs.int4, 4), (codecs.float8, 8), (codecs.qsgd, 4), (codecs.terngrad, 2), (codecs.signs, 1)],
)
def test_so_many_bits_a_number_are_what_the_arrays_take(make, bits, x_KB):
    codec = make(x_KB.shape[1])
    assert bytes_of(codec, x_KB) == codec.bytes(x_KB.size) == (x_KB.size * bits // 8, 4 * len(x_KB))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_packed_codes_come_back_and_the_first_is_in_the_lowest_bits(bits):
    codes = np.random.default_rng(0).integers(0, 2**bits, (3, 16)).astype(np.uint8)
    packed = np.asarray(codecs.packed(jnp.asarray(codes), bits))
    assert np.array_equal(codecs.unpacked(jnp.asarray(packed), bits), codes)
    first = packed[:, 0].astype(int) & (2**bits - 1)
    assert np.array_equal(first, codes[:, 0])
    if bits == 1:
        assert np.array_equal(packed, np.packbits(codes, axis=-1, bitorder="little"))


@pytest.mark.parametrize(("make", "largest"), [(codecs.int8, 127), (codecs.int4, 7)])
def test_integers_are_the_nearest_of_255_levels_or_15(make, largest, x_KB):
    scale_K1 = np.abs(x_KB).max(-1, keepdims=True).astype(np.float64) / largest
    expected = np.rint(x_KB / scale_K1) * scale_K1
    assert rounded(make(1024), x_KB) == pytest.approx(expected, abs=1e-6)


def test_float8_is_what_ml_dtypes_rounds_to(x_KB):
    scale_K1 = np.abs(x_KB).max(-1, keepdims=True) / np.float32(448)
    expected = (x_KB / scale_K1).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale_K1
    assert rounded(codecs.float8(1024), x_KB) == pytest.approx(expected, abs=1e-6)


def test_signs_at_the_mean_size_lose_1_less_the_squared_ratio_of_norms(x_KB):
    found = rounded(codecs.signs(1024), x_KB)
    x = x_KB.astype(np.float64)
    assert np.array_equal(np.sign(found), np.where(x >= 0, 1, -1))
    lost = np.sum((x - found) ** 2, -1) / np.sum(x**2, -1)
    ratio = np.abs(x).sum(-1) ** 2 / (1024 * np.sum(x**2, -1))
    assert lost == pytest.approx(1 - ratio, rel=1e-5) and (lost < 0.4).all()


@pytest.mark.parametrize("make", [codecs.int8, codecs.int4, codecs.float8, codecs.qsgd, codecs.terngrad, codecs.signs])
def test_zeros_stay_zeros(make):
    assert not rounded(make(1024), np.zeros((2, 1024))).any()


@pytest.mark.parametrize("make", [codecs.qsgd, codecs.terngrad])
def test_random_codes_are_right_on_average_within_5_standard_errors(make, x_KB):
    codec, draws = make(64), 2000
    x_B = jnp.asarray(x_KB[0, :64])
    drawn = jax.jit(jax.vmap(lambda key: codec.decode(*codec.encode(x_B, key))))
    found = np.asarray(drawn(jax.random.split(KEY, draws)), np.float64)
    error = found.std(0, ddof=1) / np.sqrt(draws)
    # The largest is what it is.
    assert (np.abs(found.mean(0) - np.asarray(x_B)) <= 5 * error + 1e-6).all()
    assert found.std(0).max() > 0.1 * np.abs(x_B).max()


def test_8_levels_of_512_numbers_err_less_than_the_books_bound(x_KB):
    x_B = x_KB[0, :512]
    drawn = jax.jit(jax.vmap(lambda key: codecs.qsgd(512).decode(*codecs.qsgd(512).encode(jnp.asarray(x_B), key))))
    losses = np.sum((np.asarray(drawn(jax.random.split(KEY, 200)), np.float64) - x_B) ** 2, -1) / np.sum(x_B**2)
    above = losses.mean() + 5 * losses.std(ddof=1) / np.sqrt(200)
    assert losses.mean() > 1 and above < qsgd_variance(512, codecs.QSGD_LEVELS)
