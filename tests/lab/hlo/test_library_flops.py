"""FLOPs of products that a library or a kernel computes, by counts by hand: attention, 8-bit and grouped products."""

import base64

import pytest

from lab.core.ledger import Ledger
from lab.core.note import NoteKind
from lab.hlo.read import read_text

B, N, T, S, H = 2, 3, 64, 128, 16


def called(target: str, operands: list[str], result: str, config: str) -> Ledger:
    parameters = "\n".join(f"  %p{n} = {shape} parameter({n})" for n, shape in enumerate(operands))
    names = ", ".join(f"%p{n}" for n in range(len(operands)))
    return read_text(
        f"HloModule step\n\nENTRY %main {{\n{parameters}\n  ROOT %r = {result} custom-call({names}), "
        f'custom_call_target="{target}", backend_config={{{config}}}\n}}\n'
    )


def attention(target: str, mask: str, values: int = H) -> Ledger:
    q, k, v = f"bf16[{B},{T},{N},{H}]", f"bf16[{B},{S},{N},{H}]", f"bf16[{B},{S},{N},{values}]"
    config = (
        f'"cudnn_fmha_backend_config": {{"fmha_scale": 0.25, "intermediate_tensor_shape": {{"element_type": "BF16", '
        f'"dimensions": ["{B}", "{N}", "{T}", "{S}"], "tuple_shapes": []}}, "mask_type": "{mask}"}}'
    )
    return called(target, [q, k, v], f"(bf16[{B},{N},{T},{values}], u8[0])", config)


def notes(ledger: Ledger, kind: NoteKind) -> list[str]:
    return [note for note in ledger.notes if note.kind == kind]


@pytest.mark.parametrize(
    "target", ["__cudnn$fmhaSoftmax", "__cudnn$fmhaScaleBiasSoftmaxDropout", "__cudnn$fmhaSoftmaxF8"]
)
def test_attention_multiplies_4_b_n_t_s_h_forward(target):
    found = attention(target, "NO_MASK")
    assert found.flops == 4 * B * N * T * S * H and not found.notes[1:]


def test_attention_backward_is_five_such_products_for_two_forward():
    forward, backward = (attention(f"__cudnn$fmhaSoftmax{way}", "NO_MASK").flops for way in ("", "Backward"))
    assert 2 * backward == 5 * forward


def test_values_of_another_width_than_keys_count_as_their_own():
    wide = attention("__cudnn$fmhaSoftmax", "NO_MASK", values=4 * H)
    assert wide.flops == 2 * B * N * T * S * (H + 4 * H)
    back = attention("__cudnn$fmhaSoftmaxBackward", "NO_MASK", values=4 * H)
    assert back.flops == 2 * B * N * T * S * (3 * H + 2 * 4 * H)


@pytest.mark.parametrize(("mask", "less"), [("CAUSAL", "half of them"), ("PADDING_CAUSAL", "some")])
def test_of_a_mask_it_is_said_that_all_scores_are_counted(mask, less):
    (note,) = notes(attention("__cudnn$fmhaSoftmax", mask), NoteKind.MASKED_FLOPS)
    assert note == (
        f"__cudnn$fmhaSoftmax: {4 * B * N * T * S * H:,} FLOP are of all scores; with its {mask.lower()} mask the kernel "
        f"may leave out {less}"
    )


DIMS = '"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["CONTRACTED"]}}'


@pytest.mark.parametrize(
    ("target", "operands", "result", "config", "flops"),
    [
        (
            "__cublas$lt$matmul$f8",
            ["f8e4m3fn[32,48]", "f8e4m3fn[64,48]", "f32[]", "f32[]"],
            "(bf16[32,64], s8[1024])",
            DIMS.replace("CONTRACTED", "1"),
            2 * 32 * 48 * 64,
        ),
        (
            "__cublas$lt$matmul$mx",
            ["f8e4m3fn[32,64]", "f8e4m3fn[16,64]", "f8e8m0fnu[32,2]", "f8e8m0fnu[16,2]"],
            "(bf16[32,16], s8[1024])",
            DIMS.replace("CONTRACTED", "1"),
            2 * 32 * 64 * 16,
        ),
        (
            "__cudnn$blockScaledDot",
            ["f8e4m3fn[4,32,64]", "f8e4m3fn[4,16,64]", "f8e8m0fnu[4,32,2]", "f8e8m0fnu[4,16,2]"],
            "(bf16[4,32,16], u8[0])",
            "",
            2 * 4 * 32 * 64 * 16,
        ),
        (
            "__cublas$lt$groupedMatmul",
            ["bf16[64,32]", "bf16[4,32,16]", "s32[4]"],
            "(bf16[64,16], s8[1024])",
            '"grouped_gemm_backend_config":{' + DIMS.replace("CONTRACTED", "1") + "}",
            2 * 64 * 32 * 16,
        ),
        (
            "__cublas$lt$groupedMatmul",
            ["bf16[32,64]", "bf16[64,16]", "s32[4]"],
            "(bf16[4,32,16], s8[1024])",
            '"grouped_gemm_backend_config":{' + DIMS.replace("CONTRACTED", "0") + "}",
            2 * 64 * 32 * 16,
        ),
    ],
    ids=["f8", "block scaled", "block scaled in cuDNN", "grouped rows", "gradient of groups"],
)
def test_8_bit_and_grouped_products_of_a_library_count_each_row_once(target, operands, result, config, flops):
    assert called(target, operands, result, config).flops == flops


def kernel(body: str, flops: str) -> Ledger:
    config = f'"custom_call_config":{{"body":"{base64.b64encode(body.encode()).decode()}"{flops}}}'
    return called("tpu_custom_call", ["bf16[64,128,512]"], "f32[64,128,64]", config)


ESTIMATE = ',"cost_estimate":{"flops":"4096","transcendentals":"1"}'


def test_a_kernel_that_xla_wrote_for_a_tpu_counts_what_xla_states():
    found = kernel("module {\n  func.func @main() {}\n}", ESTIMATE)
    assert found.flops == 4096 and not notes(found, NoteKind.STATED_FLOPS)


def test_of_a_kernel_of_pallas_it_is_said_whose_count_it_is_and_without_one_it_is_unknown():
    stated, silent = kernel("MLïR", ESTIMATE), kernel("MLïR", "")
    assert stated.flops == 4096
    assert notes(stated, NoteKind.STATED_FLOPS) == [
        "tpu_custom_call: 4,096 FLOP are what the author of the kernel states (cost_estimate)"
    ]
    assert silent.flops is None and len(notes(silent, NoteKind.UNKNOWN_FLOPS)) == 1
