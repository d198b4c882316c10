"""`python -m tests.lab.laws.sweep [NAME...]`: the laws of the corpus, in a line each."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from lab.laws.law import Law
from lab.laws.question import answered
from lab.meshes.errors import UsageError
from tests.lab.laws.corpus import BY_RATIO, EXPERIMENTS, OWN, REFUSED


def main(names: Sequence[str]) -> None:
    for asked in (*OWN, BY_RATIO, REFUSED, *EXPERIMENTS):
        title = f"{asked.source.rpartition('/')[2]} {asked.style or ''}".strip()
        if names and not any(name in title for name in names):
            continue
        start = time.perf_counter()
        try:
            said = told(answered(asked))
        except UsageError as refusal:
            said = f"refused: {refusal}"
        print(f"{title}: {said} ({time.perf_counter() - start:.0f} s)", flush=True)


def told(law: Law) -> str:
    checks = [
        f"{'equal' if check.is_equal else 'REFUTED'} {check.under_law / check.wire_bytes if check.wire_bytes else 1:.1%}"
        for check in law.checks
    ]
    refused = [f"{each.what}: {each.reason} ({each.share:.1%})" for each in law.refused if each.kind]
    settled = law.theory.settled if law.theory else ()
    theory = [f"theory {one.verdict} {dict(one.terms)} {list(one.findings)}" for one in settled]
    return "; ".join([f"{len(law.terms)} terms, {len(law.compiled)} compiles", *checks, *refused, *theory])


if __name__ == "__main__":
    main(sys.argv[1:])
