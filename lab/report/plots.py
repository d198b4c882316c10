"""Pictures of formulas and of programs, as matplotlib figures: each a few parameters and `figure()`. A notebook shows
them after `%matplotlib inline`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lab.book.checks import positive
from lab.book.collectives import (
    doubling_all_reduce_s,
    halving_doubling_all_reduce_s,
    ring_all_reduce_s,
    tree_all_reduce_s,
)
from lab.book.data_parallel import training_flops
from lab.book.goodput import TimeShares, best_interval_s, goodput, straggling, time_shares
from lab.book.loss import FITS, additive_loss, optimal_parameters, optimal_tokens
from lab.book.memory import model_state_bytes
from lab.book.reliability import checkpoint_overhead, daly_interval_s, young_interval_s
from lab.core.codec import from_json
from lab.core.files import write_whole
from lab.core.known import known
from lab.core.ledger import Ledger
from lab.core.units import bytes_text, scaled
from lab.meshes.documents import read_json
from lab.meshes.errors import UsageError, no_such
from lab.meshes.hardware import Chip, chip
from lab.meshes.targets import parse_target
from lab.report import roofline as rooflines
from lab.report.drawing import Drawing, figure, svg_text
from lab.report.gantt import Gantt
from lab.report.given import given_ledgers
from lab.report.heat import WhoSends
from lab.report.losses import Losses, losses, overlaid, picture
from lab.report.panel import empty_panel
from lab.report.strategies import Strategies
from lab.report.tables import rows_text
from lab.zoo import model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which every kind of eye tells apart.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"


@dataclass(frozen=True)
class Roofline:
    """What bounds a program's FLOP/s: its chip, its memory, and each link by FLOPs over the bytes that cross it (Ch. 2,
    `ch02.ext_roofline`).

    Attributes:
      chip: of `meshes/hardware.toml`.
      source: a compiled text to put on it; "" for none.
      mesh: of that program, in the order of `mesh.devices`.
      target: what that program was compiled for, whose chip it is then; without it nobody knows which of its transfers
        leave a host.
      dtype: of its matrix products.
    """

    chip: str = "h100"
    source: str = ""
    mesh: str = ""
    target: str = ""
    dtype: str = "bf16"

    def figure(self) -> Figure:
        return figure(self.drawing())

    def drawing(self) -> Drawing:
        target = parse_target(self.target) if self.target else None
        if target and target.chip is None:
            raise UsageError(f"target={target} names no chip; expected one such as gpu:h100:16x8")
        of = chip(target.chip if target and target.chip else self.chip)
        ledgers = given_ledgers("a roofline", self.source, self.mesh, target) if self.source else ()
        found = [point for ledger in ledgers for point in rooflines.points(of, ledger)]
        return rooflines.roofline(of, found, self.dtype)


@dataclass(frozen=True)
class ModelState:
    """What a device holds between steps, by ZeRO stage (Ch. 20, `ch20.stage_memory`): bf16 with float32 master weights
    and Adam's moments.

    Attributes:
      model: of `lab.zoo`.
      ranks: over which ZeRO splits.
      chip: whose memory is marked.
    """

    model: str = "llama3-8b"
    ranks: int = 64
    chip: str = "h100"

    def figure(self) -> Figure:
        figure, panel = empty_panel(f"{self.model} on {self.ranks} devices: model state of one", "", "GB a device")
        stages, bottom = ["data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3"], np.zeros(4)
        for what, colour, sizes in (
            ("weights", BLUE, {"gradient_bytes": 0, "master_bytes": 0, "moment_bytes": 0}),
            ("gradients", ORANGE, {"weight_bytes": 0, "master_bytes": 0, "moment_bytes": 0}),
            ("master weights and moments", GREEN, {"weight_bytes": 0, "gradient_bytes": 0}),
        ):
            held = [
                float(model_state_bytes(model(self.model).parameters, self.ranks, stage, **sizes)) / 1e9
                for stage in range(4)
            ]
            panel.bar(stages, held, 0.6, bottom, color=colour, label=what)
            bottom += held
        for x, total in enumerate(bottom):
            panel.annotate(bytes_text(round(1e9 * total)), (x, total), (0, 3), textcoords="offset points", ha="center")
        memory = chip(self.chip).memory_bytes.value / 1e9
        panel.axhline(memory, color=RED, linestyle="--", label=f"memory of {chip(self.chip).name}: {memory:,.3g} GB")
        panel.grid(visible=False, axis="x")
        panel.legend(frameon=False)
        panel.set_ylim(0, 1.15 * max(memory, bottom.max()))
        return figure


@dataclass(frozen=True)
class MessageTimes:
    """All-reduce algorithms in the alpha-beta model (Ch. 12): below a size trees and doubling win, above it what sends
    2(P-1)/P of the buffer."""

    ranks: int = 64
    alpha_s: float = 5e-6
    bytes_per_s: float = 50e9
    largest_bytes: float = 1e9

    def figure(self) -> Figure:
        positive(largest_bytes=self.largest_bytes)
        title = f"all-reduce over {self.ranks} ranks, {self.alpha_s * 1e6:g} us and {self.bytes_per_s / 1e9:g} GB/s"
        figure, panel = empty_panel(title, "buffer [B]", "time [s]", log=True)
        sizes = [round(size) for size in np.geomspace(100, self.largest_bytes, 200)]
        algorithms = {
            ("ring", BLUE, "-"): ring_all_reduce_s,
            ("tree", ORANGE, "-"): tree_all_reduce_s,
            ("recursive doubling", GREEN, "-"): doubling_all_reduce_s,
            ("halving and doubling", RED, "--"): halving_doubling_all_reduce_s,
        }
        for (name, colour, dashes), seconds in algorithms.items():
            times = [seconds(size, self.ranks, self.alpha_s, self.bytes_per_s) for size in sizes]
            panel.plot(sizes, times, dashes, color=colour, label=name)
        panel.plot(
            sizes,
            [2 * size / self.bytes_per_s for size in sizes],
            ":",
            color=GREY,
            label="twice the buffer at the link's rate",
        )
        panel.set_ylim(bottom=self.alpha_s)
        panel.legend(frameon=False)
        return figure


@dataclass(frozen=True)
class Loss:
    """Loss against compute of models of a size, and the least loss that a compute reaches (Ch. 7, `ch07.additive`,
    `ch07.optimum`).

    Attributes:
      fit: of `lab.book.loss`: hoffmann or besiroglu.
      least_parameters, most_parameters, sizes: the models shown.
    """

    fit: str = "hoffmann"
    least_parameters: float = 1e8
    most_parameters: float = 1e12
    sizes: int = 5

    def figure(self) -> Figure:
        positive(least_parameters=self.least_parameters, most_parameters=self.most_parameters, sizes=self.sizes)
        figure, panel = empty_panel(
            f"models trained on 1 to 1000 tokens a parameter, {self.fit} fit",
            "training FLOPs",
            "loss [nats a token]",
            log=True,
        )
        models = np.geomspace(self.least_parameters, self.most_parameters, self.sizes).tolist()
        for parameters, shade in zip(models, np.linspace(0.3, 1, self.sizes), strict=True):
            tokens = np.geomspace(parameters, 1000 * parameters, 100).tolist()
            name = f"{scaled(parameters, ' parameters')}"
            panel.plot(
                [training_flops(parameters, count) for count in tokens],
                [additive_loss(parameters, count, self.fit) for count in tokens],
                color=BLUE,
                alpha=shade,
                label=name,
            )
        least, most = training_flops(models[0], models[0]), training_flops(models[-1], 1000 * models[-1])
        flops = np.geomspace(least, most, 200).tolist()
        best = [additive_loss(optimal_parameters(C, self.fit), optimal_tokens(C, self.fit), self.fit) for C in flops]
        panel.plot(flops, best, "--", color=RED, label="the best size for this compute")
        panel.axhline(FITS[self.fit].irreducible, linestyle=":", color=GREY, label="irreducible")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("{x:g}")
        panel.legend(frameon=False)
        return figure


@dataclass(frozen=True)
class YoungDaly:
    """Time that saving and failures cost by the interval between checkpoints, exactly and to first order, with Young's
    and Daly's interval (Ch. 26, `ch26.young_daly`, `law.goodput`).

    Attributes:
      devices, mtbf_h: how many, and the hours between failures of one.
      save_s, restart_s: that a save blocks; from a failure until work goes on.
    """

    devices: int = 16_384
    mtbf_h: float = 50_000.0
    save_s: float = 30.0
    restart_s: float = 300.0

    def figure(self) -> Figure:
        mtbf_s = 3600 * self.mtbf_h / self.devices
        apart = f"one of which fails every {mtbf_s / 3600:,.3g} h"
        title = f"{self.devices:,} devices, {apart}; a save blocks {self.save_s:g} s"
        figure, panel = empty_panel(title, "interval between checkpoints [s]", "share of time lost [%]")
        young, daly = (float(of(self.save_s, mtbf_s)) for of in (young_interval_s, daly_interval_s))
        intervals = np.geomspace(young / 15, 15 * young, 400)
        lost = 100 * (1 - np.asarray(goodput(intervals, self.save_s, mtbf_s, self.restart_s)))  # type: ignore[arg-type]
        restarts = 100 * float(-np.expm1(-self.restart_s / mtbf_s))
        first = 100 * np.asarray(checkpoint_overhead(intervals, self.save_s, mtbf_s)) + restarts  # type: ignore[arg-type]
        panel.plot(intervals, lost, color=BLUE, label="exactly")
        panel.plot(intervals, first, "--", color=GREY, label="first order")
        panel.axhline(restarts, linestyle=":", color=ORANGE, label="restarts, however often one saves")
        for name, at, colour in (("Young", young, RED), ("Daly", daly, GREEN)):
            cost = 100 * (1 - float(goodput(at, self.save_s, mtbf_s, self.restart_s)))
            panel.plot([at], [cost], "o", color=colour, label=f"{name}: {at:,.0f} s, {cost:.2f} %")
        panel.set_xscale("log")
        panel.set_ylim(0, min(100, 1.05 * max(lost[0], lost[-1])))
        panel.legend(frameon=False)
        return figure


@dataclass(frozen=True)
class Goodput:
    """Where the time of a training goes as it grows: useful work, waiting for the slowest rank, saves, work lost,
    detection and restarts, at Daly's interval (Ch. 26, `law.goodput`, `law.slowest`).

    Attributes:
      mtbf_h: hours between failures of one device.
      save_s, write_s: that a save blocks, and after which it counts.
      detect_s, restart_s: from a failure until it is known, and until work goes on.
      variation: of a rank's time for a step, standard deviation over mean.
    """

    mtbf_h: float = 50_000.0
    save_s: float = 30.0
    write_s: float = 120.0
    detect_s: float = 100.0
    restart_s: float = 200.0
    variation: float = 0.01
    most_devices: int = 262_144

    def figure(self) -> Figure:
        positive(most_devices=self.most_devices)
        devices = np.unique(np.geomspace(8, max(16, self.most_devices), 120).round())
        shares = [self._shares(3600 * self.mtbf_h / int(n)) for n in devices]
        works = np.array([straggling(int(n), self.variation) for n in devices])
        useful, *rest = (np.array(each) for each in zip(*shares, strict=True))
        parts = [useful * works, useful * (1 - works), *rest]
        names = ("useful", "waiting for the slowest rank", "saving", "work lost", "detecting", "restarting")
        title = f"a device fails every {self.mtbf_h:,g} h, a save blocks {self.save_s:g} s"
        figure, panel = empty_panel(title, "devices", "share of time [%]")
        colours = (BLUE, "#56B4E9", GREEN, RED, ORANGE, GREY)
        panel.stackplot(devices, [100 * part for part in parts], labels=names, colors=colours)
        panel.set_xscale("log")
        panel.set_xlim(devices[0], devices[-1])
        panel.set_ylim(0, 100)
        panel.legend(loc="lower left")
        return figure

    def _shares(self, mtbf_s: float) -> TimeShares:
        interval = float(best_interval_s(self.save_s, mtbf_s, self.write_s))
        return time_shares(interval, self.save_s, mtbf_s, self.detect_s, self.restart_s, self.write_s)


@dataclass(frozen=True)
class Curves:
    """Loss of a training under every layout and style, and how far each is from that of one device; or losses of the
    trainings of a question.

    Attributes:
      source: what `lab run ch14_training --json` or `lab run ch29_training --json` printed.
    """

    source: str = ""

    def figure(self) -> Figure:
        return figure(self.drawing())

    def drawing(self) -> Drawing:
        found = _trained(self.source)
        if "losses_by_name" in found:
            return overlaid(_by_name(self.source, found))
        return picture(_training(self.source, found))


@dataclass(frozen=True)
class _OneDevice:
    losses: tuple[float | None, ...]
    tolerances: tuple[float | None, ...]


@dataclass(frozen=True)
class _Curve:
    layout: str
    style: str
    losses: tuple[float | None, ...]
    expected_losses: tuple[float | None, ...] | None = None


@dataclass(frozen=True)
class _Training:
    """What is drawn of a training's JSON."""

    guessing_by_frequency: float
    one_device: _OneDevice
    curves: tuple[_Curve, ...]


EXPECTED_TRAINING = "expected what this prints: lab run TRAINING --json > training.json, for a training of lab list"


def _trained(source: str) -> Mapping[str, Any]:
    """The first result of a run that has trainings.

    Raises:
      UsageError: the file holds none.
    """
    if not source:
        raise UsageError(
            "the plot of a training needs its result: lab run TRAINING --json > training.json, then --set "
            "source=training.json"
        )
    document = read_json(Path(source), EXPECTED_TRAINING)
    try:
        found: Mapping[str, Any] = next(
            result for result in document["results"] if {"curves", "losses_by_name"} & set(result)
        )
    except (LookupError, TypeError, StopIteration):
        raise UsageError(f"{source}: holds no training; {EXPECTED_TRAINING}") from None
    return found


@dataclass(frozen=True)
class _Answer:
    """What is drawn of a question's JSON."""

    losses_by_name: Mapping[str, tuple[float | None, ...]]


def _by_name(source: str, found: Mapping[str, Any]) -> Mapping[str, Sequence[float | None]]:
    """Raises UsageError where that is not what the command prints."""
    try:
        losses = from_json(_Answer, found).losses_by_name
    except UsageError as error:
        raise UsageError(f"{source}: not a training ({error}); {EXPECTED_TRAINING}") from None
    if not any(loss is not None for some in losses.values() for loss in some) or max(map(len, losses.values())) < 2:
        raise UsageError(f"{source}: not a training (it has no losses); {EXPECTED_TRAINING}")
    return losses


def _training(source: str, found: Mapping[str, Any]) -> Losses:
    """Raises UsageError where that is not what the command prints."""
    try:
        training = from_json(_Training, found)
    except UsageError as error:
        raise UsageError(f"{source}: not a training ({error}); {EXPECTED_TRAINING}") from None
    steps = len(training.one_device.losses)
    series = [training.one_device.tolerances]
    for curve in training.curves:
        series += [some for some in (curve.losses, curve.expected_losses) if some]
    if not steps or any(len(some) != steps for some in series):
        raise UsageError(f"{source}: not a training (its curves have other numbers of steps); {EXPECTED_TRAINING}")
    return losses(found)


def roofline(of: Chip, ledgers: Sequence[Ledger] = (), dtype: str = "bf16") -> Figure:
    """The chip's roofs, and for each ledger a point on the roof of every link that it uses: its FLOPs over the wire
    bytes of that link.

    Raises:
      UsageError: the chip has no rate for the dtype, or a ledger counts no FLOPs or does not know its links.
    """
    found = [point for ledger in ledgers for point in rooflines.points(of, ledger)]
    return figure(rooflines.roofline(of, found, dtype))


Drawn = Roofline | Curves | Gantt | WhoSends | Strategies
"""From shapes; the others are matplotlib's own."""
Plot = Drawn | ModelState | MessageTimes | Loss | YoungDaly | Goodput
PLOTS: dict[str, Callable[[], Plot]] = {
    "roofline": Roofline,
    "memory": ModelState,
    "messages": MessageTimes,
    "loss": Loss,
    "young-daly": YoungDaly,
    "goodput": Goodput,
    "training": Curves,
    "gantt": Gantt,
    "traffic": WhoSends,
    "strategies": Strategies,
}
"""What `lab plot` draws, by name."""
FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class PlotJson:
    """A plot: what it shows, and its parameters with their defaults."""

    name: str
    shows: str
    set: Mapping[str, Any]


def listed() -> list[PlotJson]:
    return [PlotJson(name, _first_sentence(known(inspect.getdoc(of))), asdict(of())) for name, of in PLOTS.items()]


def _first_sentence(docstring: str) -> str:
    """All of its first paragraph, which is one."""
    return " ".join(docstring.partition("\n\n")[0].split())


def listed_text() -> str:
    """The same as a table."""
    return rows_text(
        ("plot", "shows", "--set"),
        [(row.name, row.shows, " ".join(map(_setting, *zip(*row.set.items(), strict=True)))) for row in listed()],
    )


def _setting(name: str, default: Any) -> str:
    return f"{name}={default:g}" if isinstance(default, float) else f"{name}={default}"


def check_name(name: str) -> None:
    """Raises UsageError for a name that no plot has."""
    if name not in PLOTS:
        raise no_such("plot", name, PLOTS)


def save(name: str, settings: Mapping[str, str], path: Path) -> None:
    """Draws a plot of `PLOTS` with some of its parameters set from text, into a file of one of the `FORMATS`.

    Raises:
      UsageError: no such plot, an unknown parameter, one that a formula refuses, or an unknown kind of file.
    """
    from lab.harness.settings import with_settings

    check_name(name)
    suffix = path.suffix or ".png"
    if suffix not in FORMATS:
        raise UsageError(f"{path}: found {suffix}, expected {FORMATS[0]}, {FORMATS[1]} or {FORMATS[2]}")
    try:
        plot = with_settings(PLOTS[name](), settings)
        if isinstance(plot, Drawn) and suffix == ".svg":
            write_whole(path, svg_text(plot.drawing()))
        else:
            picture = BytesIO()
            plot.figure().savefig(picture, format=suffix.removeprefix("."))
            write_whole(path, picture.getvalue())
    except UsageError:
        raise
    except (ArithmeticError, ValueError) as refusal:
        raise UsageError(f"plot {name}: {refusal}") from refusal
