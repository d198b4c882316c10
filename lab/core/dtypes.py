"""Element types by the names that XLA gives them. No JAX."""

DTYPES = {
    "pred": ("bool", 1),
    "s8": ("int8", 1),
    "s16": ("int16", 2),
    "s32": ("int32", 4),
    "s64": ("int64", 8),
    "u8": ("uint8", 1),
    "u16": ("uint16", 2),
    "u32": ("uint32", 4),
    "u64": ("uint64", 8),
    "f8e4m3fn": ("float8_e4m3fn", 1),
    "f8e5m2": ("float8_e5m2", 1),
    "bf16": ("bfloat16", 2),
    "f16": ("float16", 2),
    "f32": ("float32", 4),
    "f64": ("float64", 8),
    "c64": ("complex64", 8),
    "c128": ("complex128", 16),
}
"""By XLA's name of an element type: NumPy's name and the bytes of an element."""
