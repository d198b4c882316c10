"""A predicted ledger against a measured one, and the compiler behaviours that stand between them."""

from lab.settle.behaviours import CATALOGUE, Behaviour, Certainty, Context
from lab.settle.settlement import Settlement, Status, Term, Verdict, settle

__all__ = ["CATALOGUE", "Behaviour", "Certainty", "Context", "Settlement", "Status", "Term", "Verdict", "settle"]
