"""Part V: what a device holds: weights, gradients, master weights, the optimizer's moments, and what comes on top (Ch.
19 and 20).

What a layer saves for its backward pass stands in `activations`.
"""

import numpy as np

from lab.book.checks import Number, count, not_negative, positive, ratio, share


def model_state_bytes(
    parameters: Number,
    ranks: int = 1,
    stage: int = 0,
    weight_bytes: int = 2,
    gradient_bytes: int = 2,
    master_bytes: int = 4,
    moment_bytes: int = 8,
) -> Number:
    """Psi (w + g + o) bytes a device with o = master + moments, each divided by P from the ZeRO stage on that splits
    it: o from 1, g from 2, w from 3.

    `ranks` is P, the ranks over which ZeRO splits; stage 0 is plain data parallelism. The arguments named `_bytes` are
    bytes a parameter: 16 in all for bf16 with float32 master weights and Adam's two moments; float32 weights with Adam
    and gradients that are only temporary are weight_bytes=4, gradient_bytes=0, master_bytes=0. Stage 3 has a working
    set beside it: `sharding.zero3_working_bytes`. Source: Ch. 19, `ch19.model_state`; Ch. 20, `ch20.stage_memory`
    (Rajbhandari et al. 2020).
    """
    count(ranks=ranks)
    positive(parameters=parameters)
    not_negative(
        weight_bytes=weight_bytes, gradient_bytes=gradient_bytes, master_bytes=master_bytes, moment_bytes=moment_bytes
    )
    check_stage(stage)
    split = (3, weight_bytes), (2, gradient_bytes), (1, master_bytes + moment_bytes)
    whole = sum(size * (stage < first) for first, size in split)
    parted = sum(size * (stage >= first) for first, size in split)
    return parameters * whole + ratio(parameters * parted, ranks)


def check_stage(stage: int) -> None:
    """Raises ValueError for what is not a ZeRO stage, 0 to 3."""
    if not np.isin(stage, (0, 1, 2, 3)).all():
        raise ValueError(f"stage={stage}: expected a ZeRO stage, 0 to 3")


def least_devices(parameters: float, bytes_per_parameter: int, device_bytes: float) -> float:
    """ceil(Psi c / M): devices over which all state must be split to fit. Source: Ch. 19, `ch19.optimizers` as
    corrected (4-5:D-66)."""
    positive(parameters=parameters, bytes_per_parameter=bytes_per_parameter, device_bytes=device_bytes)
    return np.ceil(parameters * bytes_per_parameter / device_bytes)


def total_bytes(
    state_bytes: float, activation_bytes: float, workspace_share: float = 0.1, fragmentation_share: float = 0.1
) -> float:
    """(1 + f) (M_state + (1 + w) M_act): state, activations, workspace as a share of these, fragmentation as a share of
    all.

    Source: Ch. 19, `ch19.total`.
    """
    positive(state_bytes=state_bytes)
    not_negative(
        activation_bytes=activation_bytes, workspace_share=workspace_share, fragmentation_share=fragmentation_share
    )
    return (1 + fragmentation_share) * (state_bytes + (1 + workspace_share) * activation_bytes)


def crossover_length(linear: int, square: int, head_dim: int) -> float:
    """c_1 / c_2 h: the length at which c_2 A S^2 of scores equal c_1 S H of all else, H = A h. Source: Ch. 19,
    `ch19.act_layer`."""
    positive(linear=linear, square=square, head_dim=head_dim)
    return linear / square * head_dim


def weight_share(
    parameters: float, state_bytes_per_parameter: int = 16, weight_bytes: int = 2, activation_bytes: float = 0
) -> float:
    """2 Psi / (16 Psi + M_act): bytes that the forward pass works with over all. Source: Ch. 19,
    `ch19.efficiency_ratio`."""
    positive(parameters=parameters, state_bytes_per_parameter=state_bytes_per_parameter, weight_bytes=weight_bytes)
    not_negative(activation_bytes=activation_bytes)
    return weight_bytes * parameters / (state_bytes_per_parameter * parameters + activation_bytes)


def largest_batch(free_bytes: float, sequence_bytes: float) -> float:
    """floor(free / bytes a sequence). Source: Ch. 19, `ch19.ex_batch_limit`."""
    positive(free_bytes=free_bytes, sequence_bytes=sequence_bytes)
    return free_bytes // sequence_bytes


def fragmentation(used_share: float) -> float:
    """1 - u of what is reserved. Source: Ch. 19, `ch19.fragmentation`."""
    share(used_share=used_share)
    return 1 - used_share
