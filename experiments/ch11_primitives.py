"""Chapter 11: what does each primitive send, in how many steps, and which laws hold between them?"""

import numpy as np

from lab.book.collectives import (
    all_gather_wire_bytes,
    all_reduce_wire_bytes,
    doubling_all_reduce_s,
    halving_doubling_all_reduce_s,
    reduce_scatter_wire_bytes,
    ring_all_reduce_s,
    rounds_up,
    tree_all_reduce_s,
)
from lab.core.ledger import Ledger, Totals
from lab.harness.claim import Claim, calculated, decided
from lab.harness.collectives import laws, nonblocking
from lab.harness.collectives.experiment import experiment
from lab.harness.collectives.kernels import Buffer, Kernel
from lab.harness.evidence import counted, sent
from lab.harness.run import at_hand
from lab.meshes.axes import Axes

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = RINGS = [
    Kernel(name, "ring") for name in ("all_reduce", "reduce_scatter", "all_gather")
]
BROADCAST, REDUCE, SCATTER, GATHER = TREES = [
    Kernel(name, "tree") for name in ("broadcast", "reduce", "scatter", "gather")
]
PAIRWISE, BRUCK, PERMUTE = Kernel("all_to_all", "pairwise"), Kernel("all_to_all", "bruck"), Kernel("permute", "lax")
BLOCKS, HALVING = Kernel("broadcast", "blocks"), Kernel("all_reduce", "halving_doubling")
CIRCULANT = {kernel: Kernel(kernel.primitive, "circulant") for kernel in (REDUCE_SCATTER, ALL_GATHER)}
LAX = [Kernel(name, "lax") for name in ("all_gather", "reduce_scatter", "all_to_all")]
KERNELS = [*RINGS, *TREES, PAIRWISE, BRUCK, PERMUTE, BLOCKS, HALVING, *CIRCULANT.values(), *LAX]


def claims(buffer: Buffer, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    mesh = at_hand(measured, axes)
    run = (*laws.claims(laws.COMPOSITION + laws.ADJOINTS, mesh), nonblocking.claim(mesh, measured)) if mesh else ()
    if axes.size < 3:
        return run
    found = {kernel: sent(measured, kernel.scope) for kernel in KERNELS}
    n, P = buffer.size_bytes, axes.size
    volumes = (
        _rotating(n, P, found),
        _rooted(n, P, found),
        _total(buffer, axes),
        _eighth(n, P, found),
        _transpose(n, P, found),
    )
    costs = (_steps(P, found), _optimal(n, P, found), _in_two(n, P, found), _root_load(), _times())
    return (*volumes, *costs, *run, *_floats())


def _rotating(n: int, P: int, found: dict[Kernel, Totals]) -> Claim:
    book = {
        ALL_REDUCE: all_reduce_wire_bytes(n, P),
        REDUCE_SCATTER: reduce_scatter_wire_bytes(n, P),
        ALL_GATHER: all_gather_wire_bytes(n, P),
        PAIRWISE: all_gather_wire_bytes(n, P),
    }
    sizes = ", ".join(f"{kernel.primitive} {counted(found[kernel].wire_bytes)} B" for kernel in book)
    return decided(
        "ch11.volumes",
        all(found[kernel].wire_bytes == volume for kernel, volume in book.items()),
        f"a rank sends {sizes} at P={P}, n={counted(n)} B",
        statement="all_reduce 2(P-1)/P n; reduce_scatter, all_gather, all_to_all (P-1)/P n",
    )


def _rooted(n: int, P: int, found: dict[Kernel, Totals]) -> Claim:
    scattered, gathered = found[SCATTER].wire_bytes, found[GATHER].wire_bytes
    evidence = f"the root sends {counted(scattered)} B and gets {counted(gathered)} B of n = {counted(n)} B"
    return decided(
        "ch11.volumes",
        scattered == gathered == n,
        f"{evidence}; without its own block that is (P-1)/P n = {counted(all_gather_wire_bytes(n, P))} B",
        statement="the root of a scatter sends n, that of a gather gets n",
        disputed="D-53",
    )


def _total(buffer: Buffer, axes: Axes) -> Claim:
    n, P = buffer.size_bytes, axes.size
    total, book = BROADCAST.cost(buffer, axes).mean_bytes_sent * P, n * rounds_up(P)
    evidence = (
        f"every rank but the root gets n once: {counted(total)} B; n ceil(log2 P) = {counted(book)} B is what the "
        "root sends"
    )
    return decided(
        "ch11.volumes", total == book, evidence, statement="a tree broadcast sends n log2 P in all", disputed="D-50"
    )


def _eighth(n: int, P: int, found: dict[Kernel, Totals]) -> Claim:
    sends, gathering = found[PAIRWISE].wire_bytes, all_gather_wire_bytes(P * n, P)
    evidence = (
        f"a transpose of blocks sends {counted(sends)} B a rank by all_to_all, {counted(gathering)} B by all_gather"
    )
    hop = f"a hop to the next rank {counted(found[PERMUTE].wire_bytes)} B by permute, and none of the seven is one"
    return decided(
        "ch11.seven_suffice",
        sends >= gathering,
        f"{evidence}; {hop}",
        statement="seven primitives suffice",
        disputed="D-54",
    )


def _transpose(n: int, P: int, found: dict[Kernel, Totals]) -> Claim:
    transpose, gather, book = found[PAIRWISE].wire_bytes, found[ALL_GATHER].wire_bytes, all_gather_wire_bytes(n, P)
    evidence = f"a rank sends {counted(transpose)} B and {counted(gather)} B; (P-1)/P n is {counted(book)} B"
    statement = "all_to_all and all_gather send the same"
    return decided("ch11.ex5", transpose == gather == book, evidence, statement=statement)


def _steps(P: int, found: dict[Kernel, Totals]) -> Claim:
    around, height = P - 1, rounds_up(P)
    book = {
        ALL_REDUCE: 2 * around,
        **dict.fromkeys((REDUCE_SCATTER, ALL_GATHER, PAIRWISE), around),
        **dict.fromkeys(TREES, height),
    }
    steps = ", ".join(f"{kernel.primitive} {found[kernel].executions}" for kernel in book)
    holds = all(found[kernel].executions == expected for kernel, expected in book.items())
    return decided(
        "ch11.cost_table", holds, f"{steps} steps at P={P}", statement="rings take P-1 steps a phase, trees log2 P"
    )


def _optimal(n: int, P: int, found: dict[Kernel, Totals]) -> Claim:
    rivals = CIRCULANT | {ALL_REDUCE: HALVING}
    same_bytes = [
        (k, r, found[k].executions, found[r].executions)
        for k, r in rivals.items()
        if found[k].wire_bytes == found[r].wire_bytes
    ]
    beaten = [pair for pair in same_bytes if pair[3] < pair[2]]
    fewer = [
        f"{k.primitive} takes {steps} steps, {r.algorithm} {less} with the same bytes" for k, r, steps, less in beaten
    ]
    tree, blocks = found[BROADCAST].wire_bytes, found[BLOCKS].wire_bytes
    hops = f"all_to_all takes {found[PAIRWISE].executions} steps, bruck {found[BRUCK].executions}"
    halves = f"broadcast sends {counted(tree)} B, in blocks {counted(blocks)} B"
    is_optimal = not beaten and found[BRUCK].executions >= found[PAIRWISE].executions and blocks >= tree
    return decided(
        "ch11.cost_table",
        is_optimal,
        "; ".join([*fewer, hops, halves]),
        statement="these costs are optimal",
        disputed="D-51",
    )


def _in_two(n: int, P: int, found: dict[Kernel, Totals]) -> Claim:
    phases, whole = [found[kernel] for kernel in (REDUCE_SCATTER, ALL_GATHER)], found[ALL_REDUCE]
    steps, sends = sum(phase.executions for phase in phases), sum(phase.wire_bytes for phase in phases)
    return decided(
        "ch11.decomposition",
        (steps, sends) == (whole.executions, whole.wire_bytes) == (2 * (P - 1), all_reduce_wire_bytes(n, P)),
        f"{steps} steps and {counted(sends)} B in two phases, {whole.executions} and {counted(whole.wire_bytes)} B "
        f"in one; 2(P-1)/P n is {counted(all_reduce_wire_bytes(n, P))} B at P={P}",
        statement="cost(AR) = cost(RS) + cost(AG)",
    )


def _root_load() -> Claim:
    P, n = 64, 64
    naive, ring = 2 * (P - 1) * n, all_reduce_wire_bytes(n, P)
    evidence = (
        f"at P={P} a root carries {float(naive / 2 / ring):g} times what a rank of the ring sends; both send "
        f"{naive // n} n in all"
    )
    return calculated("ch11.ex3", evidence)


def _times() -> Claim:
    link, P, n = (1e-6, 100e9), 64, 1_000_000
    names = "ring", "tree", "halving and doubling", "doubling"
    forms = ring_all_reduce_s, tree_all_reduce_s, halving_doubling_all_reduce_s, doubling_all_reduce_s
    times = ", ".join(f"{name} {time_s(n, P, *link) * 1e6:.1f} us" for name, time_s in zip(names, forms, strict=True))
    return calculated("ch11.ex6", f"{times} for {counted(n)} B at P={P}, 1 us and 100 GB/s")


def _floats() -> tuple[Claim, ...]:
    one, big, small = np.float32(1), np.float32(1e20), np.float32(1e-8)
    left, right = (big - big) + one, big + (-big + one)
    after = np.cumsum(np.append(np.full(1_000_000, small), one), dtype=np.float32)[-1]
    return (
        decided(
            "ch11.fp_nonassoc",
            left != right,
            f"(1e20 - 1e20) + 1 = {left:g}, 1e20 + (-1e20 + 1) = {right:g} in float32",
            structural=True,
        ),
        decided(
            "ch11.fp_nonassoc",
            f"{after:.7f}" == "1.0100002",
            f"one after the other they make {after:.7f} in float32; exactly it is 1.01",
            statement="a million times 1e-8, then 1, make 1.0100002",
            disputed="D-56",
        ),
    )


EXPERIMENT = experiment(
    name="ch11_primitives",
    chapter=11,
    question="What does each primitive send, in how many steps, and which laws hold between them?",
    kernels=KERNELS,
    claims=claims,
    everyday=(("explicit", "cpu:8"),),
)
