"""Tables of a page: with a caption and scopes, sorted and filtered where they are long, with bars where numbers
compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from markupsafe import Markup

from lab.report.fitted import Column as TextColumn
from lab.report.html.markup import rendered

LONG = 40
MOST_WHOLE, MOST_BUILT = 1000, 200
"""Rows of a table that stands in a page as it is; rows of a longer one that are built before any is asked for."""
_IN_A_PAGE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}


@dataclass(frozen=True)
class Column:
    """A heading and its cells.

    Attributes:
      values: of a column of numbers, what it is sorted by; None where a number is not known.
      shares: lengths of bars behind the cells, 0 to 1.
      is_choice: rows can be picked by its cells, where these are few.
      is_summed: bytes that are added up over the rows shown.
      is_path: names of several levels, which are broken between levels where a page is narrow.
    """

    heading: str
    cells: Sequence[Any]
    values: Sequence[float | None] | None = None
    shares: Sequence[float] | None = None
    is_choice: bool = False
    is_summed: bool = False
    is_path: bool = False

    @cached_property
    def is_long(self) -> bool:
        return max(map(len, self._texts), default=0) > LONG

    @cached_property
    def is_prose(self) -> bool:
        """Its cells are broken into lines; names are not."""
        return self.is_long and any(" " in text for text in self._texts)

    @cached_property
    def _texts(self) -> list[str]:
        return [cell.striptags() if isinstance(cell, Markup) else str(cell) for cell in self.cells]

    def value(self, row: int) -> str | None:
        """For the script."""
        if self.values is None:
            return None
        value = self.values[row]
        return "" if value is None else f"{value:.12g}"


def numbers(heading: str, cells: Sequence[Any], values: Sequence[float | Fraction | None], **more: Any) -> Column:
    return Column(heading, cells, tuple(None if value is None else float(value) for value in values), **more)


def plain(column: TextColumn) -> Column:
    """A column of the terminal's tables; numbers are sorted by what is printed."""
    heading = " ".join(column.heading.split())
    return (
        numbers(heading, column.cells, list(map(_read, column.cells)))
        if column.is_number
        else Column(heading, column.cells)
    )


def _read(cell: str) -> float | None:
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None


def bars(heading: str, cells: Sequence[Any], values: Sequence[float | Fraction], whole: float | None = None) -> Column:
    """Numbers with bars, the longest of them full, or what equals `whole`."""
    most = float(whole or max(values, default=0)) or 1.0
    return numbers(heading, cells, values, shares=tuple(min(1.0, float(value) / most) for value in values))


def _broken(cell: Any) -> Markup:
    return Markup("/<wbr/>").join(str(cell).split("/"))


def table(
    caption: str, columns: Sequence[Column], *, is_sortable: bool = False, details: Sequence[Sequence[str]] = ()
) -> Markup:
    """Columns without a word in them are left out, and all of it where nothing is left. The page's script lets the
    reader sort and filter what is sortable, and builds the rows beyond the first `MOST_BUILT` as they are asked for.

    Args:
      details: lines that a row opens into, a list for each.
    """
    told = [column for column in columns if any(map(str, column.cells))]
    if not told:
        return Markup("")
    rows = len(told[0].cells)
    built = MOST_BUILT if is_sortable and rows > MOST_WHOLE else rows
    return rendered(
        "table.html",
        caption=caption,
        columns=told,
        broken=_broken,
        built=built,
        later=rows - built,
        data=_data(told, details, built) if rows > built else "",
        is_sortable=is_sortable,
        details=details,
    )


def _data(columns: Sequence[Column], details: Sequence[Sequence[str]], built: int) -> Markup:
    """The rows that are not built yet, as JSON that may stand in a page."""
    found = {"columns": [_column_data(column, built) for column in columns], "details": details[built:]}
    return Markup(json.dumps(found, separators=(",", ":"), ensure_ascii=False).translate(_IN_A_PAGE))


def _column_data(column: Column, built: int) -> dict[str, Any]:
    """`words` are the different cells, `at` which of them a row has; a cell of elements is a list of its HTML."""
    cells = column.cells[built:]
    places = {cell: number for number, cell in enumerate(dict.fromkeys(cells))}
    return {
        "words": [[cell] if isinstance(cell, Markup) else str(cell) for cell in places],
        "at": None if len(places) == len(cells) else [places[cell] for cell in cells],
        "values": None if column.values is None else column.values[built:],
        "shares": None if column.shares is None else [round(share, 3) for share in column.shares[built:]],
        "class": "path" if column.is_path else "long" if column.is_prose and column.values is None else "",
    }
