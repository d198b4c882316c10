"""Which layers each chunk of a pipeline has, written as Megatron-LM's `pipeline_model_parallel_layout`:
`Et*4|(t*4|)*14tmL` for 61 layers, and one that predicts the token after the next, in 16 chunks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from lab.meshes.errors import UsageError

EXAMPLE = "Et*4|(t*4|)*2t*3L"
_MOST_SIGNS = 100_000
_GROUP = re.compile(r"\(([^()]*)\)\*(\d{1,6})|([EtmL])\*(\d{1,6})")


def layers_of_chunks(text: str) -> tuple[int, ...]:
    """Layers of each chunk, in the order in which tokens go through them.

    Args:
      text: E embedding, t one layer, m what predicts the token after the next, L head and loss, | between chunks;
        `t*4` and `(t*4|)*14` repeat.
    Raises:
      UsageError: the text is no such layout.
    """
    return tuple(chunk.count("t") for chunk in _chunks(text))


def predicts_further(text: str) -> bool:
    """The last chunk predicts the token after the next, too; raises as `layers_of_chunks`."""
    return "m" in _chunks(text)[-1]


def _chunks(text: str) -> list[str]:
    chunks = _expanded(text).split("|")
    wrong = next((c for c in "".join(chunks) if c not in "EtmL"), None)
    if wrong:
        raise UsageError(
            f"stage_layers={text}: {wrong!r} is none of E, t, m, L, |, * and (); expected such as {EXAMPLE}"
        )
    # Outside of its place a sign would be work that the program does elsewhere.
    if not re.fullmatch("E[t|]*m?L", "|".join(chunks)):
        raise UsageError(
            f"stage_layers={text}: expected E once, at the beginning, and L once, at the end, behind one m or none, "
            f"such as {EXAMPLE}"
        )
    return chunks


def written(layers: Sequence[int]) -> str:
    """The text of two chunks or more with these numbers of layers: the inverse of `layers_of_chunks`."""
    first, *between, last = (f"t*{count}" for count in layers)
    repeated = ((chunk, len(list(alike))) for chunk, alike in groupby(between))
    return f"E{first}|{''.join(f'({chunk}|)*{times}' for chunk, times in repeated)}{last}L"


def _expanded(text: str) -> str:
    """Without repetitions, the innermost first."""
    while found := _GROUP.search(text):
        repeated, times = (group for group in found.groups() if group is not None)
        if len(repeated) * int(times) > _MOST_SIGNS:
            raise UsageError(f"stage_layers: more than {_MOST_SIGNS:,} layers and chunks; expected fewer")
        text = text[: found.start()] + repeated * int(times) + text[found.end() :]
    return text
