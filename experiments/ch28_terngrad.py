"""Chapter 28: what do gradients of three values send, scales included?"""

from lab.core.ledger import Ledger
from lab.harness.claim import Claim
from lab.harness.compressed_sums import (
    Sizes,
    by_method,
    compression_experiment,
    exchanged_in_bits,
    in_pieces,
    rounded_twice,
)
from lab.meshes.axes import Axes
from lab.programs.transforms import codecs
from lab.programs.transforms.quantized import quantized

CODEC = codecs.terngrad()
PARTS = (by_method(quantized(CODEC), lambda g_PRC: rounded_twice(CODEC, g_PRC)),)


def claims(sizes: Sizes, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    return (exchanged_in_bits(CODEC, sizes, axes, in_pieces(measured)),)


EXPERIMENT = compression_experiment(
    name="ch28_terngrad",
    question="What do gradients of three values send, scales included?",
    parts=PARTS,
    claims=claims,
)
