"""What the README and the pages say to run can be run, as far as a prediction goes."""

import re
import shlex

import pytest

from lab.cli import running
from tests.paths import ROOT

TEXTS = [path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
RUNS = sorted(set(re.findall(r"^\$ (lab run .*?)(?: +[#>].*)?$|`(lab run [^`]*)`", "\n".join(TEXTS), re.MULTILINE)))


@pytest.mark.parametrize("command", ["".join(found) for found in RUNS])
def test_every_run_that_a_page_shows_has_a_prediction(lab, monkeypatch, command):
    """Up to compiling, so that names, targets, styles and sizes go together."""
    asked = []

    def predicted(some, mesh):
        for run in some:
            axes = mesh or run.axes or run.experiment.axes(run.target)
            asked.append(run.experiment.predict(run.experiment.parameters, axes))
        return []

    monkeypatch.setattr(running, "results", predicted)
    monkeypatch.setattr(running, "trained", lambda trainings, *_: (asked.extend(trainings) or [], ()))
    monkeypatch.setattr(running, "answered", lambda questions, *_: asked.extend(questions) or [])
    answer = lab(*shlex.split(command)[1:])
    assert (answer.status, answer.err) == (0, "") and asked
