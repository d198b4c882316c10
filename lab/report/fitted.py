"""Text that fits a terminal: tables of whole cells, and sentences broken between words. In a pipe lines are as long as
they are, unless COLUMNS says otherwise."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from textwrap import TextWrapper

from lab.core.printable import printable

GAP, INDENT = "  ", "    "
NARROWEST_TERMINAL, NARROWEST_WORDS = 32, 24
"""Lines are not broken for a narrower terminal; a column of sentences becomes no narrower."""
RED, PLAIN = "\x1b[31m", "\x1b[0m"
_OUR_STYLES = re.compile(f"({re.escape(RED)}|{re.escape(PLAIN)})")
_STYLED = re.compile(r"\x1b\[\d+m")
# A number and its unit stay together.
_SPACE = r"(\s+(?!(?<=\d )[kMGTPE]?i?(?:B|FLOP)\b))"
_BETWEEN_WORDS, _AFTER_SLASHES = re.compile(_SPACE), re.compile(f"{_SPACE}|(?<=/)")
_INDENT = re.compile(r" *(?:\d+\. |- )?")


@dataclass(frozen=True)
class Column:
    """A heading, its cells, and whether they are numbers."""

    heading: str
    cells: tuple[str, ...]
    is_number: bool = False

    @property
    def widest(self) -> int:
        return max(map(len, (*self.heading.split("\n"), *self.cells)))

    @property
    def narrowest(self) -> int:
        """Sentences may be broken between words."""
        if self.is_number or not any(" " in cell for cell in self.cells):
            return self.widest
        words = [word for text in (self.heading, *self.cells) for word in text.split()]
        return min(self.widest, max(NARROWEST_WORDS, *map(len, words)))


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is, or that COLUMNS says; None where it is none."""
    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return max(NARROWEST_TERMINAL, shutil.get_terminal_size().columns) if is_known else None


def table(columns: Sequence[Column], width: int | None) -> str:
    """Aligned columns. Where they are too wide, sentences are broken between words, and the columns that still find no
    room stand below their row, each cell after its heading."""
    kept = len(columns) if width is None else _fitting(columns, width)
    widths = _widths(columns[:kept], width)
    rule = _rule_sign() * (sum(widths) + len(GAP) * (kept - 1))
    headings = [column.heading.split("\n") for column in columns[:kept]]
    deepest = max(map(len, headings))
    lines = [*_row([[""] * (deepest - len(lines)) + lines for lines in headings], columns, widths), rule]
    for cells in zip(*(column.cells for column in columns), strict=True):
        lines += _row([_broken(cell, at) for cell, at in zip(cells, widths, strict=False)], columns, widths)
        rest = zip(columns[kept:], cells[kept:], strict=True)
        below = ", ".join(f"{' '.join(column.heading.split())} {cell}" for column, cell in rest if cell)
        if below and width:
            lines += [INDENT + line for line in _broken(below, width - len(INDENT))]
    return "\n".join(lines)


def sentences(text: str, width: int | None) -> str:
    """The same text, its lines broken between words where they are longer than the width."""
    if width is None:
        return text
    return "\n".join(
        line if len(_STYLED.sub("", line)) <= width else "\n".join(_hanging(line, width)) for line in text.split("\n")
    )


def safe(text: str) -> str:
    """The same text without control characters but for the colours of tables."""
    if not _has_colours():
        return printable(text)
    return "".join(part if _OUR_STYLES.match(part) else printable(part) for part in _OUR_STYLES.split(text))


def _rule_sign() -> str:
    """A line, or a dash where the output's encoding has no line."""
    try:
        "─".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeError:
        return "-"
    return "─"


def _fitting(columns: Sequence[Column], width: int) -> int:
    """How many columns stand side by side, one at least."""
    ends = accumulate(column.narrowest + len(GAP) for column in columns)
    return max(1, sum(end - len(GAP) <= width for end in ends))


def _widths(columns: Sequence[Column], width: int | None) -> list[int]:
    if width is None:
        return [column.widest for column in columns]
    spare = width - sum(column.narrowest for column in columns) - len(GAP) * (len(columns) - 1)
    widths = []
    for column in columns:
        more = max(0, min(spare, column.widest - column.narrowest))
        widths.append(column.narrowest + more)
        spare -= more
    return widths


def _row(cells: Sequence[Sequence[str]], columns: Sequence[Column], widths: Sequence[int]) -> Iterator[str]:
    for line in zip_longest(*cells, fillvalue=""):
        padded = [
            _coloured(cell, cell.rjust(width) if column.is_number else cell.ljust(width))
            for cell, column, width in zip(line, columns, widths, strict=False)
        ]
        yield GAP.join(padded).rstrip()


def _coloured(cell: str, padded: str) -> str:
    is_bad = cell in ("refuted", "failed")
    return padded.replace(cell, f"{RED}{cell}{PLAIN}") if is_bad and _has_colours() else padded


def _has_colours() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")


def _broken(text: str, width: int) -> list[str]:
    """Lines of whole words; a word that is longer than a line, such as a path, is broken after a slash."""
    if len(text) <= width:
        return [text]
    return _wrapper(text, width).wrap(text)


def _hanging(line: str, width: int) -> list[str]:
    found = _INDENT.match(line)
    wrapper = _wrapper(line, width)
    wrapper.subsequent_indent = " " * (found.end() if found else 0)
    return wrapper.wrap(line)


def _wrapper(text: str, width: int) -> TextWrapper:
    wrapper = TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    too_long = any(len(word) > width for word in text.split())
    wrapper.wordsep_simple_re = _AFTER_SLASHES if too_long else _BETWEEN_WORDS
    return wrapper
