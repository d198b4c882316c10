"""Chapter 12: how many steps and bytes do rings, trees and hierarchies take, and which claims of optimality hold?"""

from fractions import Fraction
from math import inf

from lab.book.collectives import (
    all_reduce_wire_bytes,
    ring_all_reduce_s,
    ring_tree_crossover_bytes,
    rounds_down,
    rounds_up,
    tree_all_reduce_s,
)
from lab.collectives import AlphaBeta, cost, double_tree
from lab.core.ledger import Ledger, Totals
from lab.harness.claim import Claim, calculated, decided
from lab.harness.collectives.experiment import experiment
from lab.harness.collectives.kernels import Buffer, Kernel
from lab.harness.evidence import counted, in_scope, sent
from lab.meshes.axes import DATA, Axes

NAMES = (
    "lax",
    "ring",
    "bidirectional_ring",
    "doubling",
    "halving_doubling",
    "tree",
    "double_tree",
    "hierarchical",
    "ring_tree",
)
LAX, RING, BOTH_WAYS, DOUBLING, HALVING, TREE, DOUBLE_TREE, HIERARCHICAL, RING_TREE = KERNELS = [
    Kernel("all_reduce", name) for name in NAMES
]
MESSAGES_A_STEP_BOTH_WAYS = 2
# Links as (alpha, bandwidth of one direction), of chapters 12 and 13; and where NCCL is said to leave trees, and to
# come to rings.
LINKS = AlphaBeta(1e-6, 100e9), AlphaBeta(5e-6, 50e9), AlphaBeta(1e-6, 300e9)
TREES_END_BYTES, RINGS_BEGIN_BYTES = 256_000, 4_000_000


def claims(buffer: Buffer, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    n, P = buffer.size_bytes, axes.size
    if P < 3:
        return ()
    found = {kernel: sent(measured, kernel.scope) for kernel in KERNELS if kernel.serves(axes)}
    rings = (*_ring(n, P, found), *_both_ways(n, P, found[BOTH_WAYS]))
    trees = (*_trees(n, P, found), _name(n, measured), _pipelined(n, P, found), *_halving(n, P, found))
    return (
        *rings,
        *trees,
        *_two_levels(n, axes, measured),
        _thresholds(n, P, found),
        _crossover(),
        _buckets(),
        _double_tree(),
    )


def _ring(n: int, P: int, found: dict[Kernel, Totals]) -> tuple[Claim, ...]:
    ring, least = found[RING], all_reduce_wire_bytes(n, P)
    found_ring = f"{ring.executions} permutes send {counted(ring.wire_bytes)} B of n = {counted(n)} B"
    fewest = min(total.wire_bytes for total in found.values())
    return (
        decided(
            "ch12.ring",
            (ring.executions, ring.wire_bytes) == (2 * (P - 1), least),
            f"{found_ring}; 2(P-1)/P n is {counted(least)} B at P={P}",
            statement="a ring takes 2(P-1) steps of n/P",
        ),
        decided(
            "ch12.ring_optimal",
            fewest >= least,
            f"of {len(found)} compiled, the least sends {counted(fewest)} B; the bound is {counted(least)} B",
            statement="no all_reduce sends less than 2(P-1)/P n a rank",
        ),
        decided(
            "ch12.ring_optimal",
            2 * ring.wire_bytes == least,
            f"the ring sends {counted(ring.wire_bytes)} B and gets as much, twice the {counted(least)} B that the "
            "proof shows",
            statement="the proof, that in and out make 2(P-1)/P n, is met by the ring",
            disputed="D-47",
        ),
    )


def _both_ways(n: int, P: int, both: Totals) -> tuple[Claim, ...]:
    steps, one_way, book = (
        both.executions // MESSAGES_A_STEP_BOTH_WAYS,
        both.wire_bytes / 2,
        all_reduce_wire_bytes(n, P) / 2,
    )
    return (
        decided(
            "ch12.bidir_ring",
            one_way == book,
            f"{counted(one_way)} B go each way; (P-1)/P n is {counted(book)} B",
            statement="both directions halve the bytes of one",
        ),
        decided(
            "ch12.bidir_ring",
            steps == P - 1,
            f"{both.executions} permutes, two a step, are {steps} steps; the book has {P - 1}, and 2 floor(P/2) is "
            f"{2 * (P // 2)} at P={P}",
            statement="a bidirectional ring takes P-1 steps",
            disputed="D-49",
        ),
    )


def _trees(n: int, P: int, found: dict[Kernel, Totals]) -> tuple[Claim, ...]:
    tree, doubling, height = found[TREE], found[DOUBLING], rounds_up(P)
    sizes = f"{tree.executions} permutes of {counted(Fraction(tree.payload_bytes, tree.executions))} B"
    return (
        decided(
            "ch12.tree",
            (tree.executions, tree.payload_bytes) == (2 * height, 2 * height * n),
            f"{sizes}; ceil(log2 P) is {height}, n is {counted(n)} B",
            statement="a binomial tree takes 2 ceil(log2 P) steps of n",
        ),
        decided(
            "ch12.tree_latency_optimal",
            tree.executions <= doubling.executions,
            f"reduce and broadcast takes {tree.executions} steps, recursive doubling {doubling.executions}; the "
            f"bound is {height}",
            statement="reduce and broadcast has the least latency",
            disputed="D-48",
        ),
    )


def _name(n: int, measured: Ledger) -> Claim:
    tree, halving = ({t.payload_bytes for t in in_scope(measured, kernel.scope)} for kernel in (TREE, HALVING))
    listed = [", ".join(map(counted, sorted(sizes, reverse=True))) for sizes in (tree, halving)]
    evidence = (
        f"messages of the tree have {listed[0]} B, of n = {counted(n)} B; those of halving and doubling have "
        f"{listed[1]} B"
    )
    return decided(
        "ch12.tree",
        tree == halving,
        evidence,
        statement="reduce and broadcast is recursive halving and doubling",
        disputed="D-52",
    )


def _pipelined(n: int, P: int, found: dict[Kernel, Totals]) -> Claim:
    whole, slices = (found[kernel].wire_bytes / found[RING].wire_bytes for kernel in (TREE, DOUBLE_TREE))
    evidence = (
        f"a tree of whole buffers sends {float(whole):.3g} times what the ring does, two trees of slices "
        f"{float(slices):.3g} times"
    )
    holds = min(whole, slices) >= rounds_down(P)
    return decided(
        "ch12.tree",
        holds,
        f"{evidence} at P={P}",
        statement="trees send log2 P times what a ring does",
        disputed="D-52",
    )


def _thresholds(n: int, P: int, found: dict[Kernel, Totals]) -> Claim:
    equal = [_equal_bytes(n, found[RING], found[TREE], link) for link in LINKS]
    places = zip(equal, LINKS, strict=True)
    listed = ", ".join(
        f"{size:,.0f} B ({link.alpha_s * 1e6:g} us, {link.bytes_per_s / 1e9:g} GB/s)" for size, link in places
    )
    return decided(
        "ch11.nccl_sizes",
        all(TREES_END_BYTES <= size <= RINGS_BEGIN_BYTES for size in equal),
        f"ring and tree as compiled are equally fast at {listed} for P={P}",
        statement="trees below 256 KB, rings above 4 MB",
        disputed="D-57",
    )


def _equal_bytes(n: int, ring: Totals, tree: Totals, link: AlphaBeta) -> float:
    """The payload above which the ring is the faster, if what both send grows with n."""
    steps_saved, more_sent = ring.executions - tree.executions, float(tree.wire_bytes - ring.wire_bytes) / n
    return link.alpha_s * link.bytes_per_s * steps_saved / more_sent if more_sent > 0 else inf


def _halving(n: int, P: int, found: dict[Kernel, Totals]) -> tuple[Claim, ...]:
    halving = found[HALVING]
    steps, sends = 2 * rounds_down(P), f"{halving.executions} permutes send {counted(halving.wire_bytes)} B"
    if rounds_up(P) == rounds_down(P):
        book = all_reduce_wire_bytes(n, P)
        holds, evidence = (
            (halving.executions, halving.wire_bytes) == (steps, book),
            f"{sends}; 2(P-1)/P n is {counted(book)} B",
        )
        return (
            decided(
                "ch12.rhd",
                holds,
                evidence,
                statement="halving and doubling takes 2 log2 P steps and the bytes of the ring",
            ),
        )
    evidence = f"{sends}; 2 floor(log2 P) + 2 is {steps + 2} at P={P}, the ring takes {2 * (P - 1)}"
    folds = decided(
        "ch12.non_pow2",
        halving.executions == steps + 2,
        evidence,
        statement="ranks beyond a power of two fold in two steps",
    )
    return folds, _slower_ring(P, found[RING], halving)


def _slower_ring(P: int, ring: Totals, folded: Totals) -> Claim:
    small, large = ring.executions / folded.executions, float(ring.wire_bytes / folded.wire_bytes)
    evidence = (
        f"as compiled for P={P} it takes {small:.3g} times as long where steps count, and {large:.3g} times where "
        "bytes do"
    )
    holds = all(1.05 < ratio < 1.15 for ratio in (small, large))
    return decided(
        "ch12.non_pow2", holds, evidence, statement="a ring is about 10 % slower than folding", disputed="D-57"
    )


def _two_levels(n: int, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if len(axes.names) != 2:
        return ()
    (across, inside), (N, G) = axes.names, axes.sizes
    levels = [sent(measured, HIERARCHICAL.scope, axis) for axis in (inside, across)]
    tree = sent(measured, RING_TREE.scope, across)
    book = all_reduce_wire_bytes(n, G), all_reduce_wire_bytes(n, N) / G
    flat, both = sent(measured, RING.scope).wire_bytes, sent(measured, HIERARCHICAL.scope).wire_bytes
    steps, bytes_sent = tuple(level.executions for level in levels), tuple(level.wire_bytes for level in levels)
    found = f"{steps[0]} steps and {counted(bytes_sent[0])} B inside, {steps[1]} and {counted(bytes_sent[1])} B across"
    return (
        decided(
            "ch12.hier2d",
            (steps, bytes_sent) == ((2 * (G - 1), 2 * (N - 1)), book),
            f"{found}; 2(G-1)/G n is {counted(book[0])} B, 2(N-1)/N n/G {counted(book[1])} B at G={G}, N={N}",
        ),
        decided(
            "ch12.volume_identity",
            both == flat == all_reduce_wire_bytes(n, N * G),
            f"two levels send {counted(both)} B, the flat ring {counted(flat)} B; 2(P-1)/P n is "
            f"{counted(all_reduce_wire_bytes(n, N * G))} B",
            statement="2(G-1)/G + 2(N-1)/(N G) = 2(P-1)/P",
        ),
        decided(
            "ch12.ring_tree",
            (tree.executions, tree.wire_bytes * G) == (2 * rounds_up(N), Fraction(2 * rounds_up(N) * n)),
            f"{tree.executions} steps and {counted(tree.wire_bytes)} B; 2 log2 N is {2 * rounds_up(N)}, n/G "
            f"{counted(Fraction(n, G))} B",
            statement="a tree between rings takes 2 log2 N steps of n/G",
        ),
    )


def _crossover() -> Claim:
    link, P = (1e-6, 100e9), 64
    size = ring_tree_crossover_bytes(P, *link)
    ring, tree = (time_s(round(size), P, *link) * 1e6 for time_s in (ring_all_reduce_s, tree_all_reduce_s))
    evidence = (
        f"{size:,.0f} B at P={P}, 1 us and 100 GB/s, where the ring takes {ring:.1f} us and the tree {tree:.1f} us"
    )
    return calculated("ch12.crossover", evidence)


def _buckets() -> Claim:
    link, P = (10e-6, 100e9), 8
    small, large = (
        calls * ring_all_reduce_s(size, P, *link) * 1e3 for calls, size in ((1000, 1_000_000), (40, 25_000_000))
    )
    return calculated(
        "ch12.bucket",
        f"1,000 calls of 1 MB take {small:.1f} ms, 40 of 25 MB {large:.1f} ms: {small / large:.3f} times less",
    )


def _double_tree() -> Claim:
    P, n, slices = 64, 1_000_000_000, 64
    stated = cost("all_reduce", double_tree.all_reduce(slices), Axes.of({DATA: P}), n, 1)
    evidence = f"{stated.steps} steps of n/{2 * slices} take as long as {float(stated.bytes_sent / n):.2f} n at P={P}"
    return calculated("ch12.double_tree", f"{evidence} with {slices} slices of each half; the book has about 2 n")


EXPERIMENT = experiment(
    name="ch12_ring_and_tree",
    chapter=12,
    question="How many steps and bytes do rings, trees and hierarchies take, and which claims of optimality hold?",
    kernels=KERNELS,
    claims=claims,
    targets=("cpu:8", "cpu:6", "gpu:h100:2x4", "tpu:v5e:2x4"),
    everyday=(("explicit", "gpu:h100:2x4"), ("explicit", "tpu:v5e:2x4")),
)
