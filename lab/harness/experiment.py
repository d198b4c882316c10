"""An experiment: a question, a program, the ledger that theory predicts for it, and the claims of the book that it
decides. Imports no JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from lab.compile.build import Build
from lab.core.ledger import Ledger
from lab.harness.claim import Claim
from lab.meshes.attached import device_count, resolve_attached
from lab.meshes.axes import TENSOR, Axes
from lab.meshes.targets import Target
from lab.programs.memory.terms import Terms
from lab.zoo.runs import PublishedRun

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from lab.harness.result import Composition, Numerics

STYLES = ("declared", "explicit")
TARGETS = ("cpu:8", "gpu:h100:2x8", "tpu:v5p:2x2x4")


@dataclass(frozen=True)
class TimedSteps:
    """Which steps of an experiment on the decoder's step `lab tour` times: that of the middle one of its three sizes,
    and besides

    Attributes:
      every_size: those of the small and the large one.
      every_policy: in the declared style, and under the other policies of recomputation.
      settings: parameters that its layout needs.
      min_devices: on fewer it is left out.
    """

    every_size: bool = False
    every_policy: bool = False
    settings: Mapping[str, int] = field(default_factory=dict, hash=False)
    min_devices: int = 2


def as_they_come(parameters: Any, axes: Axes) -> Sequence[int]:
    return range(parameters.length)


@dataclass(frozen=True)
class TrainingStep:
    """How the training step that an experiment compiles is run.

    Attributes:
      start: (parameters, axes, weights of the model) to the state that a first step takes.
      in_model_order: (parameters, axes, weights or moments of such a state) to those of the model.
      parts: (parameters, axes) to how many parts of a sequence choose their experts by themselves.
      order: (parameters, axes) to the positions [length] of a sequence's tokens as the step takes them: those of the
        first rank, then the next one's.
    """

    start: Callable[[Any, Axes, Any], Any]
    in_model_order: Callable[[Any, Axes, Any], Any] = lambda parameters, axes, weights: weights
    order: Callable[[Any, Axes], Sequence[int]] = as_they_come
    parts: Callable[[Any, Axes], int] = lambda parameters, axes: 1


@dataclass(frozen=True)
class Experiment:
    """One question and what it takes to answer it.

    Attributes:
      name: of its module in `experiments`.
      chapter: of the book.
      parameters: sizes to compile, a frozen dataclass.
      numeric_parameters: small ones in float32 or integers, to run.
      axes: the mesh that suits a target.
      place: of an experiment whose parameters say where it runs: (parameters, target or None) to the parameters with
        all sizes that follow from it, the target and the mesh.
      build: (style, parameters, mesh) to a jitted function and its arguments, as shapes with shardings.
      predict: (parameters, axes) to the ledger that theory asks for.
      composition: (parameters, axes, measured ledger or None) to what theory says of a step of several parallelisms
        beside its ledger, and what of that is compiled.
      published: parameters to the training run of the zoo that they are of, if they are of one.
      claims: (parameters, axes, measured ledger) to what that ledger decides.
      reference: parameters to the function on one device whose results a small program must reach; None for a step.
      step: of a training step of the decoder, how three of them are run, to be compared with `lab.reference`.
      compare: (style, parameters, mesh) to how far results are from one device's, of a program that takes no random
        arguments and is no step.
      memory: (style, parameters, axes, bytes of memory or None) to the bytes that theory puts on one device when it
        holds most, by the id of the term, the arguments first.
      host_bytes: (parameters, axes) to the bytes that cross the link between a device and its host in a step, there and
        back.
      state: (parameters, mesh) to what a step takes first and gives back first, as shapes with the shardings that its
        layout declares.
      everyday: styles and targets of the runs that `lab verify` begins with, one for each property of the book and each
        compiler; `lab verify --all` runs every style on every target.
      more_targets: where `lab verify --full` runs it besides.
      more_styles: in which only `lab verify --full`, and who asks for them, runs it.
      real_size: of a step of the decoder, the settings besides `preset` and `batch` with which Llama 3 8B fits on 16
        TPUs; `lab verify --full` runs it at that size, and at drawn ones. None: at its own sizes alone.
      tour: which of its steps `lab tour` times; None: none.
    """

    name: str
    chapter: int
    question: str
    parameters: Any
    numeric_parameters: Any
    axes: Callable[[Target], Axes]
    build: Build
    predict: Callable[[Any, Axes], Ledger]
    claims: Callable[[Any, Axes, Ledger], tuple[Claim, ...]]
    place: Callable[[Any, Target | None], tuple[Any, Target, Axes]] | None = None
    composition: Callable[[Any, Axes, Ledger | None], Composition] | None = None
    published: Callable[[Any], PublishedRun | None] = lambda parameters: None
    reference: Callable[[Any], Callable[..., Any]] | None = None
    step: TrainingStep | None = None
    compare: Callable[[str, Any, Mesh], Numerics] | None = None
    memory: Callable[[str, Any, Axes, int | None], Terms] | None = None
    host_bytes: Callable[[Any, Axes], int] = lambda parameters, axes: 0
    state: Callable[[Any, Mesh], Any] | None = None
    targets: tuple[str, ...] = TARGETS
    styles: tuple[str, ...] = STYLES
    everyday: tuple[tuple[str, str], ...] = ()
    more_targets: tuple[str, ...] = ()
    more_styles: tuple[str, ...] = ()
    real_size: Mapping[str, str] | None = field(default=None, hash=False)
    tour: TimedSteps | None = None


def on_one_axis(name: str) -> Callable[[Target], Axes]:
    """All devices of a target along one axis."""
    return lambda target: Axes.of({name: device_count(target)})


def with_tensor_inside_host(name: str) -> Callable[[Target], Axes]:
    """Tensor parallelism inside a host of GPUs, over 4 devices elsewhere; what remains along `name`."""
    return with_inner_axis(name, TENSOR)


def with_inner_axis(name: str, inner: str) -> Callable[[Target], Axes]:
    """One axis inside a host of GPUs, over 4 devices elsewhere; what remains along `name`."""

    def axes(target: Target) -> Axes:
        devices, place = device_count(target), resolve_attached(target)
        inside = place.per_host if place.platform == "gpu" else gcd(devices, 4)
        return Axes.of({name: devices // inside, inner: inside})

    return axes


def on_two_axes(name: str, inner: str) -> Callable[[Target], Axes]:
    """As `with_inner_axis`, but for a question about two axes: two groups where one would hold all devices, if
    they are an even number of four or more."""

    def axes(target: Target) -> Axes:
        found = with_inner_axis(name, inner)(target)
        is_one = found[name] == 1 and found[inner] >= 4 and found[inner] % 2 == 0
        return Axes.of({name: 2, inner: found[inner] // 2}) if is_one else found

    return axes


E = TypeVar("E", bound=Experiment, covariant=True)


class Run(NamedTuple, Generic[E]):
    """One experiment in one style on one target; on a mesh of its own, or on the one that the experiment has for the
    target."""

    experiment: E
    target: Target
    style: str
    axes: Axes | None = None

    def __str__(self) -> str:
        mesh = f" {self.axes}" if self.axes else ""
        return f"{self.experiment.name} {self.style} {self.target}{mesh}"
