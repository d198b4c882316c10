"""Part V: what a device holds between steps: weights, gradients, master weights and the optimizer's moments (Ch. 19 and 20)."""

from typing import Any

import numpy as np

from lab.book.checks import positive, ratio


def model_state_bytes(
    parameters: int, ranks: int = 1, stage: int = 0, weight_bytes: int = 2, gradient_bytes: int = 2, master_bytes: int = 4, moment_bytes: int = 8
) -> Any:
    """Psi (w + g + o) bytes a device with o = master + moments, each divided by P from the ZeRO stage on that splits it: o from 1, g from 2, w from 3.

    `ranks` is P, the ranks over which ZeRO splits; stage 0 is plain data parallelism. The arguments named `_bytes` are bytes a parameter:
    16 in all for bf16 with float32 master weights and Adam's two moments; float32 weights with Adam and gradients that are only temporary
    are weight_bytes=4, gradient_bytes=0, master_bytes=0.
    Source: Ch. 19, `ch19.model_state`; Ch. 20, `ch20.stage_memory`.
    """
    positive(parameters=parameters, ranks=ranks)
    if not np.isin(stage, (0, 1, 2, 3)).all():
        raise ValueError(f"stage={stage}: expected a ZeRO stage, 0 to 3")
    split = (3, weight_bytes), (2, gradient_bytes), (1, master_bytes + moment_bytes)
    whole = sum(size * (stage < first) for first, size in split)
    parted = sum(size * (stage >= first) for first, size in split)
    return parameters * whole + ratio(parameters * parted, ranks)
