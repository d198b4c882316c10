"""The process that compiles a request of `lab.compile.xla_dump`, in a folder that it is given."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from lab.compile.xla_dump import ANSWER, REQUEST, CompilerDump, CompileRequest, Refused, dumped, lower
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.errors import UsageError


def answer(request: CompileRequest) -> CompilerDump | Exception:
    """What a program compiles to, or the reason why it does not."""
    try:
        prepare([request.target])
        return dumped(
            lower(request.find_build(), request.style, request.parameters, make_mesh(request.target, request.axes))
        )
    except Exception as failure:
        return failure if isinstance(failure, UsageError) else Refused(str(failure))


def main() -> None:
    folder = Path(sys.argv[1])
    request: CompileRequest = pickle.loads((folder / REQUEST).read_bytes())
    (folder / ANSWER).write_bytes(pickle.dumps(answer(request)))
    os._exit(0)  # The compilation goes on.
