"""Chapter 28: what do gradients of three values send, scales included?"""

from lab.harness.compressed_sums import codec_experiment
from lab.programs.transforms import codecs

EXPERIMENT = codec_experiment(
    name="ch28_terngrad",
    question="What do gradients of three values send, scales included?",
    codec=codecs.terngrad(),
)
