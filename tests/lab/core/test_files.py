"""Files are whole for every reader, whoever writes at the same time."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lab.core.files import write_whole
from tests.paths import ROOT

WRITERS, TIMES = 3, 60


WRITE_OFTEN = """
import json, sys
from pathlib import Path
from lab.core.files import write_whole

path, writer, times = sys.argv[1:]
for time in range(int(times)):
    write_whole(Path(path), json.dumps({"writer": writer, "time": time, "filler": ["x" * 100] * 500}))
"""


def test_three_writers_at_a_time_never_show_a_reader_a_torn_file_or_none(tmp_path):
    path = tmp_path / "page.json"
    write_whole(path, "{}")
    command = [sys.executable, "-c", WRITE_OFTEN, str(path)]
    writers = [subprocess.Popen([*command, str(writer), str(TIMES)], cwd=ROOT) for writer in range(WRITERS)]
    reads = 0
    while any(writer.poll() is None for writer in writers):
        json.loads(path.read_text())
        reads += 1
    assert [writer.returncode for writer in writers] == [0] * WRITERS and reads
    assert json.loads(path.read_text())["time"] == TIMES - 1 and os.listdir(tmp_path) == ["page.json"]


def test_what_stood_in_a_file_stays_until_all_is_written(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    write_whole(path, "old")
    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["page.html"]


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "page.html").symlink_to("elsewhere/real.html")
    for content in ("new", "newer"):
        write_whole(tmp_path / "page.html", content)
    assert (tmp_path / "page.html").is_symlink() and (tmp_path / "elsewhere" / "real.html").read_text() == "newer"


def test_no_link_that_somebody_planted_is_followed(tmp_path, monkeypatch):
    """Under the name that the part has until it is whole: the next writer must not write through it."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    monkeypatch.setattr("lab.core.files.token_hex", lambda _: "guessed")
    for name in (".lab-guessed.part", ".page.html.part"):
        (tmp_path / name).symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "page.html", "new")
    assert victim.read_text() == "mine" and not (tmp_path / "page.html").exists()


def test_an_existing_file_keeps_its_mode_and_a_new_one_has_that_of_the_umask(tmp_path):
    private, new = tmp_path / "private", tmp_path / "new"
    private.touch()
    private.chmod(0o600)
    for path in (private, new):
        write_whole(path, b"bytes")
    umask = os.umask(0)
    os.umask(umask)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (private, new)] == [0o600, 0o666 & ~umask]


@pytest.mark.parametrize("into", ["pipe", "file"])
def test_what_goes_to_standard_output_by_its_name_stands_before_what_is_printed_after_it(tmp_path, into):
    script = "from pathlib import Path; from lab.core.files import write_whole; write_whole(Path('/dev/stdout'), 'page\\n'); print('table')"
    with open(tmp_path / "out", "w+b") as file:
        out = subprocess.PIPE if into == "pipe" else file
        done = subprocess.run([sys.executable, "-c", script], stdout=out, check=True)
        file.seek(0)
        assert (done.stdout or file.read()) == b"page\ntable\n"
