"""`lab bench`."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path

import click

from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.cli.progress import watched
from lab.core.codec import to_text
from lab.core.files import write_whole
from lab.measure.bench.sizes import parse_sizes, size_text
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target

RATES = "rates"
SIZES, CPU_SIZES = "1KiB..1GiB", "1KiB..1MiB"


@click.command()
@click.argument("primitives", metavar="[PRIMITIVE]...", nargs=-1, type=options.PRIMITIVE)
@click.option(
    "--algorithm",
    "algorithms",
    metavar="NAME",
    multiple=True,
    type=options.ALGORITHM,
    help="An algorithm to time; by default all that the mesh allows.",
)
@options.mesh
@click.option(
    "--over",
    metavar="AXIS,...",
    help="The axes that every collective spans, by default all; groups along the other axes run at the same time.",
)
@options.target(
    "attached devices, fake CPUs to try it (cpu:8), or GPUs to estimate for (gpu:h200:1x8).",
    default="attached",
    show_default=True,
)
@click.option(
    "--links",
    type=Path,
    metavar="FILE",
    help="For an estimate: a record of lab bench --save on the same chip, with times of JAX's own collectives.",
)
@click.option(
    "--sizes",
    metavar="FROM..TO",
    type=options.SIZES,
    help=f"Sizes of the buffer, in steps of 4; by default {SIZES}, on fake CPUs {CPU_SIZES}.",
)
@options.save
@options.as_json
def bench(
    primitives: tuple[str, ...],
    algorithms: tuple[str, ...],
    mesh: Axes | None,
    over: str | None,
    target: Target,
    links: Path | None,
    sizes: tuple[int, ...] | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Time collectives on attached devices, or estimate them.

    Fits a latency and a bandwidth to each algorithm. PRIMITIVE is one of lab.collectives, such as all_reduce; by
    default all. The mesh is by default one axis of all devices. The JSON of measured times is a link profile that
    lab.meshes.hardware.measured_link reads.

    PRIMITIVE may be rates, alone: what the first attached GPU takes for products, passes over memory, attention,
    convolutions, sorts and more, and what collectives take between all of them, in three minutes. The JSON is in the
    form of the rates that ship with the lab.
    """
    if RATES in primitives:
        if any([len(primitives) > 1, algorithms, mesh, over, links, sizes, str(target) != "attached"]):
            raise UsageError("lab bench rates measures what is attached: found more, expected only --save or --json")
        _rates(target, save, as_json)
        return
    from lab.measure.bench import run as benches
    from lab.report.bench import bench_text

    command = shlex.join(["lab", *sys.argv[1:]])
    sizes = sizes or parse_sizes(CPU_SIZES if target.platform == Platform.CPU else SIZES)
    spanned = tuple(over.split(",")) if over else ()
    span = f"{size_text(sizes[0])} to {size_text(sizes[-1])}"
    watch = partial(watched, describe=lambda chain: f"{chain}, {span}")
    found = benches.bench(target, mesh, primitives, algorithms, sizes, command, watch, spanned, links)
    if save:
        write_whole(save, to_text(found) + "\n")
    if as_json:
        print_json(found)
    else:
        print_text(bench_text(found))


def _rates(target: Target, save: Path | None, as_json: bool) -> None:
    from lab.measure.bench.card import card_rates
    from lab.report.rates import rates_text

    watch = partial(watched, describe=lambda family: family[0])
    found = card_rates(target, shlex.join(["lab", *sys.argv[1:]]), watch)
    if save:
        write_whole(save, to_text(found.rates) + "\n")
    if as_json:
        print_json(found.rates)
    else:
        print_text(rates_text(found))
