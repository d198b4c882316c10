"""Custom calls: XLA's own operations and those of JAX, or foreign code, of which a text tells nothing but its name."""

from __future__ import annotations

import re

from lab.hlo.text import Instruction

OPCODES = frozenset({"custom-call", "custom-call-start"})
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_OWN = re.compile(
    # XLA's and its libraries' (`__cublas$gemm`), JAX's linear algebra, kernels that JAX compiles, calls of Python.
    r"__|xla[._]|mhlo\.|stablehlo\.|lapack_|cu(?:da|dnn|blas|solver|sparse)?_|hip(?:blas|solver|sparse)?_|magma_"
    r"|tpu_custom_call$|mosaic_gpu|triton_kernel_call|annotate_device_placement$|shape_assertion$|.*callback|.*TopK"
)


def target(instruction: Instruction) -> str:
    """What a custom call calls."""
    found = _TARGET.search(instruction.extras)
    return found[1] if found else ""


def may_differ(instruction: Instruction) -> bool:
    """What it gives may be another on each device: foreign code may send messages, and Python read what its host
    has."""
    return is_foreign(instruction) or "callback" in target(instruction)


def is_foreign(instruction: Instruction) -> bool:
    """Neither XLA nor JAX wrote what it calls. XLA's own names that no library needs (`AllocateBuffer`) are in camel
    case, without the version of an interface."""
    name = target(instruction)
    if not name or _OWN.match(name):
        return False
    return not name[0].isupper() or "api_version=" in instruction.extras
