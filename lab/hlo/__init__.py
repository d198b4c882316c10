"""Compiled text in, ledger out. Imports no JAX: the text may come from anywhere."""

from lab.hlo.read import read_text

__all__ = ["read_text"]
