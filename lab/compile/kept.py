"""Where what a compilation tells is kept on disk: by all that decides it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from lab.core.faults import versions_text

CACHE = "LAB_CACHE"
"""The environment variable that names another folder."""


def place(folder: str, lowered: Any, *more: str) -> Path:
    """Of this text, compiled by this compiler for these devices.

    Args:
      lowered: what JAX lowered.
      more: what decides besides, such as options and the target.
    """
    lowering = lowered._lowering  # JAX tells devices and options in no other way before it compiles.
    made_of = (
        versions_text(),
        os.environ.get("XLA_FLAGS", ""),
        os.environ.get("LIBTPU_INIT_ARGS", ""),
        str([device.id for device in lowering._device_list or ()]),
        str(lowering._compiler_options_kvs),
        *more,
        lowered.as_text(debug_info=True),
    )
    name = hashlib.sha256("\0".join(made_of).encode()).hexdigest()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get(CACHE) or Path(home) / "sharding-lab") / folder / name
