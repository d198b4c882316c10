"""The second source's laws of optimisation: what ranks and batch buy in steps (ml.15, ml.16)."""

from lab.book.checks import below, count, not_negative, positive


def synchronous_bound(
    distance: float, steps: int, learning_rate: float, smoothness: float, variance: float, ranks: int, batch_a_rank: int
) -> float:
    """|x0 - x*|^2 / (2 eta K) + eta L s^2 / (2 N b): the mean excess of K synchronous steps on a convex L-smooth
    function, eta <= 1 / L.

    `variance` is s^2 of one sample's gradient. Source: ml, `ml.15_convergence` as corrected (2nd:M22).
    """
    count(ranks=ranks)
    positive(steps=steps, learning_rate=learning_rate, smoothness=smoothness, batch_a_rank=batch_a_rank)
    not_negative(distance=distance, variance=variance)
    return distance**2 / (2 * learning_rate * steps) + learning_rate * smoothness * variance / (
        2 * ranks * batch_a_rank
    )


def sample_efficiency(batch: float, critical_batch: float) -> float:
    """1 / (1 + B / B*): samples needed with a vanishing batch, over those needed with B. Source: ml,
    `ml.16_critical_batch`."""
    positive(batch=batch, critical_batch=critical_batch)
    return 1 / (1 + batch / critical_batch)


def simple_noise_scale(small_norm2: float, large_norm2: float, small_batch: int, large_batch: int) -> float:
    """tr(Sigma) / |G|^2 from mean squared norms of gradients of two batches: B*, in the batches' unit.

    |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b), tr(Sigma) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B). With data parallelism the
    two come for nothing: one rank's gradient, and the reduced one. Source: ml, `ml.16_critical_batch` (McCandlish et
    al. 2018).
    """
    not_negative(small_norm2=small_norm2, large_norm2=large_norm2)
    positive(small_batch=small_batch, large_batch=large_batch)
    below(large_batch, small_batch=small_batch)
    squared_norm = (large_batch * large_norm2 - small_batch * small_norm2) / (large_batch - small_batch)
    return (small_norm2 - large_norm2) / (1 / small_batch - 1 / large_batch) / squared_norm
