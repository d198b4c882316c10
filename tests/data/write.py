"""Compiles the programs of `tests.data.programs` and keeps their texts: `python -m tests.data.write [NAME ...]`.

Without names all of them, in about five minutes. `hlo/index.json` says of each text the reported case or form that it
is kept for, target, mesh, version of JAX, and forms of `tests.data.forms`. Lines and folders of the machine that
compiles are left out of the texts.
"""

import json
import lzma
import re
import sys

import jax

from lab.meshes.backends import prepare
from lab.meshes.targets import parse_target
from tests.cases.compiling import mesh_on
from tests.data import kept
from tests.data.catalogue import PROGRAMS
from tests.data.forms import forms_in
from tests.data.program import Program
from tests.paths import ROOT


def main() -> None:
    chosen = sys.argv[1:] or list(PROGRAMS)
    if unknown := set(chosen) - set(PROGRAMS):
        sys.exit(f"no program {', '.join(sorted(unknown))}; known are {', '.join(PROGRAMS)}")
    prepare([parse_target(target) for target in {program.target for program in PROGRAMS.values()}])
    jax.config.update("jax_hlo_source_file_canonicalization_regex", rf"{re.escape(str(ROOT))}/|.*/site-packages/")
    kept.FOLDER.mkdir(exist_ok=True)
    written_by = {name: entry["jax"] for name, entry in kept.index().items()} if kept.INDEX.exists() else {}
    for name in chosen:
        print(name, flush=True)
        program = PROGRAMS[name]
        text = program.build(mesh_on(program.target, **program.axes.shape)).as_text()
        kept.path(name).write_bytes(lzma.compress(text.encode(), preset=9))
        written_by[name] = jax.__version__
    kept.INDEX.write_text(listed({name: entry(PROGRAMS[name], written_by[name]) for name in PROGRAMS}))
    for stale in set(kept.FOLDER.glob("*.xz")) - set(map(kept.path, PROGRAMS)):
        stale.unlink()


def entry(program: Program, jax_version: str) -> dict:
    return {
        "case": program.case,
        "target": program.target,
        "mesh": str(program.axes),
        "jax": jax_version,
        "forms": forms_in(kept.text(program.name)),
    }


def listed(index: dict) -> str:
    """JSON with a text a line, so that a change of one is a line."""
    lines = (f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in index.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
