"""What changing one placement of an array into another costs: planned, bounded from below, run, and measured on compilers.

Imports no JAX; `lab.redistribution.kernel` and `lab.redistribution.measure` do.
"""

from lab.redistribution.bound import least_bytes
from lab.redistribution.placement import Array, Placement
from lab.redistribution.plan import layout_change, plan, route

__all__ = ["Array", "Placement", "layout_change", "least_bytes", "plan", "route"]
