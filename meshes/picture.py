"""A mesh as a picture: SVG in a page or a notebook, a panel for every place on the axes outside the last two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

MOST_CELLS = 256
CELL_HEIGHT, LETTER, PADDING, LINE, GAP = 22, 8, 12, 18, 20
Index = int | None
"""Along an axis; None stands for all that are left out."""


def mesh_svg(shape: Mapping[str, int], domains: Sequence[int] | None = None, domain: str = "host") -> str:
    """Positions of `mesh.devices` in rows (last axis but one) and columns (last axis), coloured by domain; long axes
    are cut.

    Args:
      shape: names and sizes of the axes, in the mesh's order.
      domains: [devices], as of `lab.meshes.targets.domains`; None where they are not known.
      domain: what one is called.
    """
    names, sizes = ("",) * (3 - len(shape)) + tuple(shape), (1,) * (3 - len(shape)) + tuple(shape.values())
    devices = prod(sizes)
    *outer, planes, rows, columns = map(_shown, sizes, [_most(sizes)] * len(sizes))
    cell_width = PADDING + LETTER * len(str(devices - 1))
    title_width = LETTER * max(len(_place(names, tuple(size - 1 for size in sizes[:-2]))), len(names[-1]) + 2)
    width, height = LINE + max(len(columns) * cell_width, title_width) + GAP, 2 * LINE + len(rows) * CELL_HEIGHT + GAP
    panels = []
    for (down, above), (right, plane) in product(enumerate(product(*outer)), enumerate(planes)):
        place = (*above, plane)
        at = tuple(index for index in place if index is not None)
        is_drawn = len(at) == len(place)
        cells = _cells(names, sizes, at, rows, columns, cell_width, domains, domain) if is_drawn else []
        title = _text(LINE, LINE - 6, _place(names, place) if is_drawn else "...", "start")
        panels.append(
            f'<g transform="translate({right * width + GAP / 2:g} {down * height})">{title}{"".join(cells)}</g>'
        )
    return _drawn(
        width * len(planes) + GAP,
        height * prod(map(len, outer)),
        f"mesh {','.join(f'{name}={size}' for name, size in shape.items())}: {devices:,} devices",
        panels,
    )


def _most(sizes: Iterable[int]) -> int:
    """Indices shown of each axis."""
    return next((most for most in (16, 8, 6, 5, 4) if prod(min(size, most) for size in sizes) <= MOST_CELLS), 3)


def _shown(size: int, most: int) -> tuple[Index, ...]:
    return tuple(range(size)) if size <= most else (*range(most - 2), None, size - 1)


def _cells(
    names: Sequence[str],
    sizes: Sequence[int],
    place: tuple[int, ...],
    rows: Sequence[Index],
    columns: Sequence[Index],
    width: int,
    domains: Sequence[int] | None,
    domain: str,
) -> Iterable[str]:
    """One panel: its axes' names, and a box for every position."""
    yield _text(LINE, 2 * LINE - 5, f"{names[-1]} \N{RIGHTWARDS ARROW}", "start")
    if names[-2]:
        turned = _text(0, 0, f"\N{LEFTWARDS ARROW} {names[-2]}", "end")
        yield f'<g transform="translate({LINE - 5} {2 * LINE}) rotate(-90)">{turned}</g>'
    for (y, row), (x, column) in product(enumerate(rows), enumerate(columns)):
        left, top = LINE + x * width, 2 * LINE + y * CELL_HEIGHT
        if row is None or column is None:
            yield _text(left + width / 2, top + 14, "\N{MIDDLE DOT}", "middle")
            continue
        position = int(np.ravel_multi_index((*place, row, column), sizes))
        at = f", {domain} {domains[position]}" if domains is not None else ""
        told = f"<title>position {position}: {_place(names, (*place, row, column))}{at}</title>"
        box = (
            f'<rect x="{left}" y="{top}" width="{width - 2}" height="{CELL_HEIGHT - 2}" rx="3" '
            f'style="fill:{_fill(domains, position)}"/>'
        )
        yield f"<g>{told}{box}{_text(left + width / 2 - 1, top + 14, str(position), 'middle')}</g>"


def _place(names: Sequence[str], place: Sequence[Index]) -> str:
    return ", ".join(f"{name}={index}" for name, index in zip(names, place, strict=False) if name)


def _fill(domains: Sequence[int] | None, position: int) -> str:
    """The golden angle keeps the colours of neighbours apart."""
    hue = 205 if domains is None else (205 + 137.5 * int(domains[position])) % 360
    return f"light-dark(hsl({hue:g} 65% 86%),hsl({hue:g} 35% 28%))"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{text}</text>'


def _drawn(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    style = (
        "font:12px "
        "system-ui,sans-serif;color:light-dark(#1b1f24,#e6e8eb);background:light-dark(#fff,#14171b);fill:currentColor"
    )
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}" {size} '
        f'style="{style}">{"".join(parts)}</svg>'
    )
