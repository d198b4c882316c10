"""What a collective takes on the links of a cluster or a slice."""

from __future__ import annotations

from dataclasses import dataclass

from lab.core.ledger import Transfer
from lab.measure.rates.curves import Curve
from lab.measure.rates.table import Basis, ChipRates, LinkRate, Priced


@dataclass(frozen=True)
class Links:
    """The links of one target."""

    rates: ChipRates

    def priced(self, transfer: Transfer) -> Priced:
        """By the rate of its link, kind and number of devices, or of the next number that was measured."""
        name = f"{transfer.kind} by {transfer.link or 'an unknown link'}"
        rate = self._rate(transfer)
        if rate is None or transfer.wire_bytes is None:
            return Priced(0.0, Basis.NOTHING, name)
        seconds = Curve(rate.points).seconds(float(transfer.wire_bytes))
        return Priced(seconds, self.rates.sources[rate.source].basis, name, rate.spread)

    def _rate(self, transfer: Transfer) -> LinkRate | None:
        found = [one for one in self.rates.links if (one.link, one.kind) == (transfer.link, transfer.kind)]
        size = transfer.group_size or 1
        return min(found, key=lambda one: abs(one.devices - size), default=None)
