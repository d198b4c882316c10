"""How long collectives of `jax.lax` take on the wire: their kernels, as the profiler sees them on GPUs that are there.

A call of a chain takes longer: the GPUs wait until the host has launched a kernel, which in a step they seldom do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from jax.sharding import Mesh

from lab.core.known import known
from lab.core.ledger import Kind
from lab.measure.bench.chains import Chain
from lab.measure.bench.programs import programs
from lab.measure.bench.timing import WARM_UPS, run_again
from lab.measure.rates.curves import Curve
from lab.measure.tour.profile import Event, traced
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError

KINDS = {
    ("permute",): (Kind.COLLECTIVE_PERMUTE,),
    ("all_reduce",): (Kind.ALL_REDUCE,),
    ("all_to_all",): (Kind.ALL_TO_ALL,),
    ("reduce_scatter", "all_gather"): (Kind.REDUCE_SCATTER, Kind.ALL_GATHER),
}
"""By the primitives of a chain, what one of its calls runs."""
SIZES = tuple(4**power * 2**10 for power in range(11))
"""1 KiB to 1 GiB."""
RUNS = 3
Watch = Callable[[Sequence[Chain]], Iterable[Chain]]
"""Passes chains on, and may say on a terminal which one is under way."""


def wires(mesh: Mesh, watch: Watch = iter) -> dict[Kind, Curve]:
    """Seconds by the wire bytes of one device, of collectives over all devices of a mesh.

    Raises:
      UsageError: the profiler saw other kernels than the programs have.
    """
    over = Axes(mesh.axis_names, mesh.devices.shape)
    found: dict[Kind, list[tuple[float, float]]] = defaultdict(list)
    for chain in watch([Chain(primitives, ("lax",) * len(primitives)) for primitives in KINDS]):
        kinds = KINDS[chain.primitives]
        for program in programs(chain, mesh, over, SIZES, fewer=True):
            run_again(program, mesh, WARM_UPS)
            events = traced(lambda program=program: run_again(program, mesh, RUNS))  # type: ignore[misc]
            wire = float(known(program.ledger.totals().wire_bytes)) / program.calls / len(kinds)
            for kind, seconds in zip(kinds, seconds_of(events, RUNS * program.calls, len(kinds), chain), strict=True):
                found[kind].append((wire, seconds))
    return {kind: Curve(tuple(sorted(points))) for kind, points in found.items()}


def seconds_of(by_gpu: Mapping[str, Sequence[Event]], calls: int, kinds: int, chain: object) -> list[float]:
    """Of each of the kernels that a call runs, in the median of the calls. A GPU that is early waits for the others in
    its kernel, so each is told by the one that takes least.

    Raises:
      UsageError: there are not so many kernels on each GPU.
    """
    if not by_gpu or any(len(events) != calls * kinds for events in by_gpu.values()):
        seen = ", ".join(f"{len(events)} on {gpu}" for gpu, events in by_gpu.items()) or "none"
        raise UsageError(f"{chain}: the profiler saw kernels: {seen}; expected {calls * kinds} on each GPU")
    least = [min(event.end - event.start for event in same) for same in zip(*by_gpu.values(), strict=True)]
    return [median(least[at::kinds]) for at in range(kinds)]
