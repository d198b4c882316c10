"""Steps of `lab tour times` with the schedules that ran, on the GPUs at hand; `python -m tests.benchmarks.bench_steps
FILE`."""

import lzma
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import jax
import msgspec

from lab.core.files import write_whole
from lab.measure.tour.times import settings
from lab.meshes.targets import parse_target
from tests.benchmarks.bench_overlap import compiled, of_step

if __name__ == "__main__":
    began, rows, target = time.monotonic(), [], parse_target("attached")
    with ThreadPoolExecutor(16) as pool:
        waiting = {setting: pool.submit(compiled, setting, {}, target) for setting in settings(len(jax.devices()))}
        done, late = wait(waiting.values(), 200)
        for one in late:
            one.cancel()
        for setting, program in waiting.items():
            if program in done:
                rows.append(of_step(setting, "", program.result(), target))
                print(
                    f"{time.monotonic() - began:5.0f} s {setting} {min(rows[-1]['seconds']) * 1e3:.3f} ms", flush=True
                )
    content = {"jax": jax.__version__, "devices": len(jax.devices()), "steps": rows}
    write_whole(Path(sys.argv[1]), lzma.compress(msgspec.json.encode(content), preset=2))
