"""The process that compiles a request of `lab.compile.xla_dump`, in a folder that it is given."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import jax

from lab.compile.xla_dump import REFUSAL, REQUEST, CompileRequest, Refused, lower
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.errors import UsageError

# Dumps of newer versions write `%x#1` for an element of a tuple, where older ones, and `compiled.as_text()`, have an
# instruction.
AS_COMPILED: dict[str, str | bool] = {"xla_dump_compact_gte": False}


def compile_into(folder: Path) -> None:
    """Compiles the request in `folder`, and has XLA write there what it comes to; or leaves the reason why not."""
    request: CompileRequest = pickle.loads((folder / REQUEST).read_bytes())
    try:
        prepare([request.target])
        lowered = lower(
            request.find_build(), request.style, request.parameters, make_mesh(request.target, request.axes)
        )
        _compile(lowered, {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True, "xla_dump_hlo_as_proto": True})
    except Exception as failure:
        told = failure if isinstance(failure, UsageError) else Refused(str(failure))
        (folder / REFUSAL).write_bytes(pickle.dumps(told))


def _compile(lowered: jax.stages.Lowered, options: dict[str, str | bool]) -> None:
    try:
        lowered.compile(compiler_options=options | AS_COMPILED)
    except jax.errors.JaxRuntimeError as failure:
        if "No such compile option" not in str(failure):
            raise
        lowered.compile(compiler_options=options)


def main() -> None:
    compile_into(Path(sys.argv[1]))
