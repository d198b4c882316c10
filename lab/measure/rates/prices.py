"""What a kernel, a copy and a transfer take on a chip, each with what the time rests on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lab.core.ledger import Transfer
from lab.hlo.kernels import Copy, Does, Kernel
from lab.measure.rates.links import Links
from lab.measure.rates.table import Basis, ChipRates, Priced, Work
from lab.meshes.hardware import chip
from lab.meshes.platforms import Platform

CYCLES_SPREAD = 0.1
"""Assumed: nobody says how far XLA's model is off. Of passes over memory it is twice as slow as the memory, so these
go by their bytes."""


@dataclass(frozen=True)
class Prices:
    """Of one chip.

    Attributes:
      links: of the mesh that the program runs on.
    """

    rates: ChipRates
    links: Links

    @property
    def between_kernels(self) -> bool:
        return chip(self.rates.chip).platform == Platform.GPU

    def kernel(self, kernel: Kernel) -> Priced:
        """The slower of what it computes and of its traffic; what no rate covers takes at least its traffic, and
        its FLOPs at the data sheet's full rate, and rests on nothing."""
        passes = self._pass(kernel)
        is_computing = kernel.flops or kernel.does is Does.ARITHMETIC
        if is_computing and kernel.cycles is not None and self.rates.clock_hz:
            return Priced(kernel.cycles / self.rates.clock_hz, Basis.ESTIMATED, "XLA's cycles", CYCLES_SPREAD)
        if kernel.does is Does.PASS:
            return passes
        work = self._work(kernel)
        if work is None:
            return Priced(max(passes.seconds, kernel.flops / self._peak), Basis.NOTHING, _name(kernel))
        return max(work, passes, key=lambda one: one.seconds)

    def copy(self, copy: Copy) -> Priced:
        if not copy.is_host:
            return self._moved(copy.bytes)
        rate = self.rates.host_copy
        if rate is None:
            return Priced(0.0, Basis.NOTHING, "copies to the host")
        return Priced(rate.rate.seconds(copy.bytes), self._basis(rate.source), "copies to the host", rate.spread)

    def transfer(self, transfer: Transfer) -> Priced:
        return self.links.priced(transfer)

    def slowed(self, kernel: Kernel) -> float:
        """Seconds that it loses for a second of communication beside it."""
        return self.rates.slowed_products if kernel.flops else self.rates.slowed_memory

    def _pass(self, kernel: Kernel) -> Priced:
        """The slower of memory, for its bytes, and of multiprocessors, for the elements that it writes."""
        moved, rate = self._moved(kernel.bytes), self.rates.elements
        if rate is None or not kernel.elements:
            return moved
        return max(moved, self._priced(rate, kernel.elements, moved.by), key=lambda one: one.seconds)

    def _moved(self, size: int) -> Priced:
        memory = self.rates.memory
        return Priced(memory.curve.seconds(size), self._basis(memory.source), "passes over memory", memory.spread)

    def _work(self, kernel: Kernel) -> Priced | None:
        if kernel.does is Does.PRODUCT:
            return self._product(kernel)
        rate = self._by_kind.get((kernel.does, kernel.variant)) or self._by_kind.get((kernel.does, ""))
        if rate is None:
            return None
        return self._priced(rate, kernel.flops if rate.of == "flops" else kernel.bytes, _name(kernel))

    def _priced(self, rate: Work, amount: int, name: str) -> Priced:
        return Priced(rate.rate.seconds(amount), self._basis(rate.source), name, rate.spread)

    def _product(self, kernel: Kernel) -> Priced | None:
        rate = self.rates.products.get(kernel.product.dtype) if kernel.product else None
        if rate is None or kernel.product is None:
            return None
        seconds = rate.tiled.seconds(kernel.product) * kernel.flops / kernel.product.flops
        return Priced(seconds, self._basis(rate.source), _name(kernel), rate.spread)

    def _basis(self, source: str) -> Basis:
        return self.rates.sources[source].basis

    @cached_property
    def _peak(self) -> float:
        known = chip(self.rates.chip)
        return max(figure.value for figure in known.flops_per_s.values()) / known.devices_per_chip

    @cached_property
    def _by_kind(self) -> dict[tuple[Does, str], Work]:
        return {(work.does, work.variant): work for work in self.rates.work}


def _name(kernel: Kernel) -> str:
    if kernel.does is Does.UNKNOWN:
        return f"calls of {kernel.target}" if kernel.target else f"kernels such as {kernel.name}"
    if kernel.does is Does.PRODUCT:
        return f"{kernel.product.dtype} products" if kernel.product else "products"
    return f"{kernel.does} ({kernel.variant})" if kernel.variant else str(kernel.does)
