"""Chapter 28: what does an all-reduce in float8 send, scales included?"""

from lab.harness.compressed_sums import codec_experiment
from lab.programs.transforms import codecs

EXPERIMENT = codec_experiment(
    name="ch28_float8_all_reduce",
    question="What does an all-reduce in float8 send, scales included?",
    codec=codecs.float8(),
)
