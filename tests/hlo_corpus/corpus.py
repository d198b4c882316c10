"""Compiled programs that others published; tests of them are skipped where the folder is absent."""

from functools import cache

import pytest

from lab.core.ledger import Ledger
from lab.hlo import read_text
from lab.meshes.axes import Axes
from tests.paths import SHARED

CORPUS = SHARED / "hlo"
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="the published programs, ../shared/hlo, are absent")


@cache
def text(name: str) -> str:
    return (CORPUS / name).read_text()


@cache
def ledger(name: str, mesh: str | None = None) -> Ledger:
    return read_text(text(name), source=name, axes=Axes.parse(mesh) if mesh else None)
