"""A program for every assignment of its sizes and of the degrees of its mesh: one of the lab's experiments, or a
user's builder that takes sizes. Imports no JAX."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from math import gcd, prod
from typing import Any, NamedTuple

from lab.compile import sources
from lab.compile.other_process import Stage
from lab.core.room import Room
from lab.harness import registry
from lab.harness.settings import with_settings
from lab.meshes.axes import Axes, TypedAxes
from lab.meshes.backends import make_mesh, prepare, target_devices
from lab.meshes.errors import UsageError, no_such
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target, parse_target

MOST_CPUS = 64
EXPECTED_SIZES = (
    "expected build(mesh, *, layers=2, embed=1024, ...) with whole numbers as defaults, or build(mesh, sizes=Sizes()) "
    "with an object that holds them"
)
_TPU_TOPOLOGIES = {
    2: ((1, 1), (1, 2), (2, 2), (2, 4), (2, 6), (4, 4), (4, 6), (4, 8), (6, 8), (8, 8), (8, 12), (8, 16), (16, 16)),
    3: (
        *((1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2), (2, 2, 3), (2, 2, 4), (2, 4, 3), (2, 4, 4), (4, 4, 3), (4, 4, 4)),
        *((4, 4, 8), (4, 4, 12), (4, 8, 8), (4, 8, 12), (8, 8, 8)),
    ),
}


class Built(NamedTuple):
    """A program that is not compiled yet, and where it is to be."""

    function: Any
    args: tuple[Any, ...]
    mesh: Any
    target: Target


@dataclass(frozen=True)
class Family:
    """Attributes:
    source: an experiment's name, or `file.py:build` where `build(mesh, ...)` takes sizes: keywords with whole numbers
      as defaults, or an object with whole numbers as a default, such as a dataclass, with others in it.
    mesh: its axes, in the order of `mesh.devices`; degrees that are not asked for otherwise.
    target: the devices; how many there are follows from the mesh.
    style: of an experiment.
    settings: what is set beside sizes: of an experiment, its parameters; of a builder, its sizes.
    flags: of XLA, that it is compiled with.
    """

    source: str
    mesh: TypedAxes
    target: Target
    style: str | None
    settings: tuple[tuple[str, str], ...] = ()
    flags: tuple[tuple[str, str], ...] = ()

    @property
    def is_experiment(self) -> bool:
        return not sources.is_program(self.source)

    def axes(self, sizes: Mapping[str, int]) -> Axes:
        return Axes.of({name: sizes.get(name, size) for name, size in self.mesh.axes.shape.items()})


def sizes_of(_: Stage, family: Family) -> dict[str, int]:
    """The sizes that it takes, with their defaults as they are set.

    Raises:
      UsageError: there is no such program, or a setting is none of its sizes.
    """
    prepare([])
    if family.is_experiment:
        found = _sizes_in(_parameters(family))
    else:
        found = {}
        for name, default in _taken(family.source, sources.builder(family.source)).items():
            found |= {name: default} if _is_size(default) else _sizes_in(default)
        found |= {name: whole(name, text) for name, text in family.settings if _known(name, found)}
    return found


def built(family: Family, sizes: Mapping[str, int], most_cpus: int = MOST_CPUS) -> Built:
    """The program at these sizes.

    Raises:
      UsageError: it cannot be built so.
    """
    axes = family.axes(sizes)
    target = sized(family.target, axes.size)
    prepare([target, parse_target(f"cpu:{most_cpus}")] if target.platform == Platform.CPU else [target])
    own = {name: size for name, size in sizes.items() if name not in axes.names}
    if family.is_experiment:
        experiment = registry.experiment(family.source)
        parameters = replace(_parameters(family), **own)
        experiment.predict(parameters, axes)
        mesh = make_mesh(target, axes)
        function, args = experiment.build(family.style or experiment.styles[0], parameters, mesh)
        return Built(function, args, mesh, target)
    from lab.compile import shapes_only
    from lab.meshes.devices import typed

    devices = target_devices(target)
    room = Room.of(target)
    only_compile = target.platform in (Platform.GPU, Platform.TPU)
    with shapes_only.follow(devices, room.usable_bytes if room else None) if only_compile else nullcontext():
        build = sources.builder(family.source)
        mesh = typed(make_mesh(target, axes), family.mesh.explicit)
        set_here = {name: whole(name, text) for name, text in family.settings}
        function, args = sources.program(family.source, _with_sizes(build, family.source, set_here | own), mesh)
    return Built(function, args, mesh, target)


def sized(target: Target, devices: int) -> Target:
    """As many devices of the same kind.

    Raises:
      UsageError: it has no such number of them.
    """
    if target.devices == devices:
        return target
    if target.platform == Platform.CPU:
        return replace(target, shape=(devices,))
    if target.platform == Platform.GPU:
        inside = target.per_host if devices % target.per_host == 0 else gcd(devices, target.per_host)
        inside = devices if devices <= target.per_host else inside
        return replace(target, shape=(devices // inside, inside))
    if target.platform == Platform.TPU:
        chips = target.hardware.devices_per_chip
        for shape in _TPU_TOPOLOGIES[len(target.shape)]:
            if prod(shape) * chips == devices:
                return parse_target(f"tpu:{target.chip}:{'x'.join(map(str, shape))}")
    raise UsageError(
        f"target {target}: no {devices} devices of its kind; expected a cpu:, gpu: or tpu: target of as many"
    )


def has_size(target: Target, devices: int) -> bool:
    """Whether there are targets of its kind with as many devices."""
    try:
        sized(target, devices)
    except UsageError:
        return False
    return True


def _parameters(family: Family) -> Any:
    return with_settings(registry.experiment(family.source).parameters, dict(family.settings))


def _is_size(found: object) -> bool:
    return isinstance(found, int) and not isinstance(found, bool)


def _sizes_in(config: Any) -> dict[str, int]:
    """By their names, those of a dataclass within as `model.embed`."""
    names = [each.name for each in fields(config)] if is_dataclass(config) else list(getattr(config, "__dict__", ()))
    found = {}
    for name in names:
        if _is_size(one := getattr(config, name)):
            found[name] = one
        elif is_dataclass(one) and not isinstance(one, type):
            found |= {f"{name}.{inner}": size for inner, size in _sizes_in(one).items()}
    return found


def _taken(source: str, build: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a builder behind its mesh that hold sizes, with their defaults.

    Raises:
      UsageError: one has no default.
    """
    parameters = list(inspect.signature(build).parameters.values())[1:]
    for each in parameters:
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            raise UsageError(f"{source}: {each.name} has no default; {EXPECTED_SIZES}")
    return {each.name: each.default for each in parameters if _is_size(each.default) or _sizes_in(each.default)}


def _with_sizes(build: Callable[..., Any], source: str, sizes: Mapping[str, int]) -> Callable[[Any], Any]:
    named: dict[str, Any] = {}
    for name, default in _taken(source, build).items():
        if _is_size(default):
            named |= {name: sizes[name]} if name in sizes else {}
        else:
            own = {key: size for key, size in sizes.items() if key in _sizes_in(default)}
            named[name] = _changed(default, own)
    return partial(build, **named)


def _changed(config: Any, sizes: Mapping[str, int]) -> Any:
    changed: dict[str, Any] = {name: size for name, size in sizes.items() if "." not in name}
    for within in dict.fromkeys(name.partition(".")[0] for name in sizes if "." in name):
        inner = {name.partition(".")[2]: size for name, size in sizes.items() if name.startswith(f"{within}.")}
        changed[within] = _changed(getattr(config, within), inner)
    if is_dataclass(config) and not isinstance(config, type):
        return replace(config, **changed)
    other = copy.copy(config)
    for name, value in changed.items():
        setattr(other, name, value)
    return other


def _known(name: str, sizes: Mapping[str, int]) -> bool:
    if name not in sizes:
        raise no_such("size", name, sizes)
    return True


def whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name}={text}: expected a whole number") from None
