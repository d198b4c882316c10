"""HSDP (Ch. 24): ZeRO-3 inside a group of ranks, data parallelism between groups: gradients are scattered, then their
parts are summed."""

from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.zero3 import ZERO3

HYBRID = DATA_PARALLEL | ZERO3
