"""Larger cases of what smaller ones see each time: LAB_LONG_TESTS=1 runs them, too."""

import os

import pytest

NAME = "LAB_LONG_TESTS"
ASKED_FOR = bool(os.environ.get(NAME))
long = pytest.mark.skipif(not ASKED_FOR, reason=f"takes long, and a smaller case is run; {NAME}=1 runs it, too")
