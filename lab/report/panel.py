"""An empty picture of one panel, as a matplotlib figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.meshes.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Panel
    from matplotlib.figure import Figure


def empty_panel(title: str, x: str, y: str, log: bool = False) -> tuple[Figure, Panel]:
    """An empty picture, drawn without a screen.

    Raises:
      UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("plots need matplotlib; run: pip install 'sharding-lab[plots]'") from None
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    panel = figure.add_subplot(title=title, xlabel=x, ylabel=y)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.3)
    if log:
        panel.set_xscale("log")
        panel.set_yscale("log")
    return figure, panel
