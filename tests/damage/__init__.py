"""Compiled texts, damaged in every way that comes to mind, and what the reader makes of them."""
