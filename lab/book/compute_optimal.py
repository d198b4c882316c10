"""Part II: parameters and tokens for a given compute, and what leaving that optimum costs (Ch. 8)."""

import numpy as np

from lab.book.checks import above, at_least, below, finite, positive
from lab.book.loss import Fit, additive_loss

TOKENS_PER_PARAMETER = 20
"""Of Hoffmann et al. 2022, Approaches 1 and 2, and of the 2024 re-fit; not of the constants published with Approach 3
(D-07)."""


def compute_optimal_parameters(flops: float, tokens_per_parameter: float = TOKENS_PER_PARAMETER) -> float:
    """sqrt(C / (6 r)) for r tokens a parameter: the dense model that this compute trains best.

    Source: Ch. 8, `ch08.sqrt120`; Ch. 7, `ch07.ex1`; Ch. 35, `ch35.chinchilla`.
    """
    positive(flops=flops, tokens_per_parameter=tokens_per_parameter)
    return np.sqrt(flops / (6 * tokens_per_parameter))


def compute_optimal_flops(parameters: float, tokens_per_parameter: float = TOKENS_PER_PARAMETER) -> float:
    """6 r Psi^2. Source: Ch. 9, `ch09.c_needed`."""
    positive(parameters=parameters, tokens_per_parameter=tokens_per_parameter)
    return 6 * tokens_per_parameter * parameters * parameters


def tokens_per_parameter(tokens: float, parameters: float) -> float:
    """D / Psi; no count of epochs. Source: Ch. 8, `ch08.ratio_table`, `ch08.llama_table` (D-30)."""
    positive(tokens=tokens, parameters=parameters)
    return tokens / parameters


def oversize(parameters: float, flops: float, ratio: float = TOKENS_PER_PARAMETER) -> float:
    """Psi / sqrt(C / (6 r)): how many times the parameters that its compute trains best. Source: Ch. 8, `ch08.gpt3`,
    `ch08.gopher`."""
    positive(parameters=parameters, ratio=ratio)
    return parameters / compute_optimal_parameters(flops, ratio)


def growth(compute_ratio: float, exponent: float) -> float:
    """c^x: how an optimum that follows C^x grows with c times the compute. Source: Ch. 8, `ch08.kaplan_doubling`."""
    finite(exponent=exponent)
    positive(compute_ratio=compute_ratio)
    return np.power(np.asarray(compute_ratio, dtype=float), exponent)


def parameters_for_loss(loss: float, ratio: float = TOKENS_PER_PARAMETER, fit: Fit | str = "hoffmann") -> float:
    """The model that reaches a loss with r tokens a parameter, by bisection between 1 and 1e18 parameters.

    Source: Ch. 7, `ch07.ex3`; Ch. 8, `ch08.gpt3` (D-31).

    Raises:
      ValueError: a loss that no model in that range reaches.
    """
    positive(ratio=ratio)
    low, high = np.zeros(np.broadcast_shapes(np.shape(loss), np.shape(ratio))), 18 * np.log(10)
    above(additive_loss(np.exp(high), ratio * np.exp(high), fit), loss=loss)
    for _ in range(60):
        middle = (low + high) / 2
        too_small = additive_loss(np.exp(middle), ratio * np.exp(middle), fit) > loss
        low, high = np.where(too_small, middle, low), np.where(too_small, high, middle)
    return np.exp((low + high) / 2)


def break_even_tokens(parameters: float, tokens: float, small_parameters: float, small_tokens: float) -> float:
    """3 (Psi' D' - Psi D) / (Psi - Psi'): tokens served after which a smaller model of equal loss, trained longer, has
    cost less in all.

    Source: Ch. 8, `ch08.breakeven_rule` as corrected (D-33).
    """
    positive(parameters=parameters, tokens=tokens, small_parameters=small_parameters, small_tokens=small_tokens)
    below(parameters, small_parameters=small_parameters)
    return 3 * (small_parameters * small_tokens - parameters * tokens) / (parameters - small_parameters)


def effective_parameters(parameters: float, active_parameters: float) -> float:
    """sqrt(Psi Psi_active): the dense model that a mixture of experts is taken for; illustrative, not fitted. Source:
    Ch. 8, `ch08.moe_law` (D-36)."""
    positive(parameters=parameters, active_parameters=active_parameters)
    return np.sqrt(parameters * active_parameters)


def parameter_term_ratio(parameters: float, other_parameters: float, exponent: float = 0.34) -> float:
    """(Psi / Psi')^-a: the parameters' part of the loss, over that of the model compared with. Source: Ch. 8,
    `ch08.moe_law` (D-36)."""
    finite(exponent=exponent)
    positive(parameters=parameters, other_parameters=other_parameters)
    return (parameters / other_parameters) ** -exponent


def effective_tokens(unique_tokens: float, epochs: float, decay_epochs: float = 15.39) -> float:
    """U (1 + R (1 - e^(-(e - 1) / R))): fresh tokens worth e epochs over U; repetition wears out after about R = 15.39
    epochs.

    Source: Ch. 8, `ch08.repeat` as corrected (D-37; Muennighoff et al. 2023, arXiv:2305.16264).
    """
    positive(unique_tokens=unique_tokens, decay_epochs=decay_epochs)
    at_least(1, epochs=epochs)
    return unique_tokens * (1 - decay_epochs * np.expm1(-(epochs - 1) / decay_epochs))
