"""What XLA's compilers do to floats of 8 bits."""

from __future__ import annotations

from dataclasses import replace

from lab.core.ledger import Transfer
from lab.meshes.platforms import Platform
from lab.settle.behaviours.behaviour import Behaviour, Certainty, Context


def _widened(transfer: Transfer, context: Context) -> tuple[Transfer, ...]:
    if not transfer.dtype.startswith("f8"):
        return (transfer,)
    return (replace(transfer, dtype="f16", payload_bytes=2 * transfer.payload_bytes),)


C8 = Behaviour(
    id="C8",
    platform=Platform.CPU,
    certainty=Certainty.PREDICTABLE,
    when="any collective of an f8 type",
    effect="8-bit floats are widened to f16 in collectives: twice the bytes",
    remedy="judge programs with f8 on a GPU target",
    rewrite=_widened,
)

# After C1, which would widen f16 once more.
BEHAVIOURS = (C8,)
