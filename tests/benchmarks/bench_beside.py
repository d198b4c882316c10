"""What kernels and a collective cost each other on the GPUs at hand; run `python -m tests.benchmarks.bench_beside`.

Each round of a chain starts a collective, runs so many kernels that do not wait for it, and waits for both: alone each,
and together, in us.
"""

from collections.abc import Iterator
from functools import partial

import jax
from jax.sharding import AxisType, Mesh

from lab.measure.bench.rates import _pass, _product, round_s

SUMS = (16 << 20, 64 << 20, 256 << 20)
"""Bytes of a device's array."""
KERNELS = (
    ("product", _product, 8192, 2048),
    ("product", _product, 8192, 4096),
    ("product", _product, 16384, 8192),
    ("pass", _pass, 8192, 4096),
)
"""Name, kernel, rows and columns."""
SHARES = (0.25, 0.5, 1, 2, 4)
"""Of the collective's time, that the kernels beside it take."""


def rounds(mesh: Mesh) -> Iterator[str]:
    for size in SUMS:
        wire = round_s(mesh, size, (1024, 1024), _pass, 0, sums=True)
        for name, kernel, *shape in KERNELS:
            of = partial(round_s, mesh, size, tuple(shape), kernel)
            one = of(4, sums=False) / 4
            for count in dict.fromkeys(round(share * wire / one) for share in SHARES):
                if count:
                    us = (
                        f"wire {wire * 1e6:8.1f} kernels {of(count, sums=False) * 1e6:8.1f} both "
                        f"{of(count, sums=True) * 1e6:8.1f} us"
                    )
                    yield f"all_reduce {size >> 20:4d} MiB {name} {shape[0]}x{shape[1]} x{count}: {us}"


if __name__ == "__main__":
    for line in rounds(jax.make_mesh((len(jax.devices()),), ("devices",), axis_types=(AxisType.Auto,))):
        print(line, flush=True)
