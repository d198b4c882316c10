"""The catalogue of compiler behaviours as a page for people: `python -m lab.report.behaviours >
docs/compiler_behaviours.md`."""

from __future__ import annotations

from collections.abc import Sequence

from lab.settle import CATALOGUE, NOTES, Behaviour, Certainty, CompilerNote

COMPILERS = {"X": "Any compiler", "C": "CPU", "G": "GPU", "T": "TPU"}
MEANING = {
    Certainty.PREDICTABLE: "follows from the configuration",
    Certainty.READABLE: "shows in the compiled text",
    Certainty.OBSERVED: "seen, by no rule that is known",
}
COUNTS = {
    Certainty.PREDICTABLE: "what it explains counts as predicted",
    Certainty.READABLE: "what it explains is attributed, never predicted",
    Certainty.OBSERVED: "what it explains is attributed, never predicted",
}
"""Of a behaviour with a rule."""


def page() -> str:
    """Markdown: what each compiler does to a ledger that theory does not ask for, and what to do about it."""
    head = (
        "# What compilers do to a ledger, and what to do about it\n\nSeen with XLA of jax 0.10.2 and 0.11.2 on the "
        "layouts of this project. Written by `python -m lab.report.behaviours`.\n"
    )
    meanings = "\n".join(
        f"- **{certainty}**: {meaning}; {COUNTS[certainty]}." for certainty, meaning in MEANING.items()
    )
    notes = (
        "## Notes\n\nNo code of the lab decides by these, and no verdict names them: the reader has them in what it "
        "reads, they do not show in a ledger, or no layout here needs them.\n\n" + _table(notes_by_number())
    )
    return "\n\n".join([head + "\n" + meanings, *map(_section, COMPILERS), notes]) + "\n"


def by_number() -> list[Behaviour]:
    """The catalogue by compiler and number; it stands in the order in which behaviours act."""
    return sorted(CATALOGUE, key=_place)


def notes_by_number() -> list[CompilerNote]:
    return sorted(NOTES, key=_place)


def _place(entry: CompilerNote) -> tuple[int, int]:
    return list(COMPILERS).index(entry.id[0]), int(entry.id[1:])


def _section(letter: str) -> str:
    return f"## {COMPILERS[letter]}\n\n" + _table([b for b in by_number() if b.id[0] == letter])


def _table(entries: Sequence[CompilerNote]) -> str:
    rows = "\n".join(f"| {' | '.join((e.id, e.effect, e.when, e.certainty, e.remedy))} |" for e in entries)
    return f"| id | effect | when | certainty | what to do |\n|---|---|---|---|---|\n{rows}"


if __name__ == "__main__":
    print(page(), end="")
