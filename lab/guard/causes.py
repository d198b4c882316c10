"""Which of several options something comes from: tried one by one, then together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Options = tuple[str, ...]


def causes(options: Sequence[str], shows: Callable[[frozenset[str]], bool]) -> tuple[Options, ...]:
    """Each option that does it alone; where none does, one set of which none can be left out; () where not even all
    together do it.

    Args:
      shows: whether these options together do it.
    """
    alone = tuple((option,) for option in options if shows(frozenset((option,))))
    if alone or len(options) < 2 or not shows(frozenset(options)):
        return alone
    needed = frozenset(options)
    for option in options:
        if shows(needed - {option}):
            needed -= {option}
    return (tuple(option for option in options if option in needed),)


def usable(options: Iterable[str], attempt: Callable[[frozenset[str]], str | None]) -> tuple[Options, dict[str, str]]:
    """The options that can be tried, and why others cannot.

    Args:
      attempt: tries them, and says why it cannot.
    """
    whys = {option: attempt(frozenset((option,))) for option in options}
    return (
        tuple(option for option, why in whys.items() if why is None),
        {option: why for option, why in whys.items() if why is not None},
    )
