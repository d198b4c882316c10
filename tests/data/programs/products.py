"""Products and convolutions of one device, and the FLOPs that each needs, worked out by hand: a multiply-add counts 2,
a complex one 8."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tests.cases.compiling import array, compiled
from tests.data.program import kept


@dataclass(frozen=True)
class Product:
    function: Callable
    shapes: tuple[tuple[int, ...], ...]
    flops: int
    dtype: Any = jnp.float32

    def build(self, mesh) -> jax.stages.Compiled:
        return compiled(mesh, self.function, *(array(mesh, shape, dtype=self.dtype) for shape in self.shapes))


def convolved(x, k, strides=(1, 1), padding="VALID", **options):
    names = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, k, strides, padding, dimension_numbers=names, **options)


def transposed(x, k, padding="VALID"):
    return jax.lax.conv_transpose(x, k, (2, 2), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def kernel_gradient(x, k, **options):
    return jax.grad(lambda k: (convolved(x, k, **options) ** 2).sum())(k)


def input_gradient(x, k, **options):
    return jax.grad(lambda x: (convolved(x, k, **options) ** 2).sum())(x)


def attention(q_BHD, k_BTHD, v_BTHD):
    scores_BHT = jax.nn.softmax(jnp.einsum("bhd,bthd->bht", q_BHD, k_BTHD))
    return jnp.einsum("bht,bthd->bhd", scores_BHT, v_BTHD)


def ragged(x_ND, w_EDF):
    return jax.lax.ragged_dot(x_ND, w_EDF, jnp.full(w_EDF.shape[0], x_ND.shape[0] // w_EDF.shape[0]))


IMAGE, KERNEL = (2, 16, 16, 8), (3, 3, 8, 16)
TAP = 2 * 8 * 16  # FLOPs of one kernel position at one place.
# Along 16 places padded by one on each side: three positions meet 16 places, but for one at each end.
SAME = 3 * 16 - 2
PRODUCTS = {
    "product_with_a_vector": Product(jnp.matmul, ((256, 128), (128,)), 2 * 256 * 128),
    "vector_times_a_matrix": Product(jnp.matmul, ((1, 256), (256, 128)), 2 * 256 * 128, jnp.bfloat16),
    "long_product_with_a_vector": Product(jnp.matmul, ((4, 65536), (65536,)), 2 * 4 * 65536),
    "product_of_two_vectors": Product(jnp.matmul, ((128,), (128,)), 2 * 128),
    "outer_product": Product(lambda a, b: jnp.einsum("bi,bj->ij", a, b), ((1, 64), (1, 32)), 2 * 64 * 32),
    "one_token_through_an_mlp": Product(
        lambda x, up, down: jax.nn.silu(x @ up) @ down, ((1, 64), (64, 256), (256, 64)), 4 * 64 * 256, jnp.bfloat16
    ),
    "one_token_attends_to_32": Product(
        attention, ((1, 4, 64), (1, 32, 4, 64), (1, 32, 4, 64)), 4 * 32 * 4 * 64, jnp.bfloat16
    ),
    "many_small_vectors": Product(lambda a, b: a @ b, ((64, 1, 8), (64, 8, 8)), 2 * 64 * 8 * 8),
    "complex_product": Product(jnp.matmul, ((64, 64), (64, 64)), 8 * 64**3, jnp.complex64),
    "complex_product_with_a_vector": Product(jnp.matmul, ((64, 64), (64,)), 8 * 64**2, jnp.complex64),
    "convolution_over_padding": Product(partial(convolved, padding="SAME"), (IMAGE, KERNEL), 2 * SAME**2 * TAP),
    "convolution_over_uneven_padding": Product(
        partial(convolved, padding=[(0, 1), (2, 0)]), (IMAGE, KERNEL), 2 * (3 * 15 - 1) * (3 * 16 - 3) * TAP
    ),
    # Each element of the input meets each position of the kernel.
    "transposed_convolution": Product(transposed, (IMAGE, KERNEL), 2 * 16 * 16 * 9 * TAP),
    # The last place falls off the end at one of three positions.
    "transposed_convolution_of_twice_the_size": Product(
        partial(transposed, padding="SAME"), (IMAGE, KERNEL), 2 * (3 * 16 - 1) ** 2 * TAP
    ),
    "gradient_of_a_kernel": Product(kernel_gradient, (IMAGE, KERNEL), 2 * (2 * 14 * 14 * 9 * TAP)),
    "gradient_of_a_kernel_that_steps_by_two": Product(
        partial(kernel_gradient, strides=(2, 2), padding="SAME"), (IMAGE, KERNEL), 2 * (2 * (3 * 8 - 1) ** 2 * TAP)
    ),
    "gradient_of_an_input": Product(input_gradient, (IMAGE, KERNEL), 2 * (2 * 14 * 14 * 9 * TAP)),
    "depthwise_convolution": Product(
        partial(convolved, feature_group_count=8), (IMAGE, (3, 3, 1, 16)), 2 * 14 * 14 * 9 * 2 * 16
    ),
    "gradient_of_a_depthwise_kernel": Product(
        partial(kernel_gradient, feature_group_count=8), (IMAGE, (3, 3, 1, 16)), 2 * (2 * 14 * 14 * 9 * 2 * 16)
    ),
    # Each of 64 rows with the matrices of all 4 groups, as XLA runs it; its own alone would be a quarter.
    "ragged_product": Product(ragged, ((64, 32), (4, 32, 16)), 4 * (2 * 64 * 32 * 16)),
}
for name, product in PRODUCTS.items():
    kept("products", "x=1", name=name, targets={"gpu": "gpu:h100:1x1"}, gpu=[])(product.build)
