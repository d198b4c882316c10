"""Sizes and arithmetic of products, in every form that compilers write them."""

from string import Template

import pytest

from lab.hlo.kernels import Does, Kernel, steps
from lab.hlo.multiplied import Product

HEAD = """HloModule jit_step, is_scheduled=true

ENTRY %main (a: $A, b: $B) -> $R {
  %a = $A parameter(0)
  %b = $B parameter(1)
  ROOT %k = $R $LINE
}
"""


def kernel(a: str, b: str, result: str, line: str) -> Kernel:
    (found,) = steps(Template(HEAD).substitute(A=a, B=b, R=result, LINE=line))
    return found


DOT = "dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
NUMBERS = (
    '"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["1"],'
    '"lhs_batch_dimensions":["0"],"rhs_batch_dimensions":["0"]}'
)


@pytest.mark.parametrize(
    "a, b, result, line, product",
    [
        ("bf16[8,64]{1,0}", "bf16[64,4]{1,0}", "bf16[8,4]{1,0}", DOT, Product(1, 8, 4, 64, "bf16")),
        ("f32[8,64]{1,0}", "f32[64,4]{1,0}", "f32[8,4]{1,0}", DOT, Product(1, 8, 4, 64, "tf32")),
        (
            "f32[8,64]{1,0}",
            "f32[64,4]{1,0}",
            "f32[8,4]{1,0}",
            f"{DOT}, operand_precision={{highest,highest}}",
            Product(1, 8, 4, 64, "f32"),
        ),
        (
            "f32[8,64]{1,0}",
            "f32[64,4]{1,0}",
            "f32[8,4]{1,0}",
            f"{DOT}, algorithm=dot_bf16_bf16_f32_x3",
            Product(1, 8, 4, 64, "bf16_bf16_f32_x3"),
        ),
        ("f8e4m3fn[8,64]{1,0}", "f8e5m2[64,4]{1,0}", "bf16[8,4]{1,0}", DOT, Product(1, 8, 4, 64, "f8")),
        ("s8[8,64]{1,0}", "s8[64,4]{1,0}", "s32[8,4]{1,0}", DOT, Product(1, 8, 4, 64, "s8")),
        (
            "bf16[3,8,64]{2,1,0}",
            "bf16[3,64,4]{2,1,0}",
            "(bf16[3,8,4]{2,1,0}, s8[4096]{0})",
            'custom-call(%a, %b), custom_call_target="__cublas$gemm", '
            f'backend_config={{"gemm_backend_config":{{{NUMBERS}}}}}',
            Product(3, 8, 4, 64, "bf16"),
        ),
        (
            "bf16[8,64]{1,0}",
            "bf16[64,4]{1,0}",
            "bf16[8,4]{1,0}",
            "convolution(%a, %b), dim_labels=bf_io->bf",
            Product(1, 8, 4, 64, "bf16"),
        ),
    ],
    ids=["bf16", "tf32", "highest", "split in three", "float8", "int8", "library, batched", "as TPUs write it"],
)
def test_a_product_has_its_sizes_and_its_arithmetic(a, b, result, line, product):
    found = kernel(a, b, result, line)
    assert (found.does, found.product, found.flops) == (Does.PRODUCT, product, product.flops)


CALL = 'custom-call(%a, %b), custom_call_target="TARGET"'


@pytest.mark.parametrize(
    "line, does",
    [
        (CALL.replace("TARGET", "__cub$DeviceRadixSort"), Does.SORT),
        (CALL.replace("TARGET", "their_kernel"), Does.UNKNOWN),
        ("sort(%a, %b), dimensions={0}, to_apply=%less", Does.SORT),
        ("scatter(%a, %b), to_apply=%add", Does.SCATTER),
        ("gather(%a, %b), slice_sizes={1}", Does.GATHER),
        ("add(%a, %b)", Does.PASS),
    ],
)
def test_what_decides_the_time_of_a_kernel(line, does):
    assert kernel("f32[64]{0}", "f32[64]{0}", "f32[64]{0}", line).does is does


def test_calls_that_run_nothing_are_no_kernels():
    line = CALL.replace("TARGET", "AllocateBuffer")
    assert not steps(Template(HEAD).substitute(A="f32[4]", B="f32[4]", R="f32[4]", LINE=line))
