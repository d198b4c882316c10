"""Eight fake CPU devices for every test, asked for before JAX starts, and compilers that hurry.

Nothing here times a CPU: machine code of any quality does, and XLA's passes, which decide what is sent, stay as they
are. Compiling is most of the suite: a decoder's step takes a seventh of the time (0.63 s for 4.9 s with jax 0.10.2).
For GPUs no machine code is made at all.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from lab.meshes.backends import prepare, skip_code_optimization
from lab.meshes.targets import parse_target
from tests import assembler

skip_code_optimization()
_folder = TemporaryDirectory()
assembler.stand_in(Path(_folder.name))
prepare([parse_target("cpu:8")])
