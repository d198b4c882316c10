"""A plugin of pytest: `-p tests.mutants.plugin` with MUTANT=lab.book.memory:17 runs the tests with one change to one
module, in memory."""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

from tests.mutants.mutation import mutated

MODULE, _, NUMBER = os.environ["MUTANT"].rpartition(":")


class _Mutating(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        return compile(mutated(Path(self.path), int(NUMBER)), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """The module from where it always is, with the change."""

    def find_spec(self, fullname, path, target=None) -> ModuleSpec | None:
        if fullname != MODULE:
            return None
        rest = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in rest)), None)
        if spec is not None:
            spec.loader = _Mutating(fullname, spec.origin)
        return spec


if MODULE in sys.modules:
    raise RuntimeError(f"{MODULE} was imported before it could be changed")
sys.meta_path.insert(0, _Finder())
