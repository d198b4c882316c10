"""Part I: how long training takes, and how much of the devices it uses (Ch. 1, 5 and 6). `mfu` is model FLOPs
utilisation."""

from lab.book.checks import count, finite, positive, share
from lab.book.data_parallel import compute_s, training_flops


def training_s(parameters: float, tokens: float, devices: int, flops_per_s: float, mfu: float = 1) -> float:
    """6 Psi D / (F eta P); attention's products of activations come on top. Source: Ch. 1, `ch01.train_time`; Ch. 6,
    `ch06.step_time`."""
    count(devices=devices)
    positive(mfu=mfu)
    share(mfu=mfu)
    return compute_s(parameters, tokens, flops_per_s) / (devices * mfu)


def tokens_per_s(parameters: float, devices: int, flops_per_s: float, mfu: float = 1) -> float:
    """P F eta / (6 Psi). Source: Ch. 3a, `ch03a.tokens_per_s`; Ch. 6, `ch06.step_time`."""
    finite(devices=devices)
    return 1 / training_s(parameters, 1, devices, flops_per_s, mfu)


def achieved_mfu(parameters: float, tokens: float, seconds: float, devices: int, flops_per_s: float) -> float:
    """6 Psi D / (T P F); Psi are the parameters that a token visits. Above 1 no machine can be so fast. Source: Ch. 5,
    `ch05.mfu`."""
    count(devices=devices)
    positive(seconds=seconds)
    return compute_s(parameters, tokens, flops_per_s) / (seconds * devices)


def devices_in_time(parameters: float, tokens: float, seconds: float, flops_per_s: float, mfu: float) -> float:
    """6 Psi D / (T F eta): the least devices that meet a deadline, to be rounded up. Source: Ch. 5,
    `ch05.opt_deadline`; Ch. 6, `ch06.ex3`."""
    positive(seconds=seconds)
    return training_s(parameters, tokens, 1, flops_per_s, mfu) / seconds


def inference_flops(parameters: float, tokens: float) -> float:
    """2 Psi D, a third of training's: the forward pass alone. Source: Ch. 8, `ch08.trap`."""
    return training_flops(parameters, tokens) / 3


def wasted_share(mfu: float, achievable_mfu: float) -> float:
    """1 - eta / eta_max: of time and money, against what could be reached. Source: Ch. 1, `ch01.mfu_waste`; Ch. 5,
    `ch05.ex2` (D-22)."""
    share(mfu=mfu, achievable_mfu=achievable_mfu)
    positive(mfu=mfu, achievable_mfu=achievable_mfu)
    return 1 - mfu / achievable_mfu


def extra_work(mfu: float, achievable_mfu: float) -> float:
    """eta_max / eta - 1: device hours on top of what could be reached. Source: Ch. 1, `ch01.mfu_waste`."""
    return 1 / (1 - wasted_share(mfu, achievable_mfu)) - 1
