"""Steps of the decoder compiled with three settings of overlap and timed on the GPUs at hand; run
`python -m tests.benchmarks.bench_overlap FILE`.

The file has, of each, the seconds of a step, what the profiler saw of two steps, and the schedule that ran.
"""

import lzma
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import jax
import msgspec

from lab.compile.inspection import read_program
from lab.core.codec import to_json
from lab.core.files import write_whole
from lab.harness import registry
from lab.measure.schedule import Schedule
from lab.measure.tour.apart import Program
from lab.measure.tour.profile import profiled
from lab.measure.tour.times import Setting, branches_by_trip, chains, steps_from
from lab.meshes.attached import resolve_attached
from lab.meshes.backends import make_mesh
from lab.meshes.targets import Target, parse_target

KINDS = ("ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "COLLECTIVEPERMUTE", "COLLECTIVEBROADCAST")
OVERLAPS: dict[str, dict[str, str | bool]] = {
    "synchronous": {"xla_gpu_disable_async_collectives": ",".join(KINDS)},
    "hidden": {"xla_gpu_enable_latency_hiding_scheduler": True},
    "hidden, loops doubled": {
        "xla_gpu_enable_latency_hiding_scheduler": True,
        "xla_gpu_enable_while_loop_double_buffering": True,
    },
}
"""Options of XLA. The first is none at all."""
STEPS = (
    Setting("ch20_zero3", "explicit", "small", "full"),
    Setting("ch17_sequence_parallel", "explicit", "small", "full"),
    Setting("ch14_data_parallel", "explicit", "small", "none"),
    Setting("ch20_zero3", "explicit", "middle", "none"),
    Setting("ch20_zero3", "declared", "middle", "full"),
    Setting("ch15_tensor_parallel", "explicit", "middle", "dots"),
    Setting("ch17_sequence_parallel", "explicit", "middle", "selective"),
    Setting("ch17_ulysses", "explicit", "middle", "full"),
    Setting("ch20_zero1", "explicit", "middle", "none"),
    Setting("ch18_expert_parallel", "explicit", "middle", "full"),
)
PROFILED, THREADS = 2, 16
MOST_S = 420
"""For compiling; what is not ready by then is left out."""


def compiled(setting: Setting, options: dict[str, str | bool], target: Target) -> Program:
    mesh = make_mesh(target, registry.experiment(setting.layout).axes(target))
    function, args = registry.build_of(setting.layout)(setting.style, setting.shape, mesh)
    return Program(function.lower(*args).compile(compiler_options=options), args, mesh)


def timed_steps(target: Target) -> Iterator[dict[str, Any]]:
    """Once all are compiled, since XLA tries kernels on the GPUs; what it tried for the first setting it knows for the
    others."""
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: dict[tuple[Setting, str], Future[Program]] = {
            (setting, name): pool.submit(compiled, setting, options, target)
            for name, options in OVERLAPS.items()
            for setting in STEPS
        }
        done, late = wait(waiting.values(), MOST_S)
        for one in late:
            one.cancel()
        print(f"{len(done)} programs compiled, {len(late)} not", flush=True)
        for setting in STEPS:
            for name in OVERLAPS:
                if waiting[setting, name] in done:
                    yield of_step(setting, name, waiting.pop((setting, name)).result(), target)


def of_step(setting: Setting, overlap: str, program: Program, target: Target) -> dict[str, Any]:
    seconds, state, batch = chains(program.compiled, program.args, setting.shape)
    spent = profiled(lambda: steps_from(program.compiled, state, batch, PROFILED), PROFILED)
    read = read_program(program.compiled, program.args, program.mesh, target, source=str(setting))
    by_trip = branches_by_trip(setting.shape, dict(program.mesh.shape))
    schedule = Schedule.of(read, resolve_attached(target), by_trip)
    return {
        "step": str(setting),
        "overlap": overlap,
        "seconds": seconds,
        "profiled_s": spent and spent._asdict(),
        "schedule": to_json(schedule),
    }


if __name__ == "__main__":
    began, rows = time.monotonic(), []
    for row in timed_steps(parse_target("attached")):
        rows.append(row)
        print(
            f"{time.monotonic() - began:5.0f} s {row['step']}, {row['overlap']}: "
            f"{' '.join(f'{1e3 * seconds:.3f}' for seconds in row['seconds'])} ms",
            flush=True,
        )
        if len(rows) % 3 == 0:
            content = {"jax": jax.__version__, "devices": len(jax.devices()), "steps": rows}
            write_whole(Path(sys.argv[1]), lzma.compress(msgspec.json.encode(content), preset=2))
