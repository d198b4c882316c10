"""Whether the axes that a person gave for a text are those of the program: group numbers say so."""

from __future__ import annotations

from itertools import permutations

from lab.diagnosis.program import Program
from lab.hlo.groups import axes_of_groups
from lab.meshes.axes import Axes

_MOST_AXES = 5


def why_axes_are_unknown(program: Program) -> str | None:
    """What to say where no transfer of a text is over axes of its mesh, or where all are in another order of them; None
    where the mesh may be right."""
    axes, crossing = program.axes, program.sites
    unfit = [site for site in crossing if site.transfer.axes is None]
    if axes is None or program.given or not unfit:
        return None
    if (order := _fitting_order(program, axes)) is not None:
        return f"the groups of devices are not those of the axes {axes}; in another order they are: add --mesh {order}"
    if len(unfit) == len(crossing) and not any(site.transfer.sub_axes for site in unfit):
        return f"no group of devices is that of any axes of {axes}; give --mesh the axes of the program, in its order"
    return None


def _fitting_order(program: Program, axes: Axes) -> Axes | None:
    """The order of the axes in which every transfer is over whole axes."""
    found = [program.members(site) for site in program.sites]
    groups = list(dict.fromkeys(one for one in found if one is not None))
    if len(axes.names) > _MOST_AXES or len(groups) == 0 or None in found:
        return None
    orders = (Axes(names, tuple(axes[name] for name in names)) for names in permutations(axes.names))
    return next((order for order in orders if all(axes_of_groups(one, order) for one in groups)), None)
