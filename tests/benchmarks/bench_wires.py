"""Events of chains of collectives on the GPUs at hand, as the profiler sees them; `python -m tests.benchmarks.bench_wires FILE`."""

import lzma
import sys
import time
from pathlib import Path

import jax
import msgspec
from jax.sharding import AxisType

from lab.core.codec import to_json
from lab.core.files import write_whole
from lab.measure.bench import timing
from lab.measure.bench.chains import Chain
from lab.measure.bench.programs import programs
from lab.measure.tour.profile import traced
from lab.meshes.axes import Axes

SIZES = tuple(4**power * 2**10 for power in range(11))
if __name__ == "__main__":
    mesh = jax.make_mesh((len(jax.devices()),), ("devices",), axis_types=(AxisType.Auto,))
    over, rows, began = Axes(mesh.axis_names, mesh.devices.shape), [], time.monotonic()
    for primitives in (("permute",), ("all_reduce",), ("all_to_all",), ("reduce_scatter", "all_gather")):
        chain = Chain(primitives, ("lax",) * len(primitives))
        for program in programs(chain, mesh, over, SIZES, fewer=True):
            x = timing._numbers(mesh, program.elements)
            for _ in range(3):
                x = timing._finished(program.compiled, x)

            def run():
                global y
                y = x
                for _ in range(3):
                    y = timing._finished(program.compiled, y)

            events = traced(run)
            rows.append(
                {
                    "chain": str(chain),
                    "payload": program.payload_bytes,
                    "calls": program.calls,
                    "ledger": to_json(program.ledger),
                    "events": {gpu: [tuple(e) for e in some] for gpu, some in events.items()},
                }
            )
        print(f"{time.monotonic() - began:.0f} s {chain} {[len(e) for e in events.values()]} events", flush=True)
        write_whole(Path(sys.argv[1]), lzma.compress(msgspec.json.encode(rows), preset=2))
