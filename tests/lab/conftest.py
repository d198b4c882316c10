"""The command line as a function."""

import sys
from typing import NamedTuple

import pytest

from lab.cli import main as cli


class Answer(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def lab(capsys, monkeypatch, tmp_path):
    """Runs `lab` with the given arguments inside this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["lab", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Answer(ended.value.code or 0, *capsys.readouterr())

    return run
