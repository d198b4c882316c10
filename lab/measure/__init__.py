"""Seconds: fits, rates of a chip, times of collectives and of steps."""
