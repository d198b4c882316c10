"""Part II: loss against parameters, tokens and compute (Ch. 7). Losses in nats a token.

L = A / Psi^a + B / D^b + E for Psi parameters and D tokens. `fit` is a `Fit`, or the name of one in `FITS`; the fits
disagree on what is optimal.
"""

from dataclasses import dataclass

import numpy as np

from lab.book.checks import above, positive, positive_or_infinite


@dataclass(frozen=True)
class Fit:
    """A, a, B, b and E of the law above."""

    parameter_scale: float
    parameter_exponent: float
    token_scale: float
    token_exponent: float
    irreducible: float

    @property
    def balance(self) -> float:
        """(A a / (B b))^(1 / (a + b)): optimal parameters over what they would be if both terms were alike."""
        elasticity = self.parameter_scale * self.parameter_exponent / (self.token_scale * self.token_exponent)
        return elasticity ** (1 / (self.parameter_exponent + self.token_exponent))

    @property
    def parameter_share(self) -> float:
        """b / (a + b): the exponent of compute in optimal parameters; what remains is that in optimal tokens."""
        return self.token_exponent / (self.parameter_exponent + self.token_exponent)


FITS = {"hoffmann": Fit(406.4, 0.34, 410.7, 0.28, 1.69), "besiroglu": Fit(482.0, 0.3478, 2085.4, 0.3658, 1.817)}
"""Hoffmann et al. 2022 (arXiv:2203.15556, Approach 3) and its re-fit by Besiroglu et al. 2024 (arXiv:2404.10102)."""

KAPLAN_PARAMETERS, KAPLAN_PARAMETER_EXPONENT = 8.8e13, 0.076
KAPLAN_TOKENS, KAPLAN_TOKEN_EXPONENT = 5.4e13, 0.095
"""Kaplan et al. 2020 (arXiv:2001.08361), equations 1.1 and 1.2; parameters without embeddings."""


def kaplan_parameter_loss(parameters: float) -> float:
    """(8.8e13 / Psi)^0.076, data without end. Source: Ch. 7, `ch07.kaplan`."""
    positive_or_infinite(parameters=parameters)
    return (KAPLAN_PARAMETERS / parameters) ** KAPLAN_PARAMETER_EXPONENT


def kaplan_token_loss(tokens: float) -> float:
    """(5.4e13 / D)^0.095, a model as large as it may be. Source: Ch. 7, `ch07.kaplan`."""
    positive_or_infinite(tokens=tokens)
    return (KAPLAN_TOKENS / tokens) ** KAPLAN_TOKEN_EXPONENT


def kaplan_loss(parameters: float, tokens: float) -> float:
    """((Psi_c / Psi)^(a_P / a_D) + D_c / D)^a_D, either of the two above in its limit. Source: Ch. 7, `ch07.combined`,
    Kaplan's equation 1.5."""
    parts = kaplan_parameter_loss(parameters) ** (1 / KAPLAN_TOKEN_EXPONENT) + kaplan_token_loss(tokens) ** (
        1 / KAPLAN_TOKEN_EXPONENT
    )
    return parts**KAPLAN_TOKEN_EXPONENT


def additive_loss(parameters: float, tokens: float, fit: Fit | str = "hoffmann") -> float:
    """A / Psi^a + B / D^b + E. Source: Ch. 7, `ch07.additive`; Ch. 3a, `ch03a.quality` with q D for D."""
    positive_or_infinite(parameters=parameters, tokens=tokens)
    law = _law(fit)
    return (
        law.parameter_scale / parameters**law.parameter_exponent
        + law.token_scale / tokens**law.token_exponent
        + law.irreducible
    )


def optimal_parameters(flops: float, fit: Fit | str = "hoffmann") -> float:
    """(A a / (B b))^(1 / (a + b)) (C / 6)^(b / (a + b)): least loss where 6 Psi D = C. Source: Ch. 7,
    `ch07.optimum`."""
    positive(flops=flops)
    law = _law(fit)
    return law.balance * (flops / 6) ** law.parameter_share


def optimal_tokens(flops: float, fit: Fit | str = "hoffmann") -> float:
    """C / 6 / Psi*. Source: Ch. 7, `ch07.optimum`."""
    return flops / 6 / optimal_parameters(flops, fit)


def optimal_ratio(flops: float, fit: Fit | str = "hoffmann") -> float:
    """D* / Psi* = (B b / (A a))^(2 / (a + b)) (C / 6)^((a - b) / (a + b)) tokens a parameter.

    Source: Ch. 7, `ch07.ratio`; Ch. 8, `ch08.ratio_derivation` as corrected (D-07).
    """
    return optimal_tokens(flops, fit) / optimal_parameters(flops, fit)


def parameters_gain(parameters: float, more_parameters: float, fit: Fit | str = "hoffmann") -> float:
    """A (Psi^-a - Psi'^-a) nats less with more parameters. Source: Ch. 7, `ch07.doubling`."""
    return _gain(
        _law(fit).parameter_scale, _law(fit).parameter_exponent, parameters=parameters, more_parameters=more_parameters
    )


def tokens_gain(tokens: float, more_tokens: float, fit: Fit | str = "hoffmann") -> float:
    """B (D^-b - D'^-b) nats less with more tokens. Source: Ch. 7, `ch07.ex3`, `ch07.doubling`."""
    return _gain(_law(fit).token_scale, _law(fit).token_exponent, tokens=tokens, more_tokens=more_tokens)


def least_parameters(loss: float, fit: Fit | str = "hoffmann") -> float:
    """(A / (L - E))^(1 / a): with data without end; fewer parameters never get there. Source: Ch. 7, `ch07.iso_loss`;
    Ch. 9, `ch09.psi_c`."""
    law = _law(fit)
    return (law.parameter_scale / _reducible(loss, law)) ** (1 / law.parameter_exponent)


def least_tokens(loss: float, fit: Fit | str = "hoffmann") -> float:
    """(B / (L - E))^(1 / b): with a model as large as it may be. Source: Ch. 7, `ch07.iso_loss`."""
    law = _law(fit)
    return (law.token_scale / _reducible(loss, law)) ** (1 / law.token_exponent)


def tokens_for_loss(parameters: float, loss: float, fit: Fit | str = "hoffmann") -> float:
    """(B / (L - E - A / Psi^a))^(1 / b): infinite where so small a model never reaches the loss. Source: Ch. 7,
    `ch07.iso_loss`; Ch. 8, `ch08.trap`."""
    positive(parameters=parameters)
    law = _law(fit)
    left = _reducible(loss, law) - law.parameter_scale / parameters**law.parameter_exponent
    with np.errstate(divide="ignore"):
        return np.divide(law.token_scale, np.maximum(0, left)) ** (1 / law.token_exponent)


def _law(fit: Fit | str) -> Fit:
    if isinstance(fit, Fit):
        return fit
    if fit not in FITS:
        raise ValueError(f"fit={fit!r}: expected one of {', '.join(FITS)}")
    return FITS[fit]


def _gain(scale: float, exponent: float, **sizes: float) -> float:
    positive(**sizes)
    before, after = sizes.values()
    return scale * (before**-exponent - after**-exponent)


def _reducible(loss: float, law: Fit) -> float:
    above(law.irreducible, loss=loss)
    return loss - law.irreducible
