"""What compilers do to a ledger that theory does not ask for: a module for each compiler, an entry for each behaviour
beside its rule, and one catalogue of all.

A new behaviour is one entry of a module's `BEHAVIOURS`, or a module whose own stand in the catalogue; it has the code
that decides. What is known of a compiler and decides nothing is an entry of `NOTES`. Seen with XLA of jax 0.10.2 and
0.11.2 on the layouts of this project.
"""

from lab.settle.behaviours.behaviour import INSTALLED, Behaviour, Certainty, CompilerNote, Context
from lab.settle.behaviours.catalogue import CATALOGUE, NOTES, emitted, named_refusal

__all__ = [
    "CATALOGUE",
    "INSTALLED",
    "NOTES",
    "Behaviour",
    "Certainty",
    "CompilerNote",
    "Context",
    "emitted",
    "named_refusal",
]
