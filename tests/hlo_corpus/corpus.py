"""Compiled texts of which the reader has to give all and break at none: those that the repository keeps, and beside it,
where the folder is there, those of others."""

from collections.abc import Callable, Mapping
from functools import cache, partial

import pytest

from lab.core.ledger import Ledger
from lab.hlo import read_text
from lab.meshes.axes import Axes
from tests.data import kept
from tests.paths import SHARED

Texts = Mapping[str, Callable[[], str]]
CORPUS = SHARED / "hlo"
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="the published programs, ../shared/hlo, are absent")
OURS: Texts = {name: partial(kept.text, name) for name in kept.index()}


def theirs(*patterns: str) -> Texts:
    """Texts in the shared folder; none where it is absent."""
    paths = [path for pattern in patterns for path in sorted(SHARED.glob(pattern))]
    return {str(path.relative_to(SHARED)): path.read_text for path in paths}


def one_of_each_form() -> Texts:
    """For each form of text the shortest that we keep."""
    names = sorted(OURS, key=lambda name: len(OURS[name]()))
    forms = {form for name in names for form in kept.index()[name]["forms"]}
    shortest = {next(name for name in names if form in kept.index()[name]["forms"]) for form in forms}
    return {name: OURS[name] for name in sorted(shortest)}


@cache
def text(name: str) -> str:
    return (CORPUS / name).read_text()


@cache
def ledger(name: str, mesh: str | None = None) -> Ledger:
    return read_text(text(name), source=name, axes=Axes.parse(mesh) if mesh else None)
