"""What notebooks show of ledgers, verdicts and meshes: the tables and pictures of a page, in its style, without its
script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from lab.compile.inspection import devices_of
from lab.core.known import known
from lab.core.ledger import Ledger
from lab.diagnosis import Findings
from lab.measure.prediction import Prediction
from lab.meshes.axes import Axes
from lab.meshes.picture import mesh_svg
from lab.meshes.platforms import LinkName
from lab.report.diagnosis import gaps, verdict, worst_first
from lab.report.html import reports, runs, seconds
from lab.report.html.markup import element, joined, paragraphs, source
from lab.report.html.tables import plain, table
from lab.report.origins import common_folder, folder_lines, short_diagnosis, short_ledger
from lab.report.tables import facts, headline, total_columns, transfer_columns
from lab.settle import Settlement

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from lab.harness.result import Result


def page_html(page: str) -> str:
    """A page in a frame of its own."""
    return str(element("iframe", "", srcdoc=page, style="width: 100%; height: 40em; border: 0"))


def findings_html(findings: Findings) -> str:
    """Each with what it costs and what to try."""
    folder = common_folder(findings.diagnosis.ledger, findings=findings)
    short = short_diagnosis(findings.diagnosis, folder)
    head = f"{short.ledger.source or 'the program'}: {verdict(short)}{worst_first(findings)}"
    return _output(element("p", head), reports.findings(short), paragraphs([*gaps(short), *folder_lines(folder)]))


def prediction_html(found: Prediction) -> str:
    """What `lab time` prints, with the timeline."""
    return _output(seconds.section(found))


def ledger_html(ledger: Ledger) -> str:
    """The tables that printing it gives."""
    folder = common_folder(ledger)
    ledger = short_ledger(ledger, folder)
    told = (
        [("Transfers alike in one row", transfer_columns), ("Totals of one device in one step", total_columns)]
        if ledger.transfers
        else []
    )
    tables = [table(caption, list(map(plain, columns(ledger)))) for caption, columns in told]
    head = paragraphs([headline(ledger), *folder_lines(folder)])
    return _output(head, *tables, paragraphs(facts(ledger)))


def settlement_html(settled: Settlement) -> str:
    """The verdict, the terms, and what no term asks for."""
    return _output(_word(settled.verdict), runs.terms_table(settled.terms), runs.left_over(settled.unexplained))


def result_html(result: Result) -> str:
    """The verdict of a run, its terms and its claims."""
    claims = runs.claims([(result.experiment, claim) for claim in result.claims]).body
    return _output(_word(result.verdict), element("p", runs.name(result)), runs.settled(result), claims)


def mesh_html(mesh: Any) -> str:
    """A `jax.sharding.Mesh`, coloured by host, or by slice, where there are several."""
    axes, placed = Axes.of(dict(mesh.shape)), devices_of(mesh)
    domains = placed.domains if placed and len(set(placed.domains)) > 1 else None
    domain = "slice" if placed and LinkName.ICI in placed.link_names else "host"
    parted = f" in {len(set(domains)):,} {domain}s" if domains else ""
    return _output(
        element("p", f"mesh {axes}: {axes.size:,} devices{parted}"), Markup(mesh_svg(axes.shape, domains, domain))
    )


def register(shell: InteractiveShell) -> None:
    """Meshes of JAX are shown as pictures from now on. Their type is named, since JAX is not to be imported before a
    target is."""
    known(shell.display_formatter).formatters["text/html"].for_type_by_name("jax._src.mesh", "Mesh", mesh_html)


def _word(verdict: str) -> Markup:
    return element("p", runs.status(verdict))


def _output(*parts: Markup) -> str:
    style = element("style", Markup(source("report.css")))
    return str(element("div", style, joined(parts), class_="lab"))
