"""FSDP x tensor parallelism (Ch. 24): the two act on axes apart, so their layouts, collectives and costs just add
up."""

from lab.programs.strategies.sequence_parallel import SEQUENCE_PARALLEL
from lab.programs.strategies.tensor_parallel import TENSOR_PARALLEL
from lab.programs.strategies.zero3 import ZERO3

FSDP_TENSOR = ZERO3 | TENSOR_PARALLEL
FSDP_SEQUENCE = ZERO3 | SEQUENCE_PARALLEL
