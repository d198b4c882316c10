"""Compiled texts in files: how much of one is read, from where, and what of it reaches a terminal or passes a check."""

import gzip
import os
from pathlib import Path
from threading import Thread

import pytest

from lab import allow
from lab import assert_communication as assert_budget
from lab.compile.text_files import read_text_file
from lab.hlo.read import read_text
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from tests.lab.hlo.test_integrity import WHOLE

MESH = Axes.parse("data=8")


def compressed(folder: Path) -> Path:
    """A thousand times as large as its file."""
    (folder / "step.hlo.gz").write_bytes(gzip.compress(b" " * 2_000_000))
    return folder / "step.hlo.gz"


def plain(folder: Path) -> Path:
    (folder / "step.hlo").write_text(" " * 1_000_001)
    return folder / "step.hlo"


@pytest.mark.parametrize("made", [plain, compressed])
def test_a_text_of_more_than_the_limit_is_refused(made, tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_MAX_TEXT_MB", "1")
    with pytest.raises(UsageError, match=r"more than 1 MB of text; for larger ones set LAB_MAX_TEXT_MB \(now 1\)"):
        read_text_file(made(tmp_path))


def test_a_file_without_end_is_refused_at_its_beginning():
    with pytest.raises(UsageError, match="^/dev/zero: binary file"):
        read_text_file(Path("/dev/zero"))


def test_a_pipe_is_read_as_a_file_is(tmp_path):
    os.mkfifo(pipe := tmp_path / "step.hlo")
    writer = Thread(target=pipe.write_text, args=(WHOLE,))
    writer.start()
    assert read_text_file(pipe) == WHOLE
    writer.join()


def test_control_characters_in_names_of_a_program_reach_no_terminal(lab, tmp_path):
    named = WHOLE.replace("to_apply=%add", 'to_apply=%add, metadata={op_name="jit(f)/\x1b[2Jlayer\x07/psum"}')
    (tmp_path / "step.hlo").write_text(named)
    answer = lab("inspect", "step.hlo", "--mesh", "data=8")
    assert answer.status == 0 and "layer" in answer.out
    assert not {"\x1b", "\x07"} & {*answer.out, *answer.err}


def test_half_of_a_text_passes_neither_an_empty_budget_nor_fail_on(lab, tmp_path):
    (tmp_path / "cut.hlo").write_text(WHOLE[: len(WHOLE) // 2])
    assert lab("inspect", "cut.hlo", "--mesh", "data=8", "--fail-on", "any").status == 2
    with pytest.raises(AssertionError, match="the compiled program could not be read completely"):
        assert_budget(str(tmp_path / "cut.hlo"), mesh=MESH, budget=[allow()])


def test_operands_that_are_made_of_each_other_are_damage_and_end():
    circle = "  %v = f32[64]{0} bitcast(%u)\n  %u = f32[64]{0} bitcast(%v)\n"
    text = WHOLE.replace("  %v = f32[64]{0} get-tuple-element(%t), index=1\n", circle)
    assert text != WHOLE and not read_text(text).is_complete
