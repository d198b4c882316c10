"""Part I: what training costs (Ch. 5). Prices in USD; `usd_per_h` is of one device."""

import numpy as np

from lab.book.checks import at_least, count, not_negative, positive, share
from lab.book.reliability import restart_from_zero_s
from lab.book.scale import training_s

SECONDS_AN_H = 3600


def device_h(parameters: float, tokens: float, flops_per_s: float, mfu: float) -> float:
    """6 Psi D / (F eta) / 3600: the number of devices matters through the MFU alone. Source: Ch. 5, `ch05.opt_budget`,
    `ch05.ex1`."""
    return training_s(parameters, tokens, 1, flops_per_s, mfu) / SECONDS_AN_H


def training_usd(devices: int, hours: float, usd_per_h: float, other_usd: float = 0) -> float:
    """P T R + network, storage and operation. Source: Ch. 5, `ch05.cost`."""
    count(devices=devices)
    positive(hours=hours, usd_per_h=usd_per_h)
    not_negative(other_usd=other_usd)
    return devices * hours * usd_per_h + other_usd


def usd_per_token(parameters: float, flops_per_s: float, mfu: float, usd_per_h: float) -> float:
    """6 Psi / (F eta) R / 3600; a third of it for a forward pass alone. Source: Ch. 5, `ch05.cost_per_token`; Ch. 8,
    `ch08.ex3`."""
    positive(usd_per_h=usd_per_h)
    return device_h(parameters, 1, flops_per_s, mfu) * usd_per_h


def break_even_h(device_usd: float, usd_per_h: float, used_share: float = 1) -> float:
    """price / (R u): hours after which buying has cost what renting for the hours used would have. Source: Ch. 5,
    `ch05.breakeven`."""
    positive(device_usd=device_usd, usd_per_h=usd_per_h, used_share=used_share)
    share(used_share=used_share)
    return device_usd / (usd_per_h * used_share)


def contended_bytes_per_s(bytes_per_s: float, contention: float) -> float:
    """beta / sigma, sigma at least 1. Source: Ch. 5, `ch05.contention`."""
    positive(bytes_per_s=bytes_per_s)
    at_least(1, contention=contention)
    return bytes_per_s / contention


def spot_usd_per_h(usd_per_h: float, preemptions_per_h: float, interval_h: float, save_h: float) -> float:
    """R (e^(p (c + s)) - 1) / (p c): the price of an hour of work kept, saved for s hours after every c hours of work;
    p = 0 leaves R (c + s) / c.

    A preemption is a Poisson event that throws away what was not saved. Source: Ch. 5, `ch05.spot_effective`,
    `ch05.ex3` as corrected (D-21).
    """
    positive(usd_per_h=usd_per_h, interval_h=interval_h)
    not_negative(preemptions_per_h=preemptions_per_h, save_h=save_h)
    attempt_h = interval_h + save_h
    # Without preemptions the formula is 0 / 0; so rare a preemption changes no digit.
    between_h = 1 / np.maximum(preemptions_per_h, 1e-12 / attempt_h)
    return usd_per_h * restart_from_zero_s(attempt_h, between_h) / interval_h


def first_order_spot_usd_per_h(usd_per_h: float, preemptions_per_h: float, lost_h: float) -> float:
    """R / (1 - p f), f hours lost a preemption: half an interval and a restart. For p f far below 1 alone.

    Source: Ch. 5, `ch05.spot_effective` with f in hours (D-21).
    """
    positive(usd_per_h=usd_per_h, kept=1 - preemptions_per_h * lost_h)
    not_negative(preemptions_per_h=preemptions_per_h, lost_h=lost_h)
    return usd_per_h / (1 - preemptions_per_h * lost_h)


def first_order_break_even_per_h(usd_per_h: float, spot_usd_per_h: float, lost_h: float) -> float:
    """(1 - R_spot / R) / f preemptions an hour, at which `first_order_spot_usd_per_h` is R. Source: Ch. 5, `ch05.ex3`
    (D-21)."""
    positive(usd_per_h=usd_per_h, spot_usd_per_h=spot_usd_per_h, lost_h=lost_h)
    return (1 - spot_usd_per_h / usd_per_h) / lost_h
