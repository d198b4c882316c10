"""PyTorch's all_reduce by NCCL, launched one by one and as a CUDA graph, one process a GPU; run
`torchrun --nproc-per-node 2 -m tests.benchmarks.bench_nccl` where PyTorch is installed.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

MIB = (1 / 1024, 1 / 16, 1, 4, 16, 64, 256, 1024)


def median_us(run: Callable[[], None]) -> float:
    seconds = []
    for _ in range(18):
        dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[3:]) * 1e6


def lines() -> Iterator[str]:
    for mib in MIB:
        x = torch.zeros(int(mib * (1 << 18)), dtype=torch.int32, device="cuda")
        calls = 32 if mib < 64 else 8

        def chain(x: torch.Tensor = x, calls: int = calls) -> None:
            for _ in range(calls):
                dist.all_reduce(x)

        eager, graph = median_us(chain) / calls, torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain()
        replayed = median_us(graph.replay) / calls
        yield f"[torch NCCL {torch.cuda.nccl.version()}] {mib:g} MiB, {calls} calls: eager {eager:.1f} us, graph {replayed:.1f} us"


if __name__ == "__main__":
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    for line in lines():
        if rank == 0:
            print(line, flush=True)
    dist.destroy_process_group()
