"""What XLA's compilers do to integers of 4 bits."""

from __future__ import annotations

from dataclasses import replace

from lab.core.ledger import Transfer
from lab.meshes.platforms import Platform
from lab.settle.behaviours.behaviour import Behaviour, Certainty, Context


def _widened(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    if transfer.dtype != "s4":
        return (transfer,)
    return (replace(transfer, dtype="s8", payload_bytes=2 * transfer.payload_bytes),)


C9 = Behaviour(
    id="C9",
    platform=Platform.CPU,
    certainty=Certainty.PREDICTABLE,
    when="any collective of s4",
    effect="4-bit integers are widened to s8 in collectives: twice the bytes",
    remedy="judge programs with s4 on a GPU target, which packs two into a byte",
    rewrite=_widened,
)

BEHAVIOURS = (C9,)
