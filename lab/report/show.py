"""What the lab's values print in a terminal and show in a notebook, by their type; `lab` registers this with
`lab.core.display`."""

from __future__ import annotations

from functools import singledispatch

from lab.core.changes import Difference
from lab.core.ledger import Ledger
from lab.diagnosis import Findings
from lab.harness.result import Result
from lab.measure.prediction import Prediction
from lab.report.changes import changes_text
from lab.report.diagnosis import findings_text
from lab.report.html import notebook
from lab.report.seconds import prediction_text
from lab.report.tables import ledger_text
from lab.settle import Settlement


@singledispatch
def text(value: object) -> str:
    return repr(value)


@singledispatch
def html(value: object) -> str:
    raise TypeError(f"nothing shows a {type(value).__name__} as HTML")


text.register(Ledger, ledger_text)
text.register(Difference, lambda difference: changes_text(difference.before, difference.after))
text.register(Findings, findings_text)
text.register(Prediction, prediction_text)
html.register(Findings, notebook.findings_html)
html.register(Prediction, notebook.prediction_html)
html.register(Ledger, notebook.ledger_html)
html.register(Settlement, notebook.settlement_html)
html.register(Result, notebook.result_html)
