"""A predicted ledger against a measured one, and the compiler behaviours that stand between them."""

from lab.settle.behaviours import CATALOGUE, NOTES, Behaviour, Certainty, CompilerNote, Context, named_refusal
from lab.settle.settlement import Settlement, Status, Term, Verdict, settle

__all__ = [
    "CATALOGUE",
    "NOTES",
    "Behaviour",
    "Certainty",
    "CompilerNote",
    "Context",
    "Settlement",
    "Status",
    "Term",
    "Verdict",
    "named_refusal",
    "settle",
]
