"""A bench as text: constants and bandwidth of every chain, then the time of a call by size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from lab.core.known import known
from lab.core.units import scaled
from lab.measure.bench.chains import Chain
from lab.measure.bench.record import Bench
from lab.measure.bench.sizes import size_text
from lab.report.fitted import Column
from lab.report.tables import columns_text

T = TypeVar("T")


def bench_text(bench: Bench) -> str:
    on_cpu = ["These are CPU devices: their times say nothing about links."] if bench.machine.platform == "cpu" else []
    return "\n\n".join([*on_cpu, _headline(bench), *map(columns_text, _columns(bench)), "\n".join(_facts(bench))])


def _columns(bench: Bench) -> list[list[Column]]:
    tables = [_constants(bench), _times(bench)] if bench.by_chain else []
    compared = [_beside_lax(bench)] if any(map(bench.beside_lax, _others(bench))) else []
    compiled = [_work(bench)] if any(entries[-1].work for entries in bench.by_chain.values()) else []
    return tables + compared + compiled


def _headline(bench: Bench) -> str:
    machine = bench.machine
    under = "".join(
        f", {name} {version}" for name, version in (("driver", machine.driver), ("NCCL", machine.nccl)) if version
    )
    over = "" if bench.over == bench.axes else f", over {', '.join(bench.over.names)}"
    return f"{bench.axes.size} x {machine.card}, mesh {bench.axes}{over}, jax {machine.jax}{under}, {bench.date}"


def _constants(bench: Bench) -> list[Column]:
    """A row a chain: alpha and beta with their standard errors, the farthest point, what two lines gain, and busbw
    beside the link."""
    fits = [bench.fit(chain) for chain in bench.by_chain]
    best = [max(map(bench.bus_bytes_per_s, entries)) for entries in bench.by_chain.values()]
    columns = [
        Column("primitive", tuple(chain.primitive for chain in bench.by_chain)),
        Column("algorithm", tuple(chain.algorithm for chain in bench.by_chain)),
        _numbers("alpha us", fits, lambda fit: f"{fit.line.alpha_s * 1e6:.1f}"),
        _numbers("+-", fits, lambda fit: f"{fit.line.alpha_error_s * 1e6:.1f}"),
        _numbers("beta GB/s", fits, lambda fit: f"{fit.line.bytes_per_s / 1e9:,.1f}"),
        _numbers("+-", fits, lambda fit: f"{fit.line.bytes_per_s_error / 1e9:,.1f}"),
        _numbers("line off by", fits, lambda fit: f"{fit.median_error:.0%}"),
        _numbers("at worst", fits, lambda fit: f"{fit.worst_error:+.0%}"),
        _numbers("at n", fits, lambda fit: size_text(fit.worst_at_bytes)),
        _numbers("two lines", [fit.two_median_error if fit else None for fit in fits], lambda error: f"{error:.0%}"),
        _numbers("from n", [fit.two if fit else None for fit in fits], lambda two: size_text(two.from_bytes)),
        _numbers("best busbw GB/s", best, lambda rate: f"{rate / 1e9:,.1f}"),
    ]
    if link := bench.link:
        columns.append(_numbers("of the link", best, lambda rate: f"{rate / link.value:.0%}"))
    return columns


def _work(bench: Bench) -> list[Column]:
    """What a call of the largest n does beside the wire, where the text tells."""
    entries = [entries[-1] for entries in bench.by_chain.values() if entries[-1].work]
    return [
        Column("as compiled", tuple(entry.chain.primitive for entry in entries)),
        Column("algorithm", tuple(entry.chain.algorithm for entry in entries)),
        _numbers("n", entries, lambda entry: size_text(entry.point.payload_bytes)),
        _numbers("kernels", entries, lambda entry: f"{known(entry.work).kernels:.1f}"),
        _numbers(
            "B read and written / n",
            entries,
            lambda entry: f"{known(entry.work).kernel_bytes / entry.point.payload_bytes:.2f}",
        ),
        _numbers("messages", entries, lambda entry: f"{entry.messages:.1f}"),
        _numbers("without a kernel beside", entries, lambda entry: f"{known(entry.work).messages_alone:.1f}"),
    ]


def _beside_lax(bench: Bench) -> list[Column]:
    """How many times as fast as JAX's own collective, by size."""
    others = _others(bench)
    ratios = [bench.beside_lax(chain) for chain in others]
    return [
        Column("lax / time", tuple(chain.primitive for chain in others)),
        Column("algorithm", tuple(chain.algorithm for chain in others)),
        *(
            _numbers(size_text(size), [of.get(size) for of in ratios], lambda ratio: f"{ratio:.2f}")
            for size in _sizes(bench)
        ),
    ]


def _others(bench: Bench) -> list[Chain]:
    return [chain for chain in bench.by_chain if set(chain.algorithms) != {"lax"}]


def _sizes(bench: Bench) -> list[int]:
    return sorted({entry.point.payload_bytes for entries in bench.by_chain.values() for entry in entries})


def _times(bench: Bench) -> list[Column]:
    """Microseconds a call; a star where the primitive has no faster algorithm."""
    return [
        Column("us a call", tuple(chain.primitive for chain in bench.by_chain)),
        Column("algorithm", tuple(chain.algorithm for chain in bench.by_chain)),
        *(
            Column(size_text(size), tuple(_time(bench, chain, size) for chain in bench.by_chain), is_number=True)
            for size in _sizes(bench)
        ),
    ]


def _time(bench: Bench, chain: Chain, size: int) -> str:
    def seconds(other: Chain) -> float | None:
        return next((entry.point.seconds for entry in bench.by_chain[other] if entry.point.payload_bytes == size), None)

    if (ours := seconds(chain)) is None:
        return ""
    peers = [
        time
        for other in bench.by_chain
        if other.primitives == chain.primitives and (time := seconds(other)) is not None
    ]
    return f"{'*' if len(peers) > 1 and ours == min(peers) else ''}{ours * 1e6:,.1f}"


def _facts(bench: Bench) -> list[str]:
    return [fact for fact in (_link(bench), _combined(bench), *_missing(bench), *_unfitted(bench)) if fact] + [
        "alpha, beta: t = steps alpha + bytes / beta, steps and bytes as the algorithm states them; least squares of "
        "relative errors; "
        "'line off by' and 'two lines' are medians",
        f"method: {bench.method}",
        *([] if bench.estimated else [f"launch of an empty program: {bench.launch_s * 1e6:.0f} us"]),
    ]


def _link(bench: Bench) -> str:
    return (
        f"link: {bench.link.name}, {scaled(int(bench.link.value), 'B/s')} one way ({bench.link.source})"
        if bench.link
        else ""
    )


def _combined(bench: Bench) -> str:
    chains = [
        str(chain) for chain, entries in bench.by_chain.items() if any(e.messages < e.messages_stated for e in entries)
    ]
    return f"XLA put several messages into one in: {', '.join(chains)}" if chains else ""


def _missing(bench: Bench) -> list[str]:
    """A line a chain, with the reason of its first size."""
    firsts = {str(entry.chain): entry for entry in reversed(bench.left_out)}
    sizes = {
        name: [size_text(entry.payload_bytes) for entry in bench.left_out if str(entry.chain) == name]
        for name in firsts
    }
    return [f"left out: {name} at {', '.join(sizes[name])}: {entry.why}" for name, entry in firsts.items()]


def _unfitted(bench: Bench) -> list[str]:
    """A line a reason."""
    reasons = dict.fromkeys(bench.without_fit.values())
    of = {reason: [str(chain) for chain, why in bench.without_fit.items() if why == reason] for reason in reasons}
    return [f"no alpha and beta: {reason}: {', '.join(chains)}" for reason, chains in of.items()]


def _numbers(heading: str, values: Sequence[T | None], text: Callable[[T], str]) -> Column:
    return Column(heading, tuple("" if value is None else text(value) for value in values), is_number=True)
