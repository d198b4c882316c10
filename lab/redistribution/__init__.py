"""What changing one placement of an array into another costs: planned, bounded from below, run, and measured on
compilers.

    >>> from lab.meshes.axes import Axes
    >>> axes, array = Axes.parse("a=2,b=2,c=2"), Array((32, 64, 128), "f32")
    >>> before, after = Placement.of(None, "a", "b"), Placement.of(None, ("a", "c", "b"), None)
    >>> [(str(t.kind), t.axes, t.payload_bytes) for t in plan(before, after, array, axes).transfers]
    [('all_to_all', ('b',), 131072)]
    >>> print(plan(before, after, array, axes).totals().wire_bytes, least_bytes(before, after, array, axes))
    65536 65536

Placements are written as `PartitionSpec`s are, `Placement.of(*spec)` takes one, and `partial` names the axes over which
an array is yet to be summed up. Imports no JAX; `lab.redistribution.kernel`, which carries a plan out, and
`lab.measure.redistribution.measure` do.
"""

from lab.redistribution.bound import least_bytes, least_bytes_together
from lab.redistribution.placement import Array, Placement
from lab.redistribution.plan import layout_change, plan, route

__all__ = ["Array", "Placement", "layout_change", "least_bytes", "least_bytes_together", "plan", "route"]
