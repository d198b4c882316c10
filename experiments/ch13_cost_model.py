"""Chapter 13: do the costs of the table price what the compilers emit, and what do the worked examples come to?"""

from dataclasses import astuple
from math import isclose

from lab.book.collectives import (
    all_gather_wire_bytes,
    all_reduce_wire_bytes,
    binomial_broadcast_s,
    binomial_scatter_s,
    halving_doubling_all_reduce_s,
    levels_all_reduce_s,
    message_s,
    ring_all_gather_s,
    ring_all_reduce_s,
    tree_all_reduce_s,
)
from lab.book.cost_model import bus_bytes_per_s, stage_boundary_s
from lab.book.sharding import zero3_volume_bytes
from lab.book.topology import flat_rings_all_reduce_s
from lab.collectives import AlphaBeta
from lab.core.ledger import Ledger
from lab.harness.claim import Claim, calculated, decided
from lab.harness.collectives.experiment import experiment
from lab.harness.collectives.kernels import Buffer, Kernel
from lab.harness.evidence import counted, priced_s, sent
from lab.meshes.axes import Axes

RING, TREE, HALVING, DOUBLING, HIERARCHICAL = ALL_REDUCES = [
    Kernel("all_reduce", name) for name in ("ring", "tree", "halving_doubling", "doubling", "hierarchical")
]
AROUND = [Kernel("all_gather", "ring"), Kernel("reduce_scatter", "ring"), Kernel("all_to_all", "pairwise")]
BROADCAST, REDUCE = WHOLE = [Kernel(name, "tree") for name in ("broadcast", "reduce")]
BLOCKS = [Kernel(name, "tree") for name in ("scatter", "gather")]
SEND, NARROW = Kernel("permute", "lax"), Kernel("all_gather", "ring", "s16")
KERNELS = [*ALL_REDUCES, *AROUND, *WHOLE, *BLOCKS, SEND, NARROW]
TABLE = {
    RING: ring_all_reduce_s,
    TREE: tree_all_reduce_s,
    HALVING: halving_doubling_all_reduce_s,
    **dict.fromkeys(AROUND, ring_all_gather_s),
    **dict.fromkeys(WHOLE, binomial_broadcast_s),
    **dict.fromkeys(BLOCKS, binomial_scatter_s),
    SEND: lambda n, P, *link: message_s(n, *link),
}
# (alpha, bandwidth of one direction) as the chapter's first example has them.
INSIDE, ACROSS = AlphaBeta(1e-6, 300e9), AlphaBeta(5e-6, 50e9)


def claims(buffer: Buffer, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes.size < 3:
        return ()
    n, P = buffer.size_bytes, axes.size
    found = (
        *_table(n, axes, measured),
        *_bus_bandwidth(n, P, measured),
        *_two_levels(n, axes, measured),
        *_from_two_times(n, axes, measured),
    )
    examples = (
        _hidden_network_cards(),
        *_more_levels(),
        _zero3(),
        *_seventy_billion(),
        _gather(),
        _halved_tensor_parallelism(),
    )
    return (*found, _boundary(n, axes, measured), _sixteen_bits(n, axes.size, measured), *examples)


def _table(n: int, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    P, link = axes.size, (ACROSS.alpha_s, ACROSS.bytes_per_s)
    book = {kernel: form(n, P, *link) for kernel, form in TABLE.items()}
    priced = {kernel: priced_s(measured, kernel.scope, dict.fromkeys(axes.names, ACROSS)) for kernel in TABLE}
    rows = ", ".join(f"{kernel.scope} {seconds * 1e6:.2f} us" for kernel, seconds in priced.items())
    fastest = min((RING, TREE, HALVING), key=priced.__getitem__)
    return (
        decided(
            "ch13.table",
            all(isclose(priced[kernel], book[kernel], rel_tol=1e-9) for kernel in TABLE),
            f"the compiled messages of {counted(n)} B at P={P}, 5 us and 50 GB/s take {rows}",
            statement="alpha-beta times of the named algorithms",
        ),
        decided(
            "ch13.table",
            book[RING] <= priced[fastest],
            f"the ring's row gives {book[RING] * 1e6:.2f} us, {fastest.algorithm} as compiled takes "
            f"{priced[fastest] * 1e6:.2f} us",
            statement="the formulas are lower bounds",
            disputed="D-58",
        ),
    )


def _bus_bandwidth(n: int, P: int, measured: Ledger) -> tuple[Claim, ...]:
    factors = {kernel: sent(measured, kernel.scope).wire_bytes / n for kernel in (RING, *AROUND)}
    book = {kernel: all_reduce_wire_bytes(n, P) / n / (1 if kernel is RING else 2) for kernel in factors}
    listed = ", ".join(f"{kernel.primitive} {float(factor):g}" for kernel, factor in factors.items())
    seconds, size, ranks = 50e-3, 1_000_000_000, 8
    bus = float(all_reduce_wire_bytes(size, ranks)) / seconds / 1e9
    tree = sent(measured, BROADCAST.scope).wire_bytes / n
    return (
        decided(
            "ch13.algbw_busbw",
            factors == book,
            f"a rank sends n times {listed} at P={P}",
            statement="bus bandwidth is n/T times what a rank sends of n",
        ),
        decided(
            "ch13.algbw_busbw",
            tree == 1,
            f"the root of the chapter's own tree sends {float(tree):g} n; only a chain of many slices sends n",
            statement="the factor of a broadcast is 1",
            disputed="D-71",
        ),
        calculated(
            "ch13.algbw_busbw",
            f"1 GB over {ranks} ranks in 50 ms is {size / seconds / 1e9:g} GB/s, {bus:g} GB/s on the bus",
        ),
    )


def _two_levels(n: int, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if len(axes.names) != 2:
        return ()
    (across, inside), (N, G) = axes.names, axes.sizes
    priced = priced_s(measured, HIERARCHICAL.scope, {across: ACROSS, inside: INSIDE})
    book = levels_all_reduce_s(n, _levels(G, N))
    evidence = (
        f"as compiled {priced * 1e6:.2f} us, by the formula {book * 1e6:.2f} us for {counted(n)} B at G={G}, N={N}"
    )
    is_equal, statement = isclose(priced, book, rel_tol=1e-9), "T1 + T2 + T3 of reduce_scatter, all_reduce, all_gather"
    return (decided("ch13.hier", is_equal, evidence, statement=statement),)


def _levels(G: int, N: int) -> list[tuple[int, float, float]]:
    return [(G, INSIDE.alpha_s, INSIDE.bytes_per_s), (N, ACROSS.alpha_s, ACROSS.bytes_per_s)]


def _hidden_network_cards() -> Claim:
    n, G, N = 2_000_000_000, 8, 8
    levels = levels_all_reduce_s(n, _levels(G, N))
    one_card = ring_all_reduce_s(n, G * N, ACROSS.alpha_s, ACROSS.bytes_per_s)
    all_cards = flat_rings_all_reduce_s(n, G, N, *astuple(INSIDE), *astuple(ACROSS))
    evidence = (
        f"{levels * 1e3:.2f} ms against {one_card * 1e3:.2f} of a ring on one card a host is "
        f"{one_card / levels:.3f} times"
    )
    return decided(
        "ch13.hier",
        levels < all_cards,
        f"{evidence}; {G} rings, one a card, take {all_cards * 1e3:.2f} ms",
        statement="two levels are 3.9 times faster than a flat ring",
        disputed="D-46",
    )


def _zero3() -> Claim:
    parameters, P = 1_000_000, 8
    times = zero3_volume_bytes(parameters, 2, P) / (all_reduce_wire_bytes(2 * parameters, P) / 2)
    evidence = (
        f"gathered forward, gathered backward, gradients scattered: {float(times):g} times; ch20_zero3 compiles it"
    )
    return decided(
        "ch13.zero3", times == 2, evidence, statement="ZeRO-3 takes 2 times (P-1)/P n a layer", disputed="D-60"
    )


def _more_levels() -> tuple[Claim, ...]:
    n, link = 100_000_000, (10e-6, 100e9)
    flat, levels = ring_all_reduce_s(n, 16, *link) * 1e3, levels_all_reduce_s(n, [(4, *link), (4, *link)]) * 1e3
    large = [levels_all_reduce_s(4_000_000_000, _levels(G, N)) * 1e3 for G, N in ((8, 8), (4, 16))]
    return (
        calculated(
            "ch13.hier",
            f"4 x 4 ranks on equal links take {levels:.3f} ms against {flat:.3f}: the bytes are the same, the steps "
            "fewer",
        ),
        calculated(
            "ch13.hier",
            f"4 GB take {large[0]:.3f} ms over 8 hosts of 8, {large[1]:.3f} ms over 16 of 4: "
            f"{large[1] / large[0]:.3f} times",
        ),
    )


def _from_two_times(n: int, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    without_alpha_s = priced_s(measured, RING.scope, dict.fromkeys(axes.names, AlphaBeta(0.0, ACROSS.bytes_per_s)))
    rate = bus_bytes_per_s(n, axes.size, without_alpha_s)
    evidence = (
        f"the compiled ring's bytes take {without_alpha_s * 1e6:.3f} us at 50 GB/s, from which the formula makes "
        f"{rate / 1e9:.6g} GB/s"
    )
    is_rate = isclose(rate, ACROSS.bytes_per_s, rel_tol=1e-9)
    return decided("ch13.measure", is_rate, evidence, statement="beta = 2(P-1)/P n/T"), _smallest(axes.size, measured)


def _boundary(n: int, axes: Axes, measured: Ledger) -> Claim:
    there_s, book_s = (
        priced_s(measured, SEND.scope, dict.fromkeys(axes.names, ACROSS)),
        stage_boundary_s(n, ACROSS.alpha_s, ACROSS.bytes_per_s),
    )
    evidence = (
        f"a permute as compiled takes {there_s * 1e6:.3f} us, and as much back; the formula has {book_s * 1e6:.3f} "
        f"us for {counted(n)} B"
    )
    statement = "a stage boundary takes 2 (alpha + n/beta) a micro-batch"
    return decided("ch13.pp", isclose(2 * there_s, book_s, rel_tol=1e-9), evidence, statement=statement)


def _sixteen_bits(n: int, P: int, measured: Ledger) -> Claim:
    wide, narrow = (sent(measured, kernel.scope).wire_bytes for kernel in (AROUND[0], NARROW))
    evidence = (
        f"an all_gather of numbers of 32 bits sends {counted(wide)} B, of the same in 16 bits {counted(narrow)} B"
    )
    book = all_gather_wire_bytes(n, P)
    evidence += f"; (P-1)/P n is {counted(book)} B"
    return decided("ch13.compression", wide == book == 2 * narrow, evidence, statement="16 bits halve what is sent")


def _smallest(P: int, measured: Ledger) -> Claim:
    steps, ring = sent(measured, DOUBLING.scope).executions, 2 * (P - 1)
    evidence = (
        f"a small all_reduce by doubling takes {steps} steps, so T/(2(P-1)) is {steps}/{ring} = {steps / ring:.3f} "
        f"alpha at P={P}"
    )
    return decided("ch13.measure", steps == ring, evidence, statement="alpha = T_small/(2(P-1))", disputed="D-62")


def _seventy_billion() -> tuple[Claim, ...]:
    weights, TP, PP, DP = 70_000_000_000 * 2, 8, 8, 8
    sizes = {"a rank holds": weights // (TP * PP), "the book has": weights // 8}
    times = {
        name: ring_all_reduce_s(size, DP, ACROSS.alpha_s, ACROSS.bytes_per_s) * 1e3 for name, size in sizes.items()
    }
    evidence = "; ".join(f"{name} {size / 1e9:g} GB of gradients, {times[name]:.1f} ms" for name, size in sizes.items())
    held, book = sizes.values()
    statement = "data parallelism of 70B takes 612.6 ms at TP=PP=DP=8"
    tensor = 320 * ring_all_reduce_s(64_000_000, TP, INSIDE.alpha_s, INSIDE.bytes_per_s) * 1e3
    pipe = 8 * stage_boundary_s(64_000_000, ACROSS.alpha_s, ACROSS.bytes_per_s) * 1e3
    parts = f"TP {tensor:.1f} ms, PP {pipe:.2f} ms, DP {times['a rank holds']:.1f} ms"
    return (
        decided("ch13.ex70b", held == book, evidence, statement=statement, disputed="D-59"),
        calculated(
            "ch13.ex70b", f"{parts}: {tensor + pipe + times['a rank holds']:.0f} ms in all, where the book has 757"
        ),
    )


def _gather() -> Claim:
    n, P, link = 100_000_000, 16, (10e-6, 100e9)
    gather, reduce = (time_s(n, P, *link) * 1e3 for time_s in (ring_all_gather_s, ring_all_reduce_s))
    return calculated(
        "ch13.ex1", f"100 MB at P={P}, 10 us and 100 GB/s: all_gather {gather:.4f} ms, all_reduce {reduce:.3f} ms"
    )


def _halved_tensor_parallelism() -> Claim:
    four, eight = (all_reduce_wire_bytes(1_000_000, P) for P in (4, 8))
    evidence = f"2(t-1)/t goes from {float(eight) / 1e6:g} to {float(four) / 1e6:g}, {float(four / eight):.3f} times"
    return decided(
        "ch13.ex3",
        2 * four <= eight,
        evidence,
        statement="halving tensor parallelism halves its traffic",
        disputed="D-61",
    )


EXPERIMENT = experiment(
    name="ch13_cost_model",
    chapter=13,
    question="Do the costs of the table price what the compilers emit, and what do the worked examples come to?",
    kernels=KERNELS,
    claims=claims,
)
