"""Empty pictures of one panel, as matplotlib figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lab.meshes.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Panel
    from matplotlib.figure import Figure


def empty_panel(title: str, x: str, y: str, log: bool = False) -> tuple[Figure, Panel]:
    """An empty picture, drawn without a screen.

    Raises:
      UsageError: matplotlib is not installed.
    """
    figure = _figure(figsize=(8, 5), dpi=120, layout="constrained")
    panel = figure.add_subplot(title=title, xlabel=x, ylabel=y)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.3)
    if log:
        panel.set_xscale("log")
        panel.set_yscale("log")
    return figure, panel


def blank(width: float, height: float) -> tuple[Figure, Panel]:
    """A sheet of so many pixels, y downwards, with nothing on it.

    Raises:
      UsageError: matplotlib is not installed.
    """
    figure = _figure(figsize=(width / 96, height / 96), dpi=144)
    panel = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    panel.set_axis_off()
    return figure, panel


def _figure(**options: Any) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("plots need matplotlib; run: pip install 'sharding-lab[plots]'") from None
    return Figure(**options)
