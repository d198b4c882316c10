"""Custom calls: what foreign code sends is not known, and what XLA and JAX call sends nothing."""

import pytest

from lab.core.ledger import Ledger
from lab.core.note import NoteKind
from lab.hlo.read import read_text


def ledger(target: str, extra: str = "", devices: int = 8) -> Ledger:
    return read_text(
        f"HloModule step, num_partitions={devices}\n\nENTRY %main (x: f32[64]) -> f32[64] {{\n"
        f"  %x = f32[64]{{0}} parameter(0)\n"
        f'  %a = f32[64]{{0}} custom-call(%x), custom_call_target="{target}"{extra}\n'
        f'  ROOT %b = f32[64]{{0}} custom-call(%a), custom_call_target="{target}"{extra}\n}}\n'
    )


FFI = ", api_version=API_VERSION_TYPED_FFI"


@pytest.mark.parametrize(("target", "extra"), [("pfft3d", ""), ("te_gemm_v2_ffi", FFI), ("AllToAllTokens", FFI)])
def test_what_foreign_code_sends_is_unknown_so_that_the_ledger_is_not_complete(target, extra):
    found = ledger(target, extra)
    (note,) = (note for note in found.notes if note.kind == NoteKind.FOREIGN_CALLS)
    assert not found.is_complete
    assert note.startswith(f"{target} is code of neither XLA nor JAX: what its 2 calls may send is not known")


@pytest.mark.parametrize(
    ("target", "extra"),
    [
        ("__cublas$gemm", FFI),
        ("lapack_spotrf_ffi", FFI),
        ("cusolver_potrf_ffi", FFI),
        ("xla_ffi_python_cpu_callback", FFI),
        ("AllocateBuffer", ""),
        ("TopK", FFI),
        ("tpu_custom_call", ""),
        ("annotate_device_placement", ""),
    ],
)
def test_what_xla_and_jax_call_sends_nothing(target, extra):
    assert ledger(target, extra).is_complete


def test_on_one_device_foreign_code_has_nobody_to_send_to():
    assert ledger("pfft3d", devices=1).is_complete
