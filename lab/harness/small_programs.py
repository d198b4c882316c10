"""An experiment on small programs side by side, each in its own scope: what each sends, and that it computes what one
device does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab.compile.build import Built
from lab.core.ledger import Kind, Ledger, Phase, Provenance, Totals, Transfer
from lab.harness.claim import Claim
from lab.harness.experiment import Experiment
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target

TARGETS = ("cpu:8", "gpu:h100:2x4", "tpu:v5e:2x4")
FLOAT_BYTES = 4


class Array(NamedTuple):
    """A float32 argument: its whole shape, and how it is split."""

    shape: tuple[int, ...]
    spec: PartitionSpec = PartitionSpec()


class Sent(NamedTuple):
    """What theory asks of a part, or of a scope inside it; of an array of so many elements of 4 bytes."""

    kind: Kind
    axes: tuple[str, ...]
    elements: int
    executions: int = 1
    dtype: str = "f32"
    phase: Phase | None = None
    provenance: Provenance = Provenance()
    shift: int | None = None
    scope: str = ""


@dataclass(frozen=True)
class Part:
    """One program of an experiment.

    Attributes:
      scope: its name.
      takes: (sizes, axes) to its arguments.
      run: of one rank's arguments, to one rank's result.
      gives: how the result is split, a tree of specs.
      whole: of the whole arguments on one device, to the whole result.
      sends: (sizes, axes) to what theory asks for; nothing by default.
    """

    scope: str
    takes: Callable[[Any, Axes], Sequence[Array]]
    run: Callable[..., Any]
    gives: Any
    whole: Callable[..., Any]
    sends: Callable[[Any, Axes], Sequence[Sent]] = lambda sizes, axes: ()


def experiment(
    name: str,
    chapter: int,
    question: str,
    parts: Sequence[Part],
    sizes: Any,
    small: Any,
    axes: Callable[[Target], Axes],
    claims: Callable[[Any, Axes, Ledger], tuple[Claim, ...]],
) -> Experiment:
    """Both `sizes` and `small` suit every mesh of `TARGETS`."""
    return Experiment(
        name=name,
        chapter=chapter,
        question=question,
        parameters=sizes,
        numeric_parameters=small,
        axes=axes,
        build=lambda style, sizes, mesh: program(parts, sizes, mesh),
        predict=partial(predict, parts),
        claims=claims,
        reference=lambda sizes: partial(on_one_device, parts),
        targets=TARGETS,
        styles=("explicit",),
    )


def with_pullback(function: Callable[..., jax.Array]) -> Callable[..., tuple[jax.Array, ...]]:
    """(arguments, cotangent) to the value and every argument's gradient."""

    def both(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        y, pull = jax.vjp(function, *arguments[:-1])
        return y, *pull(arguments[-1])

    return both


def program(parts: Iterable[Part], sizes: Any, mesh: Mesh) -> Built:
    """A function of each part's arguments, by scope, to each part's result, and the arguments as shapes with shardings.

    Raises:
      UsageError: an argument does not split over the mesh.
    """
    taken = {part.scope: tuple(part.takes(sizes, Axes.of(mesh.shape))) for part in parts}

    def on_ranks(part: Part) -> Callable[..., Any]:
        specs = tuple(array.spec for array in taken[part.scope])
        return jax.shard_map(part.run, mesh=mesh, in_specs=specs, out_specs=part.gives)

    def in_turn(arguments: dict[str, tuple[jax.Array, ...]]) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for part in parts:
            # Compilers combine what parts that do not wait for each other send, and then no scope has it.
            own, results = jax.lax.optimization_barrier((arguments[part.scope], results))
            with jax.named_scope(part.scope):
                results = results | {part.scope: on_ranks(part)(*own)}
        return results

    options = _APART if mesh.devices.flat[0].platform == "cpu" else None
    return jax.jit(in_turn, compiler_options=options), (
        {scope: tuple(_shaped(array, mesh) for array in arrays) for scope, arrays in taken.items()},
    )


# The CPU's compiler drops barriers before it combines all-reduces; it combines nothing else.
_APART = {"xla_disable_hlo_passes": "cpu-all-reduce-combiner"}


def _shaped(array: Array, mesh: Mesh) -> jax.ShapeDtypeStruct:
    sharding = NamedSharding(mesh, array.spec)
    try:
        sharding.shard_shape(array.shape)
    except ValueError:
        raise UsageError(
            f"sizes {array.shape} are not divisible as {array.spec} over {Axes.of(mesh.shape)}; make each a multiple "
            "of its ranks"
        ) from None
    return jax.ShapeDtypeStruct(array.shape, jnp.float32, sharding=sharding)


def moved(measured: Ledger, scope: str) -> Totals:
    """What a part of a compiled program moves; combined transfers count as one."""
    return Totals.of(t for t in measured.transfers if t.scope == scope)


def predict(parts: Iterable[Part], sizes: Any, axes: Axes) -> Ledger:
    """What theory asks of all parts; raises UsageError where there is none of something."""
    if none := [name for name, size in asdict(sizes).items() if type(size) is int and size < 1]:
        raise UsageError(f"{none[0]}={getattr(sizes, none[0])}: expected 1 or more")
    rows = tuple(_transfer(sent, part.scope, axes) for part in parts for sent in part.sends(sizes, axes))
    return Ledger(rows, devices=axes.size, mesh=axes.shape)


def _transfer(sent: Sent, part: str, axes: Axes) -> Transfer:
    scope = f"{part}/{sent.scope}" if sent.scope else part
    group = prod(axes[axis] for axis in sent.axes)
    row = Transfer(sent.kind, sent.axes, group, sent.executions, sent.dtype, sent.elements * FLOAT_BYTES)
    groups = axes.size // group
    return replace(row, groups=groups, shift=sent.shift, scope=scope, phase=sent.phase, provenance=sent.provenance)


def on_one_device(parts: Iterable[Part], arguments: dict[str, tuple[jax.Array, ...]]) -> dict[str, Any]:
    return {part.scope: part.whole(*arguments[part.scope]) for part in parts}
