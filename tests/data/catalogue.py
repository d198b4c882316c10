"""Every program whose compiled text is kept, by name."""

from tests.data.program import PROGRAMS
from tests.data.programs import decoders, layouts, products, spellings, training

__all__ = ["PROGRAMS", "decoders", "layouts", "products", "spellings", "training"]
