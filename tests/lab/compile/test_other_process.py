"""Calls that forks of a process answer."""

import os
import signal
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from lab.compile.other_process import ProcessEnded, other_process
from lab.compile.several_processes import several_processes
from lab.meshes.errors import UsageError

NAME = "LAB_TEST_OF_FORKS"


def begin() -> None:
    os.environ[NAME] = "begun"


def exchange(_, value: str) -> str:
    before, os.environ[NAME] = os.environ[NAME], value
    return before


def end(_, how: int) -> None:
    os.kill(os.getpid(), how) if how else os._exit(0)


def refuse(_) -> None:
    raise UsageError("no")


def folder(_) -> str:
    return tempfile.mkdtemp()


def sleep_in_a_folder(stage) -> None:
    Path(tempfile.mkdtemp(), "part").write_text("of a file")
    with stage("sleeping"):
        time.sleep(60)


@pytest.mark.slow
def test_forks_find_what_was_begun_before_them_and_not_what_another_did():
    with other_process(before_forks=begin) as call:
        assert [call(exchange, "one"), call(exchange, "two")] == ["begun", "begun"]
        with pytest.raises(UsageError, match="no"):
            call(refuse)
        for how, told in ((signal.SIGABRT, "signal 6"), (0, "exited with status 0")):
            with pytest.raises(ProcessEnded, match=told):
                call(end, how)
        left = call(folder)
        assert call(exchange, "three") == "begun" and not os.path.exists(left)


@pytest.mark.slow
def test_several_processes_give_what_each_value_comes_to_in_its_order():
    with several_processes(before_forks=begin) as each:
        assert each(lambda call, value: call(exchange, value), ["a", "b", "c"]) == ["begun"] * 3


@pytest.mark.slow
def test_an_interrupt_leaves_no_temporary_files_of_a_fork(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def interrupted(name: str):
        if name == "sleeping":
            assert [*tmp_path.rglob("part")]
            raise KeyboardInterrupt
        return nullcontext()

    with pytest.raises(KeyboardInterrupt), other_process(interrupted, before_forks=begin) as call:
        call(sleep_in_a_folder)
    assert [*tmp_path.iterdir()] == []
