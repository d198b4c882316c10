"""Lines of source code that ran when an operation was traced."""

from __future__ import annotations

from dataclasses import dataclass

from lab.core.codec import Count


@dataclass(frozen=True)
class Frame:
    """A line of a Python file.

    Attributes:
      function: as Python qualifies it, `Attention.out_projection`; "" where the text does not tell.
      is_library: the file belongs to an installed package.
    """

    file: str
    line: Count
    function: str = ""
    is_library: bool = False

    @property
    def place(self) -> str:
        """`model.py:88`."""
        return f"{self.file}:{self.line}"

    @property
    def name(self) -> str:
        """Of the function, for people: without the functions that it is defined in, of a lambda the one that it is
        written in, of `Attention.__call__` the class alone; "" of a module's own lines."""
        parts = self.function.replace(".<lambda>", ".<locals>.<lambda>").split(".<locals>.")
        own = next((part for part in reversed(parts) if part and not part.startswith("<")), "")
        return own.removesuffix(".__call__")


Stack = tuple[Frame, ...]
"""Innermost first."""
