"""The error for input that a person can mend, and what others say."""

from collections.abc import Iterable
from difflib import get_close_matches
from textwrap import shorten

FEW, LONGEST = 20, 240
"""So many names, and characters of another's error, fit into a line."""


class UsageError(ValueError):
    """One line: what was found, what was expected, what to do. The command line prints it and ends with status 2."""


def no_such(what: str, name: object, known: Iterable[str], where: str = "", shown_by: str = "") -> UsageError:
    """`no axis 'tensr' in the mesh; did you mean tensor? known are data, tensor`; of many names, `shown_by` is the
    command that shows all, and less need be alike."""
    names = list(known)
    given = str(name).lower()
    holding = [known for known in names if len(given) > 2 and given in known]
    near = get_close_matches(given, names, cutoff=0.7) or (
        get_close_matches(given, names, 1, cutoff=0.55) if shown_by and not holding else []
    )
    close = list(dict.fromkeys([*holding, *near]))[:3]
    every = f"known are {', '.join(names) or 'none'}"
    if not close:
        rest = f"{shown_by} shows all" if shown_by else every
    else:
        meant = " or ".join(filter(None, (", ".join(close[:-1]), close[-1])))
        rest = f"did you mean {meant}?" + (
            f" ({shown_by} shows all)" if shown_by else f" {every}" * (len(names) <= FEW)
        )
    return UsageError(f"no {what} {name!r}{where}; {rest}")


def text_of(failure: BaseException) -> str:
    """`str(failure)`, or nothing where that raises."""
    try:
        return str(failure)
    except Exception:
        return ""


def one_line(failure: BaseException) -> str:
    """What an error of a library comes to, where the rest is a stack or a frame of dashes."""
    lines = [line for line in text_of(failure).splitlines() if line.strip("-=# \t")]
    stacks = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if stacks:
        # The error that a stack ends with is the first line after its frames.
        lines = [line for line in lines[stacks[-1] + 1 :] if not line.startswith((" ", "\t"))] or lines[stacks[-1] :]
    # What a line ends with a colon for is on the next one.
    said = " ".join(line.strip() for line in (lines[:2] if lines and lines[0].endswith(":") else lines[:1]))
    return shorten(said, LONGEST, placeholder=" ...") or type(failure).__name__
