"""Exact formulas of what a program communicates, computes and holds, read out of a few small compiles of it."""
