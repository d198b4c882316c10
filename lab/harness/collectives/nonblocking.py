"""Collectives that are begun without waiting for them: do they give sums of an earlier step? (Ch. 11, `ch11.bsp_async`,
D-55)"""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh

from lab.collectives import all_reduce
from lab.core.ledger import Ledger, Overlap
from lab.harness.claim import Claim, decided
from lab.harness.collectives.program import on_ranks

STEPS, ELEMENTS = 8, 1024


def claim(mesh: Mesh, measured: Ledger) -> Claim:
    """Begins an all_reduce for every step, and then waits for the first."""
    entered_SPN = np.random.default_rng(0).integers(-99, 100, (STEPS, mesh.size, ELEMENTS), np.int32)
    reduced = on_ranks(lambda x_1N: all_reduce(x_1N[0], mesh.axis_names, "lax")[None], mesh)
    begun = [reduced(x_PN) for x_PN in entered_SPN]
    return judged(entered_SPN, np.stack(jax.device_get(begun)), measured)


def judged(entered_SPN: np.ndarray, given_SPN: np.ndarray, measured: Ledger) -> Claim:
    """Whether any step was given the sum of the one before."""
    sums_SN = entered_SPN.sum(1)
    current = sum(bool((given == own).all()) for given, own in zip(given_SPN, sums_SN, strict=True))
    stale = sum(bool((given == before).all()) for given, before in zip(given_SPN[1:], sums_SN[:-1], strict=True))
    split = sum(transfer.overlap == Overlap.ASYNC for transfer in measured.transfers)
    return decided(
        "ch11.bsp_async",
        stale > 0,
        f"of {len(given_SPN)} started before the first was awaited, {current} returned the sum of their own step and "
        f"{stale} that of the previous one; {split} of the {len(measured.transfers)} compiled collectives are "
        "asynchronous (start and done)",
        statement="an all_reduce that does not block gives stale values",
        disputed="D-55",
    )
