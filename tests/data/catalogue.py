"""Every program whose compiled text is kept, by name."""

from tests.data.program import PROGRAMS
from tests.data.programs import layouts, spellings, training

__all__ = ["PROGRAMS", "layouts", "spellings", "training"]
