"""Calls of one function of a script that JAX compiles anew: a step that gives its state back otherwise placed, or in
another type, than it was first given is compiled again at its second call, without a word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from jax.sharding import NamedSharding

from lab.core.note import Note, NoteKind
from lab.diagnosis.specs import spec_text

if TYPE_CHECKING:
    from lab.compile.shapes_only import Called

_SHOWN = 3


def notes(calls: Sequence[Called], shown: Called) -> Iterator[Note]:
    """How calls of a shown function differ from the one before them where they need not: in the placement or the type
    of what the one before gave back.

    Args:
      calls: the different ones of a script, in their order.
    """
    ours = [call for call in calls if _function(call) == _function(shown)]
    for before, after in pairwise(ours):
        shapes = [[shape.shape for shape in call.args] for call in (before, after)]
        changes = list(_changes(before, after)) if shapes[0] == shapes[1] else []
        if changes:
            more = [f"{len(changes) - _SHOWN} more"] * (len(changes) > _SHOWN)
            yield Note(
                NoteKind.COMPILED_AGAIN,
                f"JAX compiles {shown.name} anew at a later call ({after.place}), for what the call before gives back: "
                f"{'; '.join(changes[:_SHOWN] + more)}. Made alike before the first call (out_shardings where it is "
                f"made, jax.device_put), or given back as it was (out_shardings of {shown.name}), it is compiled once",
            )


def _function(call: Called) -> tuple[Any, ...]:
    info = call.traced.jaxpr.jaxpr.debug_info
    return call.name, info.func_src_info, tuple(info.arg_names or ())


def _changes(before: Called, after: Called) -> Iterator[str]:
    names = before.traced.jaxpr.jaxpr.debug_info.arg_names or ()
    for name, old, new in zip(names, before.args, after.args, strict=False):
        dims = len(new.shape)
        is_moved = not _is_alike(old.sharding, new.sharding, dims)
        is_other = (old.dtype, old.weak_type) != (new.dtype, new.weak_type)
        if (is_moved or is_other) and _is_given_back(before, new):
            parts = [_type(old), _type(new)] if is_other else ["", ""]
            places = [_place(old.sharding), _place(new.sharding)] if is_moved else ["", ""]
            was, now = (" ".join(filter(None, pair)) for pair in zip(parts, places, strict=True))
            yield f"{name} was {was} and is {now}"


def _is_given_back(call: Called, given: Any) -> bool:
    return any(
        (aval.shape, aval.dtype, aval.weak_type) == (given.shape, given.dtype, given.weak_type)
        and _is_alike(placed, given.sharding, len(given.shape))
        for aval, placed in zip(call.traced.jaxpr.out_avals, call.output_shardings, strict=True)
    )


def _is_alike(one: Any, other: Any, dims: int) -> bool:
    if one is None or other is None:
        return one is other
    return bool(one.is_equivalent_to(other, dims))


def _type(shape: Any) -> str:
    return f"{'weak ' * bool(shape.weak_type)}{shape.dtype.name}"


def _place(sharding: Any) -> str:
    if isinstance(sharding, NamedSharding):
        return spec_text(tuple((name,) if isinstance(name, str) else tuple(name or ()) for name in sharding.spec))
    return "on no mesh" if sharding is None else "on one device"
