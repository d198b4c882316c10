"""FLOPs of products and convolutions, against XLA's own count of programs that hold nothing else."""

import jax
import jax.numpy as jnp
import pytest

from lab.hlo import read_text

pytestmark = pytest.mark.compiles


def compiled(function, *shapes):
    return jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile()


def flops(function, *shapes):
    program = compiled(function, *shapes)
    return read_text(program.as_text()).flops, program.cost_analysis()["flops"]


@pytest.mark.parametrize(
    ("equation", "left", "right", "expected"),
    [
        ("ij,jk->ik", (8, 32), (32, 16), 2 * 8 * 32 * 16),
        ("bij,bjk->bik", (3, 8, 32), (3, 32, 16), 3 * 2 * 8 * 32 * 16),
        ("ijk,jkl->il", (8, 4, 32), (4, 32, 16), 2 * 8 * 4 * 32 * 16),
    ],
)
def test_a_product_counts_two_for_a_multiply_and_add(equation, left, right, expected):
    ours, xla = flops(lambda a, b: jnp.einsum(equation, a, b), left, right)
    assert ours == expected == xla


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [[(0, 0), (0, 0)], [(2, 0), (1, 3)], [(4, 4), (3, 3)]])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1), (1, 2)])
def test_a_convolution_counts_no_product_with_padding_or_holes(stride, padding, dilation):
    def convolve(x_NHWC, w_HWIO):
        options = {
            "lhs_dilation": (dilation[0],) * 2,
            "rhs_dilation": (dilation[1],) * 2,
            "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
        }
        return jax.lax.conv_general_dilated(x_NHWC, w_HWIO, (stride, stride), padding, **options)

    ours, xla = flops(convolve, (2, 9, 10, 3), (3, 4, 3, 5))
    assert ours == xla


def test_grouped_convolution_reads_only_its_group_of_channels():
    def convolve(x_NHWC, w_HWIO):
        return jax.lax.conv_general_dilated(
            x_NHWC, w_HWIO, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=4
        )

    ours, xla = flops(convolve, (2, 8, 8, 8), (3, 3, 2, 12))
    assert ours == xla


def test_a_loop_of_twelve_products_counts_twelve():
    def scanned(w_LDD, x_BD):
        return jax.lax.scan(lambda x_BD, w_DD: (x_BD @ w_DD, None), x_BD, w_LDD)[0]

    ours, xla = flops(scanned, (12, 16, 16), (8, 16))
    assert ours == 12 * 2 * 8 * 16 * 16
    assert xla < ours / 6  # XLA's analysis visits a loop's body once
