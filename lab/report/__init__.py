"""Ledgers and verdicts for people: tables for a terminal, a pipe and a notebook."""
