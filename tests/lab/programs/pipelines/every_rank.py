"""What a rank runs of a traced step: whole numbers are followed through it, so that it is known which branches it
takes."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from lab.hlo.names import scope

LARGEST = 1_000
"""Elements of an array that is followed: schedules and counts of layers are small."""
CALLS = {
    "jit": "jaxpr",
    "remat2": "jaxpr",
    "shard_map": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
UNCHANGED = frozenset({"pvary", "pcast", "stop_gradient", "name"})
UNKNOWN = None


@dataclass(frozen=True)
class Site:
    """A product or a collective.

    Attributes:
      amount: FLOPs, or elements.
      conditional: it stands in a branch.
    """

    primitive: str
    scope: str
    amount: int
    conditional: bool


@dataclass(frozen=True)
class Walk:
    """Attributes:
    place: of the rank, by axis; none: of one that takes all branches every time.
    """

    place: dict[str, int] | None
    executions: Counter[Site] = field(default_factory=Counter)

    def run(self, jaxpr: Any, values: Any, names: str = "", times: int = 1, inside: bool = False) -> list[Any]:
        """What is known of its outputs, from what is known of its inputs."""
        if isinstance(jaxpr, ClosedJaxpr):
            jaxpr, values = jaxpr.jaxpr, [*map(_followed, jaxpr.consts), *values]
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], values, strict=True))

        def value(at: Any) -> Any:
            return _followed(at.val) if isinstance(at, Literal) else known[at]

        for eqn in jaxpr.eqns:
            at = "/".join(filter(None, (names, str(eqn.source_info.name_stack))))
            known |= zip(eqn.outvars, self._results(eqn, [*map(value, eqn.invars)], at, times, inside), strict=True)
        return list(map(value, jaxpr.outvars))

    def _results(self, eqn: Any, values: list[Any], names: str, times: int, inside: bool) -> list[Any]:
        name, unknown = eqn.primitive.name, [UNKNOWN] * len(eqn.outvars)
        if name == "cond":
            return self._branched(eqn, values, names, times)
        if name == "scan":
            return self._scanned(eqn, values, names, times, inside)
        if name in CALLS:
            return self.run(eqn.params[CALLS[name]], values, names, times, inside)
        if name == "axis_index":
            return [np.int32(self.place[eqn.params["axis_name"]]) if self.place else UNKNOWN]
        assert name != "while", f"{names}: a loop of unknown length"
        if amount := _amount(eqn):
            self.executions[Site(name, scope(f"{names}/{name}"), amount, inside)] += times
        if amount or any(x is UNKNOWN for x in values) or any(x.aval.size > LARGEST for x in eqn.outvars):
            return unknown
        if name in UNCHANGED:
            return values
        found = eqn.primitive.bind(*values, **eqn.params)
        return list(map(_followed, found if eqn.primitive.multiple_results else [found]))

    def _branched(self, eqn: Any, values: list[Any], names: str, times: int) -> list[Any]:
        branches, (which, *values) = eqn.params["branches"], values
        if self.place:
            assert which is not UNKNOWN, f"{names}: unknown which branch is taken"
            return self.run(branches[int(which)], values, names, times, inside=True)
        for branch in branches:
            self.run(branch, values, names, times, inside=True)
        return [UNKNOWN] * len(eqn.outvars)

    def _scanned(self, eqn: Any, values: list[Any], names: str, times: int, inside: bool) -> list[Any]:
        body, length = eqn.params["jaxpr"], eqn.params["length"]
        inner = getattr(body, "jaxpr", body)
        # Releases of JAX count carried values otherwise; what is scanned has a dim more outside.
        count, kept = (_alike(*each) for each in ((eqn.outvars, inner.outvars), (eqn.invars, inner.invars)))
        consts, carried, xs = values[: kept - count], values[kept - count : kept], values[kept:]
        if not self.place:
            self.run(body, [*consts, *[UNKNOWN] * len((*carried, *xs))], names, times * length, inside)
            return [UNKNOWN] * len(eqn.outvars)
        stacked = []
        for step in sorted(range(length), reverse=eqn.params["reverse"]):
            here = [UNKNOWN if x is UNKNOWN else x[step] for x in xs]
            found = self.run(body, [*consts, *carried, *here], names, times, inside)
            carried = found[:count]
            stacked.insert(0 if eqn.params["reverse"] else step, found[count:])
        return [
            *carried,
            *[UNKNOWN if any(y is UNKNOWN for y in ys) else np.stack(ys) for ys in zip(*stacked, strict=True)],
        ]


def _alike(outside: Any, inside: Any) -> int:
    return sum(a.aval.ndim == b.aval.ndim for a, b in zip(outside, inside, strict=True))


def _followed(x: Any) -> Any:
    return np.asarray(x) if np.size(x) <= LARGEST and np.asarray(x).dtype.kind in "iub" else UNKNOWN


def _amount(eqn: Any) -> int:
    """Nothing, unless it is a product or a collective."""
    if eqn.primitive.name == "dot_general":
        ((summed, _), _) = eqn.params["dimension_numbers"]
        return 2 * int(np.prod([eqn.invars[0].aval.shape[dim] for dim in summed])) * int(eqn.outvars[0].aval.size)
    along = eqn.params.get("axes") or eqn.params.get("axis_name")
    is_collective = eqn.primitive.name not in UNCHANGED and isinstance(np.ravel(along)[0] if along else None, str)
    return max(x.aval.size for x in (*eqn.invars, *eqn.outvars)) if is_collective else 0
