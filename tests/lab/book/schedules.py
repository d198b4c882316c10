"""An event simulator of pipelines: stages work through orders of (pass, micro-batch, chunk), each operation once what it needs is done."""

F, B, W = "FBW"


def gpipe(P, m, s):
    return [(F, i, 0) for i in range(m)] + [(B, i, 0) for i in reversed(range(m))]


def one_f_one_b(P, m, s, warm_up=None):
    first = min(P - s - 1 if warm_up is None else warm_up, m)
    forward, backward = [(F, i, 0) for i in range(m)], [(B, i, 0) for i in range(m)]
    pairs = [op for i in range(m - first) for op in (forward[first + i], backward[i])]
    return forward[:first] + pairs + backward[m - first :]


def interleaved(P, m, s, v):
    """Groups of P micro-batches, chunk after chunk (Narayanan et al. 2021)."""
    place = [(k // (P * v) * P + k % P, k % (P * v) // P) for k in range(m * v)]
    forward, backward = [(F, i, c) for i, c in place], [(B, i, v - 1 - c) for i, c in place]
    first = min(2 * (P - s - 1) + (v - 1) * P, m * v)
    pairs = [op for i in range(m * v - first) for op in (forward[first + i], backward[i])]
    return forward[:first] + pairs + backward[m * v - first :]


def zero_bubble(P, m, s, k):
    """ZB-H1 (k = 1) and ZB-H2 (k = 2): W follows its B by k s micro-batches (Qi et al. 2023)."""
    first = min(k * (P - s - 1), m)
    order = [(F, i, 0) for i in range(first)]
    for i in range(m):
        order += [(F, first + i, 0)] * (first + i < m) + [(B, i, 0)] + [(W, i - k * s, 0)] * (i >= k * s)
    return order + [(W, i, 0) for i in range(max(0, m - k * s), m)]


def named(op, stage, stages):
    """The operation by its place in the whole model."""
    kind, i, chunk = op
    return kind, i, chunk * stages + stage


def needs(op, last):
    """What must be done before an operation at one of the places 0 to last."""
    kind, i, place = op
    if kind == F:
        return [(F, i, place - 1)] if place else []
    if kind == W:
        return [(B, i, place)]
    return [(F, i, place)] + [(B, i, place + 1)] * (place < last)


def run(orders, times, chunks=1):
    """(start, end) of each stage. Raises RuntimeError where nothing can go on."""
    P, done = len(orders), {}
    clocks, starts, left = [0.0] * P, [None] * P, [list(reversed(order)) for order in orders]
    while any(left):
        stuck = True
        for s in range(P):
            while left[s]:
                me = named(left[s][-1], s, P)
                before = needs(me, P * chunks - 1)
                if any(op not in done for op in before):
                    break
                begin = max([clocks[s], *(done[op] for op in before)])
                starts[s] = begin if starts[s] is None else starts[s]
                clocks[s] = done[me] = begin + times[me[0]] / chunks
                left[s].pop()
                stuck = False
        if stuck:
            raise RuntimeError(f"deadlock: {[order[-1] for order in left if order]}")
    return list(zip(starts, clocks, strict=True))


def held(order):
    """Most micro-batches (of a chunk) between their forward pass and the last pass that reads what it saved."""
    freed = W if any(kind == W for kind, _, _ in order) else B
    now = most = 0
    for kind, _, _ in order:
        now += (kind == F) - (kind == freed)
        most = max(most, now)
    return most
