"""A stand-in for NVIDIA's assembler, `ptxas`, that assembles nothing.

XLA starts it once for each kernel, which is two fifths of what compiling for GPUs takes, though what is compiled ahead
of time never runs. Texts and memory are the same (`tests/test_assembler.py` compares them). When it is asked for its
version, the real one answers.
"""

import os
import stat
from pathlib import Path

from lab.meshes import plugins

STAND_IN = """#!/bin/sh
out=
for word in "$@"; do [ "$last" = -o ] && out=$word; last=$word; done
[ -n "$out" ] && [ -f "$1" ] && : >"$out" && exit
exec '{real}' "$@"
"""


def stand_in(folder: Path) -> None:
    """Puts it into `folder`, and has JAX look there; call it before JAX is imported."""
    real = plugins.ptxas()
    if real is None:
        return
    path = folder / "bin/ptxas"
    path.parent.mkdir(parents=True)
    path.write_text(STAND_IN.format(real=real))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    os.environ["CUDA_ROOT"] = str(folder)
