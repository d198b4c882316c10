"""Times of the programs of `lab bench rates` with their texts, on the first GPU; run
`python -m tests.benchmarks.bench_kernels FILE`."""

import lzma
import sys
from pathlib import Path

import jax
import msgspec

from lab.core.files import write_whole
from lab.measure.bench.kernel_programs import families
from lab.measure.bench.kernel_times import observed

if __name__ == "__main__":
    found = []
    for name, programs in families():
        found += [
            {"name": one.name, "seconds": one.seconds, "calls": one.calls, "why_not": one.why_not, "text": one.text}
            for one in observed(programs, jax.devices()[0])
        ]
        print(name, len(found), flush=True)
        content = {"jax": jax.__version__, "card": jax.devices()[0].device_kind, "programs": found}
        write_whole(Path(sys.argv[1]), lzma.compress(msgspec.json.encode(content), preset=4))
