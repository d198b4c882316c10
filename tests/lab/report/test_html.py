"""What pages say, read back from their elements; `test_html_browser` opens them."""

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from lab.core.frame import Frame
from lab.core.ledger import HostCopies, Ledger, Memory, Totals
from lab.diagnosis import Diagnosis, Finding
from lab.diagnosis.holding import HeldBuffer
from lab.harness.claim import Claim, ClaimVerdict
from lab.harness.question import Answer, Row
from lab.harness.result import Composition, Computed
from lab.meshes.axes import Axes
from lab.report import book
from lab.report.drawing import Box
from lab.report.gantt import Gantt
from lab.report.html import notebook, reports
from lab.report.tables import headline
from lab.report.verdicts import by_schedule
from tests.lab.cli.test_cli import TEXT
from tests.lab.report.pages import HOSTILE, headings, ledger, page, read, tables
from tests.lab.report.test_verdicts import GATHER, REDUCE, failed, result

CLAIM = Claim("ch12.ring", ClaimVerdict.REFUTED, f"seven of eight {HOSTILE}", disputed="D-1")
ANSWER = Answer(
    "ch37_chip", "What becomes of it?", {"chips": 8}, (Row("bytes", 7e6, "B", 8e6), Row("best", "ring")), (CLAIM,), 1.0
)
RESULT = replace(
    result([REDUCE], [REDUCE, GATHER]), claims=(CLAIM,), held={"arguments": 10, "activations": 30, "nothing": 0}
)
PIPELINE = replace(RESULT, mesh={"pipe": 4}, parameters={"schedule": "1f1b", "accumulation": 8, "chunks": 1})


@pytest.fixture(scope="module")
def inspected() -> str:
    return page()


def charts(html: str, title: str) -> list[ET.Element]:
    return [one for one in read(html).iter("svg") if one.get("aria-label") == title]


def rows_of_transfers(html: str) -> list[list[str]]:
    """The headings first, then a row for transfers alike, without what it opens into."""
    (rows,) = [rows for caption, rows in tables(html).items() if "of transfers alike" in caption]
    return [row for row in rows if len(row) > 1]


def of(*results, answers=(), is_audit=False) -> str:
    return reports.experiments(results, (), answers, is_audit=is_audit)


def test_a_scope_called_script_is_text_on_every_page(inspected):
    for html in (inspected, of(RESULT, RESULT, answers=(ANSWER,))):
        assert HOSTILE not in html
        assert HOSTILE in "".join(read(html).itertext())
        assert html.count("<script") == 1
    assert HOSTILE not in notebook.ledger_html(ledger()) + RESULT._repr_html_()


def test_a_page_fetches_nothing(inspected):
    assert not re.search(r"""(src|href)="(?!#)|url\(|@import""", inspected)
    assert "default-src 'none'" in inspected


def test_findings_stand_first_then_sections_in_the_order_of_a_page(inspected):
    assert headings(inspected) == [
        "Findings",
        "Mesh",
        "Where the bytes go",
        "Transfers",
        "Memory of one device",
        "Roofline",
        "Who sends to whom",
        "Notes",
    ]


def test_the_contents_of_one_program_are_its_sections_and_of_two_the_programs(inspected):
    def contents(html: str) -> list[str]:
        return re.findall(r'<li><a href="#[^"]+">([^<]+)</a></li>', html)

    two = reports.inspection([Diagnosis(ledger(), ()), Diagnosis(replace(ledger(), source="other.hlo"), ())])
    assert contents(inspected) == headings(inspected)
    assert [line.partition(":")[0] for line in contents(two)] == ["step.hlo", "other.hlo"]


def test_a_ledger_without_mesh_target_memory_or_notes_has_no_empty_sections():
    bare = Ledger(tuple(replace(t, link=None, op_name=None) for t in ledger().transfers), "step.hlo")
    html = reports.inspection([Diagnosis(bare, ())])
    assert headings(html) == ["Where the bytes go", "Transfers"]
    assert not {"operation", "link"} & set(rows_of_transfers(html)[0])
    assert headings(reports.inspection([Diagnosis(Ledger(()), ())])) == []


def test_the_verdict_counts_findings_and_says_that_92_gb_do_not_fit(inspected):
    said = "".join(read(inspected).find("section").itertext())
    assert "1 finding" in said
    assert "It does not fit: the peak of 92 GB is 108 % of the 85.02 GB of NVIDIA H100 SXM 80 GB." in said
    assert "It fits: the peak of 60 GB is 94.1 % of 63.76 GB" in page(memory=Memory(1, 1, 1, 1, 60 * 10**9))


def test_the_verdict_says_how_long_links_and_products_take_at_least(inspected):
    said = "".join(read(inspected).find("section").itertext())
    network = Totals.of(t for t in ledger().transfers if t.link == "network").wire_bytes
    assert f"go over NDR InfiniBand: at least {float(network) / 50e9 * 1e3:.3g} ms, at its full rate of 50 GB/s" in said
    assert "Its matrix products are 300 TFLOP a step: at least 303 ms, at the 989.5 TFLOP/s" in said


def test_links_and_products_in_branches_take_no_least_time():
    with_branches = replace(
        ledger(),
        transfers=tuple(replace(t, conditional=t.link == "network") for t in ledger().transfers),
        flops_in_branches={"forward/layers": 10**12},
    )
    html = reports.inspection([Diagnosis(with_branches, ())])
    said = "".join(read(html).find("section").itertext())
    assert "One device sends at most " in said and " a step, if every branch runs." in said
    network, inside = re.findall(r"go over (NDR InfiniBand|NVLink 4)(, if every branch runs)?: (at least)?", said)
    assert sorted((network, inside)) == [
        ("NDR InfiniBand", ", if every branch runs", ""),
        ("NVLink 4", "", "at least"),
    ]
    assert "products are at most 300 TFLOP a step, if every branch runs: 303 ms, at the" in said
    assert "takes at full rate, if every branch runs" in html and "takes at least" not in html


def test_a_page_says_what_fills_the_memory_and_what_goes_to_the_host():
    held = HeldBuffer(3 * 10**9, "mlp", "step.py:7")
    found = replace(ledger(), host_copies=HostCopies(2 * 10**9, 10**9))
    html = reports.inspection([Diagnosis(found, (), None, {"moments": 8 * 10**9, "parameters": 4 * 10**9}, (held,))])
    rows = tables(html)
    assert rows["Arguments by kind"][1:] == [["moments", "8 GB"], ["parameters", "4 GB"]]
    assert rows["Largest temporaries at the peak"][1:] == [["3 GB", "mlp", "step.py:7"]]
    assert "Copied in a step: 2 GB to the host, 1 GB to the device." in html


def test_a_program_without_a_mesh_is_not_called_clean_on_its_page():
    html = reports.inspection([Diagnosis(replace(ledger(), mesh=None), ())])
    assert "Not diagnosed: no mesh was given" in html and 'class="verdict plain"' in html
    assert "kinds of waste were looked for" not in html


def test_shares_of_memory_are_of_what_jax_takes_and_none_is_written_with_an_exponent():
    rows = tables(page(memory=Memory(85_017_493_504 * 3 // 8, 0, 5, 0, 63_763_120_128)))
    rows = rows["As compiled, by XLA's own analysis"][1:]
    assert [row[2] for row in rows] == ["50 %", "0 %", "< 0.01 %", "100 %"]


def test_a_slow_link_takes_its_bytes_over_50_gb_a_second(inspected):
    network = Totals.of(t for t in ledger().transfers if t.link == "network").wire_bytes
    (row,) = [row for row in tables(inspected)["By link, of one device in one step"] if row[0] == "network"]
    assert row[1] == "NDR InfiniBand" and row[-1] == f"{float(network) / 50e9 * 1e3:.3g} ms"


def test_wire_bytes_by_axes_by_link_and_by_term_add_up_to_the_ledgers(inspected):
    total = ledger().totals().wire_bytes
    for caption in (
        "By axes and kind, of one device in one step",
        "By link, of one device in one step",
        "By term, of one device in one step; * stands for a number",
    ):
        (table,) = [table for table in read(inspected).iter("table") if table.find("caption").text == caption]
        at = [cell.text for cell in table.find("thead/tr")].index("wire a step")
        assert sum(float(row[at].get("data-value")) for row in table.find("tbody")) == pytest.approx(
            float(total), rel=1e-9
        )


def test_every_transfer_has_a_row_with_its_line(inspected):
    rows = rows_of_transfers(inspected)
    lines = [row[rows[0].index("origin")] for row in rows[1:]]
    assert sorted(lines) == sorted(t.origin for t in ledger().transfers)


def test_transfers_alike_share_a_row_that_opens_into_its_sites():
    one = replace(ledger().transfers[0], scope="layers_0/mlp", instruction="all-gather.7", executions=2)
    other = replace(one, scope="layers_1/mlp", instruction="all-gather.8", op_name="jit(step)/while", executions=3)
    html = reports.inspection([Diagnosis(replace(ledger(), transfers=(one, other)), ())])
    heads, row = rows_of_transfers(html)
    told = dict(zip(heads, row, strict=True))
    assert (told["sites"], told["executions"], told["scope"]) == ("2", "5", "layers_*/mlp")
    (opened,) = [row for row in read(html).iter("tr") if row.get("class") == "detail"]
    assert ["".join(item.itertext()) for item in opened.iter("li")] == [
        f"all-gather.7, 2 executions, scope layers_0/mlp, {one.op_name}",
        "all-gather.8, 3 executions, scope layers_1/mlp, jit(step)/while",
    ]


def test_paths_are_relative_to_their_common_folder_which_stands_there_once():
    places = ("/home/me/project/src/model.py:12", "/home/me/project/train.py:3", "/v/site-packages/flax/nnx.py:5")
    found = [replace(t, origin=place) for t, place in zip(ledger().transfers, places, strict=False)]
    html = reports.inspection([Diagnosis(replace(ledger(), transfers=tuple(found)), ())])
    rows = rows_of_transfers(html)
    assert {row[rows[0].index("origin")] for row in rows[1:]} == {"src/model.py:12", "train.py:3", "flax/nnx.py:5"}
    assert html.count("/home/me/project/") == 1 and "Paths are relative to /home/me/project/." in html


def test_axes_tell_the_link_that_their_neighbours_meet_over(inspected):
    rows = tables(inspected)["Axes of the mesh"]
    assert {row[0]: row[2] for row in rows[1:]} == {
        "data": "NDR InfiniBand",
        "pipe": "NDR InfiniBand",
        "fsdp": "NDR InfiniBand",
        "tensor": "NVLink 4",
    }


def test_a_program_at_half_the_ridge_of_its_link_reaches_half_the_peak():
    sent = Totals.of(t for t in ledger().transfers if t.link == "network").wire_bytes
    html = page(flops=int(float(sent) * 989.5e12 / 50e9 / 2))
    (row,) = [
        row for row in tables(html)["What each link allows, if nothing else limits"] if row[0] == "NDR InfiniBand"
    ]
    assert row[-1] == "50 %"


def test_tables_have_captions_and_scopes_and_pictures_have_words(inspected):
    body = read(inspected)
    for table in body.iter("table"):
        assert table.find("caption").text
        assert {cell.get("scope") for cell in table.iter("th")} == {"col", "row"}
    assert all(picture.get("aria-label") or picture.get("aria-hidden") for picture in body.iter("svg"))
    ids = [one.get("id") for one in body.iter() if one.get("id")]
    assert len(ids) == len(set(ids)) and {one.get("aria-labelledby") for one in body.iter("section")} <= set(ids)


def test_an_unexplained_gather_of_250_bytes_makes_a_run_refuted():
    html = of(RESULT)
    assert read(html).find("section/h1").text == "Refuted" and 'class="verdict bad"' in html
    assert "sends 7,000,250 B a step: 7,000,000 exact or explained, 0 attributed, 250 unexplained" in html
    assert 'class="verdict good"' in of(result([REDUCE], [REDUCE]))
    assert read(of(failed())).find("section/h1").text == "Failed" and "failed: out of memory" in of(failed())


def test_theorys_memory_is_40_bytes_together_without_what_is_nothing():
    rows = tables(of(RESULT))["At the peak, by theory"]
    assert [row[:2] for row in rows[1:]] == [["arguments", "10 B"], ["activations", "30 B"], ["together", "40 B"]]


def test_equal_claims_of_two_runs_share_a_row_and_links_lead_to_parts():
    html = of(RESULT, replace(RESULT, style="explicit"), answers=(ANSWER,))
    (row,) = tables(html)["Claims and their evidence"][1:]
    assert row[1] == "known erratum" and "declared" in row[-1] and "explicit" in row[-1] and "ch37_chip" in row[-1]
    ids = {one.get("id") for one in read(html).iter() if one.get("id")}
    assert {link.get("href") for link in read(html).iter("a")} <= {f"#{id}" for id in ids}
    assert {"run-1", "run-2", "question-1"} <= ids


def test_an_answer_shows_values_beside_theory():
    assert tables(of(answers=(ANSWER,)))["With chips 8"] == [
        ["what", "value", "theory"],
        ["bytes", "7 MB", "8 MB"],
        ["best", "ring", ""],
    ]


def test_a_question_that_xla_refuses_has_failed_on_its_page():
    html = of(answers=(ANSWER, replace(ANSWER, rows=(), claims=(), failure="out of memory")))
    assert read(html).find("section/h1").text == "Failed" and 'class="verdict bad"' in html
    assert "<li>failed: out of memory</li>" in html and "failed: ch37_chip" in html
    assert [row[1] for row in tables(html)["Trainings, and questions that numbers answer"][1:]] == [
        "answered",
        "failed",
    ]


def test_a_pipeline_of_four_and_eight_idles_3_of_11_and_has_a_box_for_each_piece_of_work():
    (chart,) = charts(of(PIPELINE), "1f1b: 4 stages, 8 micro-batches; idle 27.3 %")
    assert sum(box.find("title") is not None for box in chart.iter("rect")) == 4 * 8 * 2
    assert "Pipeline" not in headings(of(RESULT))


def test_the_page_says_of_a_schedule_what_the_text_does_and_each_stages_bytes_and_flops():
    sent = tuple(map(Fraction, (1, 2, 3, 4)))
    flops = Computed({"6 N D": Fraction(9)}, sent, Fraction(9), tuple(2 * n for n in sent), 9)
    found = replace(PIPELINE, composition=Composition(sent, (REDUCE,), flops, {"data": sent[::-1]}))
    html = of(found)
    said = [line.text for line in read(html).iter("li")]
    assert len(by_schedule(found)) == 5 and set(by_schedule(found)) <= set(said)
    (rows,) = [rows for title, rows in tables(html).items() if title.startswith("Busy share of the time")]
    assert rows[0][2:] == ["wire bytes, all", "wire bytes, data", "FLOPs by theory", "FLOPs compiled"]
    assert [row[2:] for row in rows[1:]] == [
        ["1", "4", "1", "2"],
        ["2", "3", "2", "4"],
        ["3", "2", "3", "6"],
        ["4", "1", "4", "8"],
    ]


def test_the_page_draws_the_pipeline_as_lab_plot_does():
    html = of(replace(PIPELINE, parameters={**PIPELINE.parameters, "schedule": "interleaved", "chunks": 2}))
    drawn = Gantt("interleaved", stages=4, micro_batches=8, chunks=2).drawing()
    (chart,) = charts(html, drawn.title)
    boxes = [shape for shape in drawn.shapes if isinstance(shape, Box)]
    assert [(box.find("title") is not None and box.find("title").text) or "" for box in chart.iter("rect")] == [
        box.told for box in boxes
    ]
    assert [box.get("style") for box in chart.iter("rect")] == [f"fill:{box.colour}" for box in boxes]


def test_the_audit_has_all_errata_worst_first_and_a_verify_no_ledgers():
    html = of(RESULT, is_audit=True)
    wrong = book.page(None, (), errata=True, coverage=False).data.errata
    rows = tables(html)["What is wrong in the book, worst first"]
    assert [row[0] for row in rows[1:]] == [entry.id for entry in wrong]
    assert headings(html)[:2] == ["Errata", "Coverage"] and "Transfers" not in headings(html)


def test_notebooks_show_verdict_and_terms_in_the_style_of_pages():
    html = RESULT.settlement._repr_html_()
    assert ">refuted<" in html and "layers/mlp/up" in html and "<script" not in html
    assert headline(ledger()) in ledger()._repr_html_()
    assert notebook.source("report.css") in html


def test_the_command_writes_a_page_beside_what_it_prints(lab):
    Path("step.hlo").write_text(TEXT)
    printed = lab("inspect", "step.hlo", "--mesh", "data=2,tensor=4")
    written = lab("inspect", "step.hlo", "--mesh", "data=2,tensor=4", "--html", "step.html")
    assert written == printed and printed.status == 0
    html = Path("step.html").read_text(encoding="utf-8")
    assert tables(html)["By axes and kind, of one device in one step"][1][:2] == ["tensor", "all_reduce"]


def test_a_page_that_cannot_be_written_is_refused_before_the_work(lab):
    answer = lab("inspect", "nothing.hlo", "--html", "absent/step.html")
    assert answer.status == 2 and "absent/step.html: cannot be written" in answer.err


def test_a_mesh_of_jax_on_four_hosts_says_so_and_names_each_devices():
    devices = np.array([SimpleNamespace(platform="gpu", process_index=i // 4, id=i) for i in range(16)]).reshape(
        2, 2, 4
    )
    html = notebook.mesh_html(SimpleNamespace(shape={"data": 2, "fsdp": 2, "tensor": 4}, devices=devices))
    assert "16 devices in 4 hosts" in html and "position 13: data=1, fsdp=1, tensor=1, host 3" in html


def test_the_extension_shows_meshes_of_jax_as_axes_show_themselves():
    import jax

    import lab

    shown = {}

    class Formatter:
        def for_type_by_name(self, module, name, show):
            shown[module, name] = show

    formatters = SimpleNamespace(formatters={"text/html": Formatter()})
    lab.load_ipython_extension(SimpleNamespace(display_formatter=formatters, register_magic_function=lambda *_: None))
    show = shown[jax.sharding.Mesh.__module__, jax.sharding.Mesh.__qualname__]
    assert Axes.parse("data=1,tensor=1")._repr_html_() in show(
        jax.sharding.Mesh([[jax.devices()[0]]], ("data", "tensor"))
    )


STACK = (
    Frame("/home/me/helpers.py", 5, "einsum"),
    Frame("/v/site-packages/flax/nnx.py", 7, "Linear.__call__", True),
    Frame("/home/me/model.py", 8, "build.<locals>.step"),
)


def test_a_row_opens_into_its_stacks_and_a_finding_into_its_own():
    one = replace(ledger().transfers[0], origin="/home/me/model.py:8 step via /home/me/helpers.py:5", stack=STACK)
    other = replace(one, instruction="all-gather.8", stack=STACK[:1])
    again = replace(one, instruction="all-gather.9", stack=(*STACK, STACK[-1], STACK[-1]))  # Two calls in one line.
    finding = Finding("rebuilt_whole", "w is rebuilt", "move it", (one,), one.origin, stack=again.stack)
    for row, names in (
        ((one, again), [""]),
        ((one, other, again), [" of all-gather.0 and 1 more", " of all-gather.8"]),
    ):
        html = reports.inspection([Diagnosis(replace(ledger(), transfers=row), (finding,))])
        (opened,) = [row for row in read(html).iter("tr") if row.get("class") == "detail"]
        stacks = [item.text for item in opened.iter("li") if item.text.startswith("stack")]
        whole = "helpers.py:5 einsum < flax/nnx.py:7 Linear (library) < model.py:8 step"
        assert stacks == [
            f"stack{name}: {said}" for name, said in zip(names, (whole, "helpers.py:5 einsum"), strict=False)
        ]
        (article,) = read(html).iter("article")
        assert [item.text for item in article.find("details").iter("li")] == whole.split(" < ")
