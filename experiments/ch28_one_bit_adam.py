"""Chapter 28: what do momenta send as signs, scales included?"""

from functools import partial

from lab.book.compression import quantized_ratio
from lab.core.ledger import Kind, Ledger
from lab.harness.claim import Claim, decided
from lab.harness.compressed_sums import (
    Sizes,
    by_method,
    compression_experiment,
    exchanged_in_bits,
    in_pieces,
    rounded_twice,
)
from lab.harness.evidence import counted
from lab.harness.small_programs import FLOAT_BYTES
from lab.meshes.axes import DATA, Axes
from lab.programs.transforms import codecs
from lab.programs.transforms.quantized import one_bit_adam, padded

CODEC = codecs.signs()
PARTS = (by_method(one_bit_adam(), partial(rounded_twice, CODEC)),)


def claims(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    rows = in_pieces(measured)
    payload = sum(t.payload_bytes for t in rows if t.kind is Kind.ALL_TO_ALL and t.dtype == CODEC.dtype)
    full = FLOAT_BYTES * padded(sizes.numbers, axes[DATA], CODEC)
    return (
        exchanged_in_bits(CODEC, sizes, axes, rows),
        decided(
            "ch28.onebit_adam",
            payload == full * quantized_ratio(CODEC.bits),
            f"signs of {full // FLOAT_BYTES:,} momenta, whole blocks, are {counted(payload)} B, {counted(full)} B "
            "in float32",
            statement="a sign is 1/32 of a float, eight in a byte",
        ),
    )


EXPERIMENT = compression_experiment(
    name="ch28_one_bit_adam",
    question="What do momenta send as signs, scales included?",
    parts=PARTS,
    claims=claims,
)
