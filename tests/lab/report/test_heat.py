"""What the picture of traffic shows, read back from its shapes, its files and the page."""

import json
import re

import pytest

from lab.core.ledger import Kind, Ledger, Transfer
from lab.diagnosis import Diagnosis
from lab.meshes.errors import UsageError
from lab.report.drawing import Box, Label
from lab.report.heat import WhoSends
from lab.report.html import reports
from lab.report.plots import save

STEP = Ledger(
    (
        Transfer(Kind.ALL_REDUCE, ("tensor",), 4, 1, "bf16", 8_000, link="host"),
        Transfer(Kind.ALL_REDUCE, ("data",), 2, 1, "bf16", 1_000, link="network"),
    ),
    "step.hlo",
    "gpu:h100:2x4",
    8,
    {"data": 2, "tensor": 4},
)


@pytest.fixture
def source(tmp_path) -> str:
    (tmp_path / "step.json").write_text(json.dumps(STEP.to_json()))
    return str(tmp_path / "step.json")


def cells(source: str) -> dict[str, str]:
    boxes = [shape for shape in WhoSends(source).drawing().shapes if isinstance(shape, Box)]
    return dict(box.told.split(": ") for box in boxes)


def test_four_gpus_of_a_host_keep_48_kb_and_send_4_kb_to_the_other(source):
    """4 x 3/2 x 8 kB around the ring inside, 4 x 1 kB across."""
    assert cells(source) == {"0 to 0": "48 kB", "0 to 1": "4 kB", "1 to 0": "4 kB", "1 to 1": "48 kB"}
    said = [shape.text for shape in WhoSends(source).drawing().shapes if isinstance(shape, Label)]
    assert said[:2] == ["Bytes of a step from host to host", "8 kB of 104 kB leave their host"]
    assert said.count("48 kB") == said.count("4 kB") == 2


def test_more_bytes_are_darker(source):
    boxes = [shape for shape in WhoSends(source).drawing().shapes if isinstance(shape, Box)]
    assert [box.opacity for box in boxes] == [1, 0.36, 0.36, 1]


def test_the_page_and_the_plot_draw_one_matrix(source, tmp_path):
    save("traffic", {"source": source}, tmp_path / "a.svg")
    page = reports.inspection([Diagnosis(STEP, ())])
    shapes = re.findall(r"<title>.*?</title>|<rect[^>]* x=[^>]*y=[^>]*>", (tmp_path / "a.svg").read_text())
    told = [shape for shape in shapes if shape.startswith("<title>")]
    assert len(told) == 4 and all(shape in page for shape in told)
    assert page.count('aria-label="Bytes of a step from host to host"') == 2  # The picture, and its frame.
    assert 'aria-label="Bytes of a step from device to device"' in page


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_the_matrix_is_a_file_of_any_format(source, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    save("traffic", {"source": source}, tmp_path / f"a{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes()[:4] in (b"\x89PNG", b"%PDF", b"<svg")


def test_a_plot_of_traffic_needs_a_program_and_its_mesh(tmp_path):
    with pytest.raises(UsageError, match=r"needs a program: lab inspect SOURCE .* --set source=step.json"):
        WhoSends().drawing()
    (tmp_path / "step.hlo").write_text("HloModule step, num_partitions=8\n\nENTRY %main () -> f32[] {\n}\n")
    with pytest.raises(
        UsageError, match="found no mesh, expected one program and its axes, --set mesh=data=2,tensor=8"
    ):
        WhoSends(str(tmp_path / "step.hlo")).drawing()
