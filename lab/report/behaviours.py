"""The catalogue of compiler behaviours as a page for people: `python -m lab.report.behaviours >
docs/compiler_behaviours.md`."""

from __future__ import annotations

from lab.settle import CATALOGUE, Behaviour, Certainty

COMPILERS = {"X": "Any compiler", "C": "CPU", "G": "GPU", "T": "TPU"}
MEANING = {
    Certainty.PREDICTABLE: "follows from the configuration; what it explains counts as predicted",
    Certainty.READABLE: "shows in the compiled text; what it explains is attributed, never predicted",
    Certainty.OBSERVED: "seen, by no rule that is known; what it explains is attributed, never predicted",
}


def page() -> str:
    """Markdown: what each compiler does to a ledger that theory does not ask for, and what to do about it."""
    head = (
        "# What compilers do to a ledger, and what to do about it\n\nSeen with XLA of jax 0.10.2 and 0.11.2 on the "
        "layouts of this project. Written by `python -m lab.report.behaviours`.\n"
    )
    meanings = "\n".join(f"- **{certainty}**: {meaning}." for certainty, meaning in MEANING.items())
    return "\n\n".join([head + "\n" + meanings, *map(_section, COMPILERS)]) + "\n"


def by_number() -> list[Behaviour]:
    """The catalogue by compiler and number; it stands in the order in which behaviours act."""
    return sorted(CATALOGUE, key=lambda b: (list(COMPILERS).index(b.id[0]), int(b.id[1:])))


def _section(letter: str) -> str:
    rows = "\n".join(_row(behaviour) for behaviour in by_number() if behaviour.id[0] == letter)
    return (
        f"## {COMPILERS[letter]}\n\n| id | effect | when | certainty | settled by rule | what to do "
        f"|\n|---|---|---|---|---|---|\n{rows}"
    )


def _row(behaviour: Behaviour) -> str:
    settled = "yes" if behaviour.rewrite or behaviour.recognise else ""
    cells = behaviour.id, behaviour.effect, behaviour.when, behaviour.certainty, settled, behaviour.remedy
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(page(), end="")
