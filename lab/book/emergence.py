"""Part II: abilities that seem to appear at once (Ch. 9). Losses in nats."""

import numpy as np

from lab.book.checks import above, below, finite, positive, share


def success_share(loss: float, critical_loss: float, width: float) -> float:
    """1 / (1 + exp(-(L_c - L) / tau)). Source: Ch. 9, `ch09.sigmoid`."""
    finite(loss=loss, critical_loss=critical_loss)
    positive(width=width)
    return 1 / (1 + np.exp(-(np.subtract(critical_loss, loss)) / width))


def loss_below_critical(success_share: float, width: float) -> float:
    """L_c - L = tau ln(p / (1 - p)); negative before the transition. Source: Ch. 9, `ch09.sigmoid`."""
    positive(success_share=success_share, width=width)
    below(1, success_share=success_share)
    return width * np.log(success_share / (1 - success_share))


def reducible_after(loss_drop: float, size_ratio: float, exponent: float) -> float:
    """d / (r^a - 1): what is left above the floor of a power law that fell by d while the size grew r times. Source:
    Ch. 9, `ch09.sigmoid`, exercise 2."""
    positive(loss_drop=loss_drop, exponent=exponent)
    above(1, size_ratio=size_ratio)
    return loss_drop / np.expm1(exponent * np.log(size_ratio))


def uniform_loss(vocab: int) -> float:
    """ln V: of a model that knows nothing yet. Source: Ch. 9, `ch09.init_loss`."""
    positive(vocab=vocab)
    return np.log(vocab)


def exact_match_share(token_share: float, tokens: int) -> float:
    """p^k: an answer of k tokens counts only if all are right, each with chance p. Source: Ch. 9, `ch09.metric`
    (Schaeffer et al. 2023)."""
    share(token_share=token_share)
    positive(tokens=tokens)
    return token_share**tokens
