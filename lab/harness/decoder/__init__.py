"""Experiments on the decoder: the whole step, its claims, its training, and what XLA plans for it."""
