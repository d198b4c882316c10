"""The rates of a chip as text."""

from __future__ import annotations

from lab.core.units import scaled
from lab.measure.bench.card import CardRates
from lab.measure.rates.table import Work
from lab.report.fitted import Column
from lab.report.tables import columns_text


def rates_text(found: CardRates) -> str:
    rates, (source,) = found.rates, found.rates.sources.values()
    size, seconds = rates.memory.points[-1]
    rows = [("passes over memory", rates.memory.points[0][1], scaled(size / seconds, "B/s"), rates.memory.spread)]
    rows += [
        (f"{dtype} products", one.alpha_s, scaled(one.per_s, "FLOP/s"), one.spread)
        for dtype, one in rates.products.items()
    ]
    rows += [(_name(one), one.alpha_s, _rate(one), one.spread) for one in rates.work]
    if rates.host_copy:
        rows.append(("copies to the host", rates.host_copy.alpha_s, _rate(rates.host_copy), rates.host_copy.spread))
    columns = [
        Column("kernels", tuple(name for name, *_ in rows)),
        Column("launch us", tuple(f"{alpha_s * 1e6:.1f}" for _, alpha_s, *_ in rows)),
        Column("rate", tuple(rate for _, _, rate, _ in rows)),
        Column("nine of ten within", tuple(f"{spread:.0%}" for *_, spread in rows)),
    ]
    return "\n\n".join([source.text, columns_text(columns), *(f"left out: {why}" for why in found.left_out)])


def _name(work: Work) -> str:
    return f"{work.does} ({work.variant})" if work.variant else str(work.does)


def _rate(work: Work) -> str:
    return scaled(work.per_s, "FLOP/s" if work.of == "flops" else "B/s")
