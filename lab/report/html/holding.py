"""What fills the memory of one device: arguments by kind, and the largest temporaries of the fullest moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from lab.core.units import bytes_text
from lab.report.html.markup import joined
from lab.report.html.tables import Column, bars, table

if TYPE_CHECKING:
    from lab.diagnosis import Diagnosis


def holding(diagnosis: Diagnosis) -> Markup:
    state, held = diagnosis.state, diagnosis.at_peak
    tables = []
    if state:
        sizes = list(state.values())
        columns = [Column("kind", list(state)), bars("bytes", list(map(bytes_text, sizes)), sizes)]
        tables.append(table("Arguments by kind", columns))
    if held:
        sizes = [buffer.bytes for buffer in held]
        columns = [
            bars("bytes", list(map(bytes_text, sizes)), sizes),
            Column("scope", [buffer.scope for buffer in held]),
            Column("line", [buffer.origin or "" for buffer in held]),
        ]
        tables.append(table("Largest temporaries at the peak", columns))
    return joined(tables)
