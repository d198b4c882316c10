"""An experiment: a question, a program, the ledger that theory predicts for it, and the claims of the book that it decides."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from math import gcd
from typing import TYPE_CHECKING, Any

import chex
import jax
import numpy as np
from jax.sharding import Mesh

from lab.core.ledger import Ledger
from lab.meshes.axes import TENSOR, Axes
from lab.meshes.errors import Unusable
from lab.meshes.hardware import known_chip
from lab.meshes.targets import Target

if TYPE_CHECKING:
    from lab.harness.decoder.training import Training
    from lab.harness.question import Question

STYLES = ("declared", "explicit")
TARGETS = ("cpu:8", "gpu:h100:2x8", "tpu:v5p:2x2x4")
TOLERANCE = 1e-5


class ClaimVerdict(StrEnum):
    """`calculated`: the formula was evaluated, but this program does not decide it."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    CALCULATED = "calculated"


@dataclass(frozen=True)
class Claim:
    """One formula of the book put to the test: its id in the catalogue, the outcome, and one sentence of evidence.

    Attributes:
      statement: what was tested, where the evidence alone does not tell.
      disputed: the item of the catalogue that already says that the statement is wrong.
    """

    id: str
    verdict: ClaimVerdict
    evidence: str
    statement: str | None = None
    disputed: str | None = None

    @property
    def is_surprise(self) -> bool:
        """It is refuted, and nobody has said so before."""
        return self.verdict is ClaimVerdict.REFUTED and self.disputed is None


def decided(id: str, holds: bool, evidence: str, *, statement: str | None = None, disputed: str | None = None) -> Claim:
    return Claim(id, ClaimVerdict.CONFIRMED if holds else ClaimVerdict.REFUTED, evidence, statement, disputed)


def calculated(id: str, evidence: str, *, statement: str | None = None) -> Claim:
    return Claim(id, ClaimVerdict.CALCULATED, evidence, statement)


@dataclass(frozen=True)
class Experiment:
    """One question and what it takes to answer it.

    Attributes:
      name: of its module in `experiments`.
      chapter: of the book.
      parameters: sizes to compile, a frozen dataclass.
      numeric_parameters: small ones in float32 or integers, to run.
      axes: the mesh that suits a target.
      build: (style, parameters, mesh) to a jitted function and its arguments, as shapes with shardings.
      predict: (parameters, axes) to the ledger that theory asks for.
      claims: (parameters, axes, measured ledger) to what that ledger decides.
      reference: parameters to the function on one device whose results a small program must reach.
      build_numeric: the same as `build`, for the program whose results are compared, where that is another.
      inputs: parameters to the arguments of that program; random ones where there is none.
      memory: (style, parameters, axes, bytes of memory or None) to the bytes that theory puts on one device when it holds most, by what they are, the
        arguments first.
      state: (parameters, mesh) to what a step takes first and gives back first, as shapes with the shardings that its layout declares.
      more_targets: where `lab verify --full` runs it besides.
      more_styles: in which only `lab verify --full`, and who asks for them, runs it.
    """

    name: str
    chapter: int
    question: str
    parameters: Any
    numeric_parameters: Any
    axes: Callable[[Target], Axes]
    build: Callable[[str, Any, Mesh], tuple[Callable[..., Any], tuple[Any, ...]]]
    predict: Callable[[Any, Axes], Ledger]
    claims: Callable[[Any, Axes, Ledger], tuple[Claim, ...]]
    reference: Callable[[Any], Callable[..., Any]]
    build_numeric: Callable[[str, Any, Mesh], tuple[Callable[..., Any], tuple[Any, ...]]] | None = None
    inputs: Callable[[Any], tuple[Any, ...]] | None = None
    memory: Callable[[str, Any, Axes, int | None], dict[str, int]] | None = None
    state: Callable[[Any, Mesh], Any] | None = None
    targets: tuple[str, ...] = TARGETS
    styles: tuple[str, ...] = STYLES
    more_targets: tuple[str, ...] = ()
    more_styles: tuple[str, ...] = ()


def on_one_axis(name: str) -> Callable[[Target], Axes]:
    """All devices of a target along one axis."""
    return lambda target: Axes.of({name: device_count(target)})


def beside_tensor(name: str) -> Callable[[Target], Axes]:
    """Tensor parallelism inside a host of GPUs, over 4 devices elsewhere; what remains along `name`."""
    return beside(name, TENSOR)


def beside(name: str, inner: str) -> Callable[[Target], Axes]:
    """One axis inside a host of GPUs, over 4 devices elsewhere; what remains along `name`."""

    def axes(target: Target) -> Axes:
        devices, place = device_count(target), described(target)
        inside = place.per_host if place.platform == "gpu" else gcd(devices, 4)
        return Axes.of({name: devices // inside, inner: inside})

    return axes


def on_two_axes(name: str, inner: str) -> Callable[[Target], Axes]:
    """As `beside`, but for a question about two axes: two groups where one would hold all devices, if they are an even number of four or more."""

    def axes(target: Target) -> Axes:
        found = beside(name, inner)(target)
        is_one = found[name] == 1 and found[inner] >= 4 and found[inner] % 2 == 0
        return Axes.of({name: 2, inner: found[inner] // 2}) if is_one else found

    return axes


def device_count(target: Target) -> int:
    return jax.device_count() if target.devices is None else target.devices


def described(target: Target) -> Target:
    """The target itself; of attached devices their platform, chip (None where the table of hardware lacks it), processes and devices a process."""
    if target.platform != "attached":
        return target
    first = jax.devices()[0]
    known = known_chip(first.device_kind)
    return Target(first.platform, known and known.key, (jax.process_count(), jax.local_device_count()))


@dataclass(frozen=True)
class Numerics:
    """How far a sharded program's results are from one device's, relative to the largest entry of each array."""

    worst_relative_error: float
    tolerance: float


def small(experiment: Experiment, parameters: Any) -> Any:
    """The sizes at which numbers are checked, with the choices in which `parameters` differ from the experiment's own.

    Raises:
      Unusable: these choices need other sizes.
    """
    own = experiment.parameters
    chosen = {name: getattr(parameters, name) for name in getattr(parameters, "CHOICES", ()) if getattr(parameters, name) != getattr(own, name)}
    return experiment.numeric_parameters.choosing(**chosen) if chosen else experiment.numeric_parameters


def numerics(experiment: Experiment, style: str, mesh: Mesh, parameters: Any) -> Numerics:
    """Runs an experiment's program, of small parameters, on `mesh`, and once more on one device.

    Raises:
      AssertionError: a result differs by more than `TOLERANCE`, or at all where everything is integers; it tells the parameters.
    """
    function, shapes = (experiment.build_numeric or experiment.build)(style, parameters, mesh)
    inputs = experiment.inputs(parameters) if experiment.inputs else _random(shapes)
    shardings = jax.tree.map(lambda shape: shape.sharding, shapes)
    with jax.default_matmul_precision("highest"):
        expected = jax.device_get(jax.jit(experiment.reference(parameters))(*inputs))
        found = jax.device_get(function(*jax.device_put(inputs, shardings)))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(expected)), "one device's results are not finite, and nothing can be compared with them"
    scaled = [jax.tree.map(lambda x, unit: x / np.abs(unit).max(), tree, expected) for tree in (found, expected)]
    tolerance = TOLERANCE if any(np.issubdtype(x.dtype, np.inexact) for x in jax.tree.leaves(expected)) else 0.0
    try:
        chex.assert_trees_all_close(*scaled, rtol=0, atol=tolerance)
    except AssertionError as difference:
        raise AssertionError(f"results differ from one device's at {parameters}: {difference}") from None
    return Numerics(float(max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, scaled)))), tolerance)


def _random(shapes: Any) -> Any:
    """Integers of two digits; or normal entries, divided by the root of the rows, so that a product with a matrix keeps its scale."""
    draw = np.random.default_rng(0)

    def entries(array: jax.ShapeDtypeStruct) -> np.ndarray:
        if np.issubdtype(array.dtype, np.integer):
            return draw.integers(-99, 100, array.shape, array.dtype)
        return (draw.standard_normal(array.shape) * array.shape[-2] ** -0.5).astype(array.dtype)

    return jax.tree.map(entries, shapes)


def with_settings(parameters: Any, settings: Mapping[str, str]) -> Any:
    """The parameters with some fields read from text; `preset` stands for all fields of a named one.

    Raises:
      Unusable: an unknown name, or a text that does not fit the field's type.
    """
    settings = dict(settings)
    if "preset" in settings and hasattr(parameters, "preset"):
        parameters = parameters.preset(settings.pop("preset"))
    known = {field.name: type(getattr(parameters, field.name)) for field in fields(parameters)}
    for name in settings:
        if name not in known:
            raise Unusable(f"no parameter {name!r}; known are {', '.join(known)}")
    return replace(parameters, **{name: _read(name, text, known[name]) for name, text in settings.items()})


def _read(name: str, text: str, kind: type) -> Any:
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        raise Unusable(f"{name}={text}: expected {'true or false' if kind is bool else kind.__name__}") from None


def names() -> tuple[str, ...]:
    """Names of all experiments, none of them imported."""
    package = importlib.import_module("lab.experiments")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


def load(name: str) -> Experiment | Training | Question:
    """The experiment, the training, or the question without a program, of that name.

    Raises:
      Unusable: there is none.
    """
    if name not in names():
        raise Unusable(f"no experiment {name!r}; known are {', '.join(names())}")
    return importlib.import_module(f"lab.experiments.{name}").EXPERIMENT
