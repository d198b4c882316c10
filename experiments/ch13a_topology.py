"""Chapter 13a: what does a hierarchy send over each level of links, and how much less leaves a host?"""

from dataclasses import astuple
from math import gcd

from lab.book.collectives import (
    all_reduce_wire_bytes,
    levels_all_reduce_s,
    ring_all_reduce_s,
    ring_tree_crossover_bytes,
)
from lab.book.topology import flat_rings_all_reduce_s
from lab.collectives import AlphaBeta
from lab.core.known import known
from lab.core.ledger import Ledger
from lab.harness.claim import Claim, calculated, decided
from lab.harness.collectives import laws
from lab.harness.collectives.experiment import experiment, inside_hosts
from lab.harness.collectives.kernels import Buffer, Kernel
from lab.harness.evidence import counted, priced_s, sent
from lab.harness.run import at_hand
from lab.meshes.axes import DATA, FSDP, TENSOR, Axes
from lab.meshes.platforms import LinkName
from lab.meshes.targets import Target

RING, HIERARCHICAL, TORUS = KERNELS = [Kernel("all_reduce", name) for name in ("ring", "hierarchical", "torus")]
# The chapter's case: links as (alpha, bandwidth of one direction), buffer, hosts, and ranks in each.
INSIDE, ACROSS = AlphaBeta(1e-6, 600e9), AlphaBeta(5e-6, 50e9)
CASE_BYTES, HOSTS, A_HOST = 10_000_000_000, 8, 8


def three_levels(target: Target) -> Axes:
    """Hosts along `data`; inside of them pairs of ranks along `fsdp`, and the rest along `tensor`."""
    axes = inside_hosts(target)
    pairs = gcd(axes[FSDP], 2)
    return Axes.of({DATA: axes[DATA], FSDP: pairs, TENSOR: axes[FSDP] // pairs})


def claims(buffer: Buffer, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes.size < 3 or axes.sizes[0] == 1 or len(axes.names) < 2:
        return ()
    n, mesh = buffer.size_bytes, at_hand(measured, axes)
    obeyed = laws.claims(laws.AXIS_BY_AXIS, mesh) if mesh else ()
    levels = (_levels(n, axes, measured), *_leaving(n, axes, measured), *_links(axes, measured), _bound(axes, measured))
    return (*levels, *obeyed, _toy(), *_case(), _congested(), _bisection(), _crossover())


def _levels(n: int, axes: Axes, measured: Ledger) -> Claim:
    book, found, whole = [], [], n
    for name, size in reversed(axes.shape.items()):
        level = sent(measured, HIERARCHICAL.scope, name)
        found.append((level.executions, level.wire_bytes))
        book.append((2 * (size - 1), all_reduce_wire_bytes(n, size) * whole / n))
        whole //= size
    listed = ", then ".join(
        f"{steps} steps and {counted(size)} B over {name}"
        for (steps, size), name in zip(found, reversed(axes.names), strict=True)
    )
    flat, total = sent(measured, RING.scope).wire_bytes, sum(size for _, size in found)
    evidence = f"{listed}: {counted(total)} B, and the flat ring {counted(flat)} B"
    return decided(
        "ch13a.levels",
        found == book and total == flat,
        evidence,
        statement="the bytes of the levels add up to 2(P-1)/P n",
    )


def _leaving(n: int, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    N, G, P = axes.sizes[0], axes.size // axes.sizes[0], axes.size
    a_rank, flat = sent(measured, HIERARCHICAL.scope, axes.names[0]).wire_bytes, sent(measured, RING.scope).wire_bytes
    levels_host, flat_host = G * a_rank, _edges_out_of_a_host(P, N) * flat
    book = all_reduce_wire_bytes(n, N) / G
    ratio = float(flat_host / levels_host)
    at_8_by_8 = float(all_reduce_wire_bytes(n, 64) / all_reduce_wire_bytes(n, 8))
    return (
        decided(
            "ch13a.hier",
            a_rank == book,
            f"{counted(a_rank)} B; 2(N-1)/N n/G is {counted(book)} B at N={N}, G={G}",
            statement="a rank sends 2(N-1)/N n/G across hosts",
        ),
        decided(
            "ch13a.hier",
            levels_host <= n / G,
            f"{G} ranks of a host send {counted(levels_host)} B to others, n/G is {counted(n // G)} B",
            statement="only n/G bytes leave each host",
            disputed="D-44",
        ),
        decided(
            "ch13a.traffic",
            ratio == float(flat / a_rank),
            f"a host sends {counted(flat_host)} B in the flat ring and {counted(levels_host)} B in levels: {ratio:g} "
            "times, "
            f"where ranks differ by {float(flat / a_rank):g}; {at_8_by_8:g} at 8 x 8, where the book has 9",
            statement="the traffic between hosts falls as that of a rank does",
            disputed="D-44",
        ),
    )


def _edges_out_of_a_host(ranks: int, hosts: int) -> int:
    """Of a ring over ranks in order, host after host."""
    a_host = ranks // hosts
    return sum((rank + 1) % ranks // a_host != 0 for rank in range(a_host))


def _links(axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    """Decided where there are two links: between GPUs of one host, and between hosts."""
    rows = [t for t in measured.split().transfers if t.scope == HIERARCHICAL.scope]
    across, inside = ({t.link for t in rows if (t.axes == axes.names[:1]) is outermost} for outermost in (True, False))
    if LinkName.NETWORK not in across | inside:
        return ()
    evidence = (
        f"over {axes.names[0]} {' and '.join(sorted(map(known, across)))} links, over the others "
        f"{' and '.join(sorted(map(known, inside)))} links"
    )
    holds = (across, inside) == ({LinkName.NETWORK}, {LinkName.HOST})
    return (decided("ch13a.hier", holds, evidence, statement="only the middle phase crosses the network"),)


def _bound(axes: Axes, measured: Ledger) -> Claim:
    priced = priced_s(measured, RING.scope, dict.fromkeys(axes.names, ACROSS))
    bound = float(sent(measured, RING.scope).wire_bytes) / ACROSS.bytes_per_s
    evidence = (
        f"the ring as compiled takes {priced * 1e6:.2f} us at 5 us and 50 GB/s, its fullest edge {bound * 1e6:.2f} us"
    )
    return decided(
        "ch13a.graph_cost",
        priced >= bound,
        evidence,
        statement="no schedule beats the load of its fullest edge",
        structural=True,
    )


def _toy() -> Claim:
    G, N, n = 2, 2, 1_000_000_000
    flat = N * _edges_out_of_a_host(G * N, N) * all_reduce_wire_bytes(n, G * N)
    levels = G * N * all_reduce_wire_bytes(n, N) / G
    carried = (
        f"{N} edges of the flat ring carry {float(flat) / 1e9:g} GB, {G * N} of the levels {float(levels) / 1e9:g} GB"
    )
    evidence = f"{carried}: {float(flat / levels):g} times"
    return decided(
        "ch13a.toy", flat == 3 * levels, evidence, statement="at 2 x 2 the link carries 6 GB against 2", disputed="D-45"
    )


def _case() -> tuple[Claim, ...]:
    flat, levels, inside = _case_s()
    all_cards = flat_rings_all_reduce_s(CASE_BYTES, A_HOST, HOSTS, *astuple(INSIDE), *astuple(ACROSS))
    times = f"flat {flat * 1e3:.2f} ms, levels {levels * 1e3:.2f} ms of which {inside * 1e3:.2f} inside"
    return (
        calculated(
            "ch13a.case",
            f"{times}: {flat / levels:.3f} times, with one card a host for the ring and {A_HOST} for the levels",
        ),
        decided(
            "ch13a.case",
            levels < all_cards,
            f"{A_HOST} flat rings, one a card, take {all_cards * 1e3:.2f} ms, the levels {levels * 1e3:.2f} ms",
            statement="levels are 5.4 times faster than a flat ring",
            disputed="D-46",
        ),
    )


def _congested() -> Claim:
    sigma, (flat, _, _) = 3, _case_s()
    slow = AlphaBeta(ACROSS.alpha_s, ACROSS.bytes_per_s / sigma)
    flat_slow, levels_slow, _ = _case_s(slow)
    evidence = (
        f"at sigma={sigma} levels take {levels_slow * 1e3:.1f} ms and the flat ring {flat_slow * 1e3:,.0f} ms, not "
        f"{flat * 1e3:.0f}"
    )
    return decided(
        "ch13a.case", flat_slow == flat, evidence, statement="congestion slows the levels alone", disputed="D-69"
    )


def _case_s(across: AlphaBeta = ACROSS) -> tuple[float, float, float]:
    """Seconds of the flat ring on one card a host, of the levels, and of the levels inside the hosts."""
    inside, outside = (A_HOST, INSIDE.alpha_s, INSIDE.bytes_per_s), (HOSTS, across.alpha_s, across.bytes_per_s)
    flat = ring_all_reduce_s(CASE_BYTES, HOSTS * A_HOST, across.alpha_s, across.bytes_per_s)
    return flat, levels_all_reduce_s(CASE_BYTES, [inside, outside]), levels_all_reduce_s(CASE_BYTES, [inside])


def _bisection() -> Claim:
    ranks = 64
    injected, bisection = ranks, ranks // 2
    sigma = injected / bisection
    evidence = (
        f"{ranks} ranks inject {injected} links' worth, and {bisection} links cross the middle: sigma is {sigma:g}"
    )
    return decided(
        "ch13a.oversub",
        sigma == 1,
        evidence,
        statement="injection over bisection is 1 where nothing blocks",
        disputed="D-68",
    )


def _crossover() -> Claim:
    size = ring_tree_crossover_bytes(8, ACROSS.alpha_s, ACROSS.bytes_per_s)
    return calculated(
        "ch13a.ring_vs_tree_inter", f"between 8 hosts at 5 us and 50 GB/s the tree is faster below {size:,.0f} B"
    )


EXPERIMENT = experiment(
    name="ch13a_topology",
    chapter=13,
    question="What does a hierarchy send over each level of links, and how much less leaves a host?",
    kernels=KERNELS,
    claims=claims,
    axes=three_levels,
)
