"""XLA's opcodes, by how many operands they take (`xla/hlo/ir/hlo_opcode.h`)."""

from __future__ import annotations

_OPERANDS = {
    0: "constant iota parameter partition-id replica-id rng-get-and-update-state",
    1: """abs acos acosh all-gather-done all-reduce-done asin asinh async-done async-update atanh bitcast
    bitcast-convert broadcast cbrt ceil cholesky collective-permute-done convert copy copy-done copy-start
    cosh cosine count-leading-zeros domain erf exponential exponential-minus-one fft floor get-dimension-size
    get-tuple-element imag infeed is-finite log log-plus-one logistic negate not popcnt real recv recv-done
    reduce-precision reshape reverse rng-bit-generator round-nearest-afz round-nearest-even rsqrt send-done
    sign sine sinh slice sqrt tan tanh topk transpose while""",
    2: """add add-dependency and atan2 compare complex convolution divide gather maximum minimum multiply or outfeed pad
    power remainder send set-dimension-size shift-left shift-right-arithmetic shift-right-logical stochastic-convert
    subtract triangular-solve xor""",
    3: "batch-norm-inference batch-norm-training clamp select select-and-scatter",
    5: "batch-norm-grad",
}
_AT_LEAST = {
    0: "after-all call custom-call fusion tuple",
    1: """all-gather all-gather-start all-reduce all-reduce-start all-to-all async-start collective-broadcast
    collective-permute collective-permute-start concatenate dynamic-reshape dynamic-slice map opt-barrier
    reduce-scatter rng sort""",
    2: "conditional dot dynamic-update-slice ragged-dot reduce reduce-window scan scaled-dot",
    3: "scatter",
    6: "ragged-all-to-all",
}
_MANY = 1 << 60
LIMITS = {
    **{opcode: (count, count) for count, names in _OPERANDS.items() for opcode in names.split()},
    **{opcode: (count, _MANY) for count, names in _AT_LEAST.items() for opcode in names.split()},
}
"""The fewest and the most operands."""
UNLIMITED = (0, _MANY)
WITHOUT_OPERANDS = frozenset(_OPERANDS[0].split())
BINARY = frozenset(_OPERANDS[2].split())
_STEPS = ("-start", "-update", "-done")


def is_known(opcode: str) -> bool:
    """Any operation may be printed as the start, an update or the end of an asynchronous one."""
    return opcode in LIMITS or any(opcode.removesuffix(step) in LIMITS for step in _STEPS)
