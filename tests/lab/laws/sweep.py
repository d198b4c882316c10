"""`python -m tests.lab.laws.sweep [NAME...]`: the laws of the corpus as the table of docs/laws.md, a row each as it is
found."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lab.laws.law import Law
from lab.laws.question import Question, answered
from lab.meshes.errors import UsageError
from tests.lab.laws.corpus import BY_RATIO, CASES, EXPERIMENTS, REFUSED, USERS

HEAD = ("program", "style", "terms", "compiles", "held out", "under laws", "theory", "without a law")


def main(names: Sequence[str]) -> None:
    print(_row(HEAD), _row(["---", "---", *["--:"] * 4, "---", "---"]), sep="\n", flush=True)
    for asked in (*EXPERIMENTS, *CASES, *USERS, BY_RATIO, REFUSED):
        if not names or title(asked) in names or asked.source in names:
            try:
                cells = told(answered(asked))
            except UsageError as refusal:
                cells = ("", "", "", "", "", str(refusal))
            print(_row((f"`{title(asked)}`", asked.style or "", *cells)), flush=True)


def title(asked: Question) -> str:
    return asked.source.rpartition(":")[2]


def told(law: Law) -> tuple[str, ...]:
    """What a row says of a law behind its program."""
    equal = sum(check.is_equal for check in law.checks)
    refused = dict.fromkeys(f"{each.what}: {each.reason}" for each in law.refused if each.kind)
    return (
        str(len(law.terms)),
        str(len(law.compiled)),
        f"{equal} of {len(law.checks)} equal",
        f"{under_laws(law):.1%}".replace("%", " %"),
        _beside(law),
        "; ".join(refused),
    )


def under_laws(law: Law) -> float:
    """Of the wire bytes of the held-out compile that has the least."""
    return min((check.under_law / check.wire_bytes for check in law.checks if check.wire_bytes), default=1.0)


def _beside(law: Law) -> str:
    """How theory and law settle, and of how many terms; findings at any sizes."""
    if law.theory is None:
        return ""
    ways = dict.fromkeys(
        one.verdict
        if one.findings
        else f"{one.verdict} ({', '.join(f'{n} {s}' for s, n in sorted(one.terms.items()))})"
        for one in law.theory.settled
    )
    findings = dict.fromkeys(finding for one in law.theory.settled for finding in one.findings)
    return "; ".join([*ways, *findings])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main(sys.argv[1:])
