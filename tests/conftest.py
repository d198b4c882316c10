"""Eight fake CPU devices for every test, asked for before JAX starts, and compilers that hurry.

Nothing here times a CPU: machine code of any quality does, and XLA's passes, which decide what is sent, stay as they
are. Compiling is most of the suite: a decoder's step takes a seventh of the time (0.63 s for 4.9 s with jax 0.10.2).
For GPUs no machine code is made at all.
"""

import os
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.meshes.backends import prepare
from lab.meshes.targets import parse_target
from tests import assembler

FAST = "--xla_backend_optimization_level=0"
# jax 0.11 has one kind of fusions only, and ends the process at a flag that it does not know.
FEWER = " --xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else ""

os.environ["XLA_FLAGS"] = f"{FAST}{FEWER} {os.environ.get('XLA_FLAGS', '')}"
_folder = TemporaryDirectory()
assembler.stand_in(Path(_folder.name))
prepare([parse_target("cpu:8")])
