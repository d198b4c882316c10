"""The compiled texts that the repository keeps; `python -m tests.data.write` makes them again."""

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from lab.core.ledger import Ledger
from lab.hlo import read_text
from lab.meshes.targets import parse_target
from tests.data.catalogue import PROGRAMS
from tests.paths import ROOT

FOLDER = ROOT / "tests/data/hlo"
INDEX = FOLDER / "index.json"


def path(name: str) -> Path:
    return FOLDER / f"{name}.hlo.xz"


@cache
def text(name: str) -> str:
    return lzma.decompress(path(name).read_bytes()).decode()


@cache
def index() -> dict[str, dict[str, Any]]:
    """What is known of each text: the reported case, target, mesh, version of JAX, and forms."""
    return json.loads(INDEX.read_text())


def read(name: str, text: str) -> Ledger:
    """`text` as one of the program of that name."""
    program = PROGRAMS[name]
    return read_text(text, source=name, axes=program.axes, target=parse_target(program.target))


@cache
def ledger(name: str) -> Ledger:
    return read(name, text(name))
