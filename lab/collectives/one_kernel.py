"""An all_reduce in one GPU kernel that reads and writes the other GPUs' memory: no messages, no copies, and no addition
apart.

XLA gives a Pallas kernel the addresses of every device's arrays, and starts it once all devices have come this far;
before it ends, each of its blocks of threads waits until the same block of every other device is done. It takes H100s
or H200s of one process on one host, in the order of their ids, and neither NVSHMEM nor NVLink's multicast; it has no
gradient. TensorRT-LLM names it two shots; one shot, where every device adds up everything for itself, is not here: it
was seen not to end (docs/collectives.md). No text shows what such a kernel sends. Start JAX with
CUDA_MODULE_LOADING=EAGER, as `lab bench` does: a kernel must not wait for one that another GPU has yet to load.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp

from lab.collectives.wires import Axis, Op, block_size
from lab.meshes.errors import UsageError
from lab.meshes.hardware import known_chip

THREADS, WORD = 128, 4
"""Of a block; and bytes that a thread takes at once, since a compiler does not know that another device's address is
aligned to more."""
WORDS = 16
"""Of a thread in a tile, at most."""
BLOCKS = 8
"""Of a multiprocessor, over the number of arrays that each adds up: all of them have to be at work at once, beside a
collective of NCCL too, since they wait for one another."""
GRID = "blocks"
CHIPS = ("h100", "h200")
JAX = (0, 11, 1)
"""Before, XLA puts the addresses of the others' arrays into new memory at every run, but a CUDA graph of the program
goes on reading the memory of its first."""
DTYPES = ("float32", "float16", "bfloat16", "int32", "uint32")


def all_reduce(x: jax.Array, axis: Axis, op: Op) -> jax.Array:
    """Rank r adds up block r of all arrays, and writes it into all results: the bytes of a ring."""
    _check(x, axis, op)
    ranks = jax.lax.axis_size(axis)
    if x.size == 0 or ranks == 1:
        return x
    strip = THREADS * (WORD // x.dtype.itemsize)
    tile = strip * _power_of_two(block_size(x.size, ranks * strip), WORDS)
    flat_N = jnp.pad(x.reshape(-1), (0, -x.size % (ranks * tile)))
    total_N = jax.lax.pcast(_summed(flat_N, axis, tile), axis, to="varying")
    return total_N[: x.size].reshape(x.shape)


@partial(jax.jit, static_argnames=("axis", "tile"))
def _summed(flat_N: jax.Array, axis: Axis, tile: int) -> jax.Array:
    """[N] to [N]; N is a multiple of a tile for each rank. Jitted, so that many calls in a program are written and
    compiled once."""
    # Here, since not every platform's jaxlib has what Pallas needs for GPUs.
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    ranks, share = range(jax.lax.axis_size(axis)), flat_N.size // jax.lax.axis_size(axis)
    load = partial(
        plgpu.layout_cast, new_layout=plgpu.Layout.WG_STRIDED((tile,), vec_size=WORD // flat_N.dtype.itemsize)
    )

    def all_reduce(x_ref: Any, y_ref: Any, done: Any) -> None:
        rank = jax.lax.axis_index(axis)
        start = rank * share
        arrays = [plgpu.remote_ref(x_ref, other) for other in ranks]
        results = [plgpu.remote_ref(y_ref, other) for other in ranks]

        @plgpu.nd_loop((share // tile,), collective_axes=GRID)
        def _(loop: Any) -> None:
            at = pl.ds(start + loop.index[0] * tile, tile)
            total = reduce(jnp.add, [load(array[at]) for array in arrays])
            for result in results:
                result[at] = total

        for distance in ranks[1:]:
            pl.semaphore_signal(done, device_id=(rank + distance) % len(ranks))
        pl.semaphore_wait(done, len(ranks) - 1)

    call = plgpu.kernel(
        all_reduce,
        out_type=jax.ShapeDtypeStruct(flat_N.shape, flat_N.dtype),
        grid=(min(_blocks(len(ranks)), share // tile),),
        grid_names=(GRID,),
        scratch_types=[plgpu.SemaphoreType.REGULAR],
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return call(flat_N)


def _blocks(arrays: int) -> int:
    return jax.sharding.get_abstract_mesh().abstract_device.num_cores * max(1, BLOCKS // arrays)


def _check(x: jax.Array, axis: Axis, op: Op) -> None:
    if jax.default_backend() == "gpu" and jax.__version_info__ < JAX:
        raise UsageError(
            f"all_reduce in one kernel: found jax {jax.__version__}, expected {'.'.join(map(str, JAX))} or later; "
            "update JAX, or name another algorithm"
        )
    mesh = jax.sharding.get_abstract_mesh()
    if not is_on(mesh.abstract_device.device_kind):
        raise UsageError(
            f"all_reduce in one kernel: found devices {mesh.abstract_device.device_kind}, expected H100s or H200s; "
            "name another algorithm"
        )
    if mesh.axis_names != (axis if isinstance(axis, tuple) else (axis,)) or jax.process_count() > 1:
        found = f"a mesh of {', '.join(mesh.axis_names)} and {jax.process_count()} processes"
        raise UsageError(
            f"all_reduce in one kernel over {axis}: found {found}, expected a mesh of this axis alone in one process; "
            "name another algorithm"
        )
    if op is not jnp.add:
        raise UsageError(f"all_reduce in one kernel: found op {op}, expected jnp.add; name another algorithm")
    if x.dtype.name not in DTYPES:
        raise UsageError(
            f"all_reduce in one kernel: found {x.dtype}, expected {', '.join(DTYPES)}; name another algorithm"
        )


def is_on(card: str) -> bool:
    """Whether devices that a runtime names so have it: on an A100 the compiler ends the process."""
    known = known_chip(card)
    return known is not None and known.key in CHIPS


def _power_of_two(count: int, most: int) -> int:
    """The largest up to `count` and `most`."""
    return min(most, 1 << (count.bit_length() - 1))
