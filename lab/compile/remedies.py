"""Changes of a program, as findings advise them, made to what JAX has traced: the changed program, lowered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from lab.compile import equations
from lab.compile.equations import Edit, Equation
from lab.compile.explicit_types import pinned
from lab.compile.narrow_sends import constraints_of_narrow, sent_narrow
from lab.core.dtypes import DTYPES
from lab.diagnosis import remedy as changes
from lab.diagnosis.program import WRITTEN
from lab.diagnosis.remedy import Change, NotApplicable
from lab.diagnosis.specs import Dims, most_alike

_OVER_MATRICES = frozenset({"cholesky", "eigh", "eig", "qr", "geqrf", "svd", "lu", "schur"})
_ALONG = {"sort": "dimension", **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), "axis")}
_LAYOUT = frozenset(("reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "copy", "pvary", "pcast"))
LARGE = 1 << 18
"""Smaller constants are masks and tables of positions."""


@dataclass
class _Program:
    """A traced program while it is changed.

    Attributes:
      args: its flat arguments, as shapes with shardings; `names` are JAX's, `results` those of its results.
      pins: constraints on arguments.
      edits: what stands in place of equations.
    """

    jaxpr: Any
    mesh: Mesh
    names: tuple[str, ...]
    results: tuple[str, ...]
    args: list[jax.ShapeDtypeStruct]
    into: list[Any]
    out: list[Any]
    donated: tuple[int, ...]
    params: dict[str, Any]
    pins: dict[int, NamedSharding] = field(default_factory=dict)
    edits: dict[int, Edit] = field(default_factory=dict)
    passed: dict[int, jax.ShapeDtypeStruct] = field(default_factory=dict)
    is_as_traced: bool = True

    def placed(self, dims: Dims) -> NamedSharding:
        return NamedSharding(self.mesh, _spec(dims))

    def number(self, name: str) -> int:
        if name not in self.names:
            raise NotApplicable(f"no argument is named {name}")
        return self.names.index(name)

    def found(self, op_name: str) -> list[Equation]:
        if not op_name:
            raise NotApplicable("the compiled text does not name the operation")
        at = equations.named(self.jaxpr.jaxpr, op_name)
        if not at:
            raise NotApplicable(f"no equation of the traced program is named {op_name}")
        return at

    def found_alike(self, op_name: str) -> list[Equation]:
        """Raises NotApplicable where several lines of the program make equations of that name: what is known of one
        need not be true of the others."""
        at = self.found(op_name)
        if len({str(each.equation.source_info.traceback) for each in at}) > 1:
            raise NotApplicable("operations on several lines have its name, and the compiled text does not tell which")
        return at

    def edit(self, at: Sequence[Equation], edit: Edit) -> None:
        self.edits |= {id(each.equation): edit for each in at}


def changed(stage: Any, mesh: Any, remedy: Sequence[Change]) -> tuple[jax.stages.Lowered, Any, dict[str, str | bool]]:
    """The changed program, its mesh, and the options that it is compiled with.

    Args:
      stage: what `jax.jit(f).trace(*args)` gives; of a Lowered only the options can be changed.
    Raises:
      NotApplicable: there is nothing in it that a change could be made to.
    """
    options: dict[str, str | bool] = {
        change.name: change.value for change in remedy if isinstance(change, changes.CompilerOption)
    }
    others = [change for change in remedy if not isinstance(change, changes.CompilerOption)]
    if options and not others:
        if isinstance(stage, jax.stages.Lowered):
            return stage, mesh, options
        if isinstance(stage, jax.stages.Traced):
            with jax.set_mesh(mesh) if isinstance(mesh, Mesh) else nullcontext():
                return stage.lower(), mesh, options
    if not isinstance(stage, jax.stages.Traced):
        raise NotApplicable("it was lowered before; give the function and its arguments")
    if not isinstance(mesh, Mesh):
        raise NotApplicable("its arguments lie on no mesh of devices")
    program, before = _taken(stage, mesh), _taken(stage, mesh)
    for change in others:
        _MAKERS[type(change)](program, change)
    if program == before and not options:
        raise NotApplicable("the program has that already")
    # The mesh in force places arguments without a sharding, and gives meaning to a bare PartitionSpec.
    keys = nullcontext() if program.is_as_traced else jax.threefry_partitionable(True)
    with jax.set_mesh(program.mesh), keys:
        return _lowered(program), program.mesh, options


def _taken(traced: Any, mesh: Mesh) -> _Program:
    params, metas = traced._params, traced._meta_tys_flat
    jaxpr = traced.jaxpr
    return _Program(
        jaxpr,
        mesh,
        tuple(jaxpr.jaxpr.debug_info.arg_names or ()),
        tuple(jaxpr.jaxpr.debug_info.result_paths or ()),
        [_shape(meta.aval, meta.sharding) for meta in metas],
        list(map(_named, params["in_shardings"])),
        list(map(_named, params["out_shardings"])),
        tuple(number for number, is_given_up in enumerate(params["donated_invars"]) if is_given_up),
        params,
    )


def _named(sharding: Any) -> Any:
    return sharding if isinstance(sharding, jax.sharding.Sharding) else None


def _shape(aval: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    where = sharding if isinstance(sharding, NamedSharding) else None
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=where, weak_type=aval.weak_type)


def _lowered(program: _Program) -> jax.stages.Lowered:
    jaxpr, passed = program.jaxpr, program.passed

    def flat(*args: Any) -> list[Any]:
        own, more = args[: len(program.args)], dict(zip(passed, args[len(program.args) :], strict=True))
        given = [pinned(arg, program.pins[number]) if number in program.pins else arg for number, arg in enumerate(own)]
        consts = [more.get(number, const) for number, const in enumerate(jaxpr.consts)]
        return equations.evaluated(jaxpr.jaxpr, consts, given, program.edits, program.is_as_traced)

    flat.__name__ = flat.__qualname__ = program.params["name"]
    jitted = jax.jit(
        flat,
        in_shardings=(*program.into, *(None for _ in passed)),
        out_shardings=program.out,
        donate_argnums=program.donated,
        keep_unused=program.params.get("keep_unused", False),
        compiler_options=dict(program.params.get("compiler_options_kvs", ())) or None,
    )
    lowered: jax.stages.Lowered = jitted.trace(*program.args, *passed.values()).lower()
    return lowered


def _spec(dims: Dims) -> P:
    return P(*(None if not names else names[0] if len(names) == 1 else names for names in dims))


def _shard_argument(program: _Program, change: changes.ShardArgument) -> None:
    number = program.number(change.name)
    placed, arg = program.placed(change.dims), program.args[number]
    _check_divides(arg.shape, change.dims, program.mesh)
    program.args[number] = jax.ShapeDtypeStruct(arg.shape, arg.dtype, sharding=placed, weak_type=arg.weak_type)
    program.into[number] = placed if program.into[number] is not None else None


def _check_divides(shape: Sequence[int], dims: Dims, mesh: Mesh) -> None:
    for size, names in zip(shape, dims, strict=False):
        if size % (parts := prod(mesh.shape[name] for name in names)):
            raise NotApplicable(f"a dim of {size} is no multiple of {parts}")


def _pin_argument(program: _Program, change: changes.PinArgument) -> None:
    program.pins[program.number(change.name)] = program.placed(change.dims)


def _shard_result(program: _Program, change: changes.ShardResult) -> None:
    if change.number >= len(program.out):
        raise NotApplicable(f"it has no result {change.number}")
    _check_divides(program.jaxpr.out_avals[change.number].shape, change.dims, program.mesh)
    program.out[change.number] = program.placed(change.dims)


def _shard_results_alike(program: _Program, change: changes.ShardResultsAlike) -> None:
    del change
    for number, result in enumerate(program.jaxpr.out_avals):
        split = [
            at
            for at, arg in enumerate(program.args)
            if arg.shape == result.shape and arg.sharding and not arg.sharding.is_fully_replicated
        ]
        placed = program.out[number]
        if placed is None or placed.is_fully_replicated:
            _place_like(program, number, split)


def _keep_donated(program: _Program, change: changes.KeepDonated) -> None:
    del change
    for number, result in enumerate(program.jaxpr.out_avals):
        given_up = [
            at
            for at in program.donated
            if (program.args[at].shape, program.args[at].dtype) == (result.shape, result.dtype)
        ]
        if program.out[number] not in [program.args[at].sharding for at in given_up]:
            _place_like(program, number, given_up)


def _place_like(program: _Program, number: int, arguments: Sequence[int]) -> None:
    """A result like the argument whose name ends alike; as it is where there is none."""
    if arguments:
        path = program.results[number] if number < len(program.results) else ""
        twin = program.args[arguments[most_alike(path, [program.names[at] for at in arguments])]]
        program.out[number] = twin.sharding or program.out[number]


def _pin_operand(program: _Program, change: changes.PinOperand) -> None:
    placed, number = program.placed(change.dims), change.operand

    def edit(eqn: Any, operands: Sequence[Any]) -> list[Any]:
        pin = partial(pinned, placed=placed)
        given = [pin(each) if at == number else each for at, each in enumerate(operands)]
        results = equations.bound(eqn, given)
        return list(results) if number is not None else [pin(results[0]), *results[1:]]

    found = program.found(change.equation)
    alike = [at for at in found if change.takes in ((), *(v.aval.shape for v in at.equation.invars))]
    if not alike:
        raise NotApplicable(f"no {found[0].primitive} there takes an array of shape {change.takes}")
    program.edit(alike, edit)


def _constraints(program: _Program, op_name: str) -> list[Equation]:
    every = [at for at in equations.equations(program.jaxpr.jaxpr) if at.primitive in equations.CONSTRAINTS]
    if not op_name and len(every) == 1:
        return every
    if op_name in program.names:  # Newer XLA names what it moves of an argument after that.
        argument = program.jaxpr.jaxpr.invars[program.names.index(op_name)]
        if at := equations.constraint_on(program.jaxpr.jaxpr, [argument]):
            return [at]
    found = [at for each in program.found(op_name) if (at := equations.constraint_at(each))]
    if not found:
        raise NotApplicable("no sharding constraint stands there")
    return found


def _pin_before(program: _Program, change: changes.PinBefore) -> None:
    def edit(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        (x,) = operands
        for dims in change.steps:
            x = pinned(x, program.placed(dims))
        return equations.bound(eqn, [x])

    program.edit(_constraints(program, change.equation), edit)


def _pin_instead(program: _Program, change: changes.PinInstead) -> None:
    program.edit(
        _constraints(program, change.equation),
        lambda _, operands: [pinned(operands[0], program.placed(change.dims))],
    )


def _free_unnamed(program: _Program, change: changes.FreeUnnamed) -> None:
    def edit(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        if "sharding" not in eqn.params:
            raise NotApplicable("axes of type Explicit leave no dim to the compiler")
        spec = getattr(eqn.params["sharding"], "spec", None)
        if spec is None:
            raise NotApplicable("the constraint has no PartitionSpec")
        names = [*spec, *(None for _ in range(len(operands[0].shape) - len(spec)))]
        if not any(names):
            return operands
        free = P(*(P.UNCONSTRAINED if name is None else name for name in names))
        return [pinned(operands[0], NamedSharding(program.mesh, free))]

    program.edit(_constraints(program, change.equation), edit)


def _drop_constraint(program: _Program, change: changes.DropConstraint) -> None:
    program.edit(_constraints(program, change.equation), lambda _, operands: operands)


def _on_each_device(program: _Program, change: changes.OnEachDevice) -> None:
    def edit(eqn: Any, operands: Sequence[Any]) -> list[Any]:
        _check_apart(eqn, change.dims)
        is_solve = eqn.primitive.name == "triangular_solve"

        def alike(shape: Sequence[int], is_matrix: bool = False) -> P:
            dims = change.dims[: len(shape)]
            return _spec((*dims[:-2], (), ()) if is_matrix else dims)

        def body(*parts: Any) -> tuple[Any, ...]:
            return tuple(equations.bound(eqn, parts))

        mapped = jax.shard_map(
            body,
            mesh=program.mesh,
            in_specs=tuple(alike(each.shape, is_solve and not at) for at, each in enumerate(operands)),
            out_specs=tuple(alike(v.aval.shape) for v in eqn.outvars),
            check_vma=False,
        )
        return list(mapped(*operands))

    program.edit(program.found(change.equation), edit)


def _check_apart(eqn: Any, dims: Dims) -> None:
    """That an operation works on each row of the split dims by itself."""
    name, rank, params = eqn.primitive.name, len(eqn.invars[0].aval.shape), eqn.params
    if name == "fft":
        mixed = range(rank - len(params["fft_lengths"]), rank)
    elif name == "top_k":
        mixed = range(rank - 1, rank)
    elif name in _OVER_MATRICES:
        mixed = range(rank - 2, rank)
    elif name == "triangular_solve":  # Each column of the right-hand side by itself, or each row.
        at = rank - 2 if params["left_side"] else rank - 1
        mixed = range(at, at + 1)
    elif name in _ALONG:
        mixed = range(params[_ALONG[name]], params[_ALONG[name]] + 1)
    else:
        raise NotApplicable(f"which dims {name} mixes is not known")
    split = {dim for dim, names in enumerate(dims) if names}
    if split & set(mixed):
        raise NotApplicable(f"{name} mixes a dim that is split")


def _through_indices(program: _Program, change: changes.ThroughIndices) -> None:
    program.edit(program.found(change.equation), _by_indices)


def _by_indices(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    name, x = eqn.primitive.name, operands[0]
    if name == "dynamic_slice":
        sizes = eqn.params["slice_sizes"]
        return [x[_indices(x.shape, operands[1:], sizes)]]
    if name == "dynamic_update_slice":
        return [x.at[_indices(x.shape, operands[2:], operands[1].shape)].set(operands[1])]
    if name == "slice" and not eqn.params["strides"]:
        starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
        return [x[_indices(x.shape, starts, [b - a for a, b in zip(starts, limits, strict=True)])]]
    if name in ("scatter", "scatter-add") and (written := _window(eqn, operands)):
        block = x.at[written[0]]
        return [block.set(written[1]) if name == "scatter" else block.add(written[1])]
    raise NotApplicable(f"{name} reads or writes more than one block")


def _indices(shape: Sequence[int], starts: Sequence[Any], sizes: Sequence[int]) -> tuple[Any, ...]:
    """For each dim all of it, or the numbers of its rows."""
    return tuple(
        slice(None) if size == whole else jnp.clip(start, 0, whole - size) + jnp.arange(size)
        for whole, start, size in zip(shape, starts, sizes, strict=True)
    )


def _window(eqn: Any, operands: Sequence[Any]) -> tuple[tuple[Any, ...], Any] | None:
    """Of a scatter that writes one block: its indices, and what it writes."""
    x, start, update = operands
    numbers = eqn.params["dimension_numbers"]
    if len(start.shape) != 1 or len(numbers.scatter_dims_to_operand_dims) != 1:
        return None
    at = numbers.scatter_dims_to_operand_dims[0]
    block = jnp.expand_dims(update, numbers.inserted_window_dims)
    sizes = [size if dim == at else whole for dim, (size, whole) in enumerate(zip(block.shape, x.shape, strict=True))]
    if tuple(sizes) != block.shape:
        return None
    starts = [start[0] if dim == at else 0 for dim in range(len(x.shape))]
    return _indices(x.shape, starts, sizes), block


def _axes_of(eqn: Any) -> tuple[Any, ...]:
    if eqn.params.get("axis_index_groups") is not None:
        raise NotApplicable("the reduction is over groups of its own")
    return tuple(eqn.params["axes"])


def _reduce_over_less(program: _Program, change: changes.ReduceOverLess) -> None:
    def edit(eqn: Any, operands: Sequence[Any]) -> list[Any]:
        rest = tuple(axis for axis in _axes_of(eqn) if axis not in change.axes)
        factor = prod(jax.lax.axis_size(axis) for axis in change.axes)
        summed = equations.bound(eqn.replace(params={**eqn.params, "axes": rest}), operands) if rest else operands
        return [x * factor for x in summed]

    at = program.found(change.equation)
    program.edit(at if len(at) == 1 else _of_alike(program, at, change.axes), edit)


def _of_alike(program: _Program, at: Sequence[Equation], axes: Sequence[str]) -> list[Equation]:
    """Of several sums of one name, those whose operands are the same on all devices along the axes: the others are
    needed."""
    alike = [each for each in at if equations.operands_alike(program.jaxpr.jaxpr, each, axes)]
    if not alike:
        raise NotApplicable("several sums have its name, and the traced program does not tell which is needless")
    return alike


def _scatter(program: _Program, change: changes.Scatter) -> None:
    """The slices that devices take of the sum then are what the scatter gives."""
    for at in program.found_alike(change.equation):
        cuts = _cuts_of(at)
        total = at.equation.outvars[0].aval.shape
        kept = {eqn.params["slice_sizes"] for eqn in cuts}
        if len(kept) != 1:
            raise NotApplicable("more is done with the sum than to take one slice of it")
        dims = [dim for dim, (part, whole) in enumerate(zip(*kept, total, strict=True)) if part != whole]
        if len(dims) != 1:
            raise NotApplicable("what each device keeps of the sum is a slice of several dims")
        parts: list[Any] = []

        def scattered(eqn: Any, operands: Sequence[Any], parts: list[Any] = parts, dim: int = dims[0]) -> Sequence[Any]:
            parts[:] = [jax.lax.psum_scatter(operands[0], _axes_of(eqn), scatter_dimension=dim, tiled=True)]
            return operands

        program.edit([at], scattered)
        program.edit([Equation("", eqn, at.inside) for eqn in cuts], _that_gives(parts))


def _that_gives(parts: list[Any]) -> Edit:
    return lambda eqn, operands: parts


def _cuts_of(at: Equation) -> list[Any]:
    """The slices of a value; none where something else is done with it."""
    held, cuts = set(map(id, at.equation.outvars)), []
    for eqn in at.inside.eqns:
        if any(id(v) in held for v in eqn.invars):
            if eqn.primitive.name == "dynamic_slice":
                cuts.append(eqn)
            elif eqn.primitive.name in ("pvary", "copy"):
                held |= set(map(id, eqn.outvars))
            else:
                return []
    return [] if any(id(v) in held for v in at.inside.outvars) else cuts


def _gather(program: _Program, change: changes.Gather) -> None:
    """The part is what is written into zeros before the sum."""
    for at in program.found_alike(change.equation):
        made = {id(v): eqn for eqn in at.inside.eqns for v in eqn.outvars}
        written = made.get(id(at.equation.invars[0]))
        if written is None or written.primitive.name != "dynamic_update_slice":
            raise NotApplicable("no update of zeros stands before the sum")
        parts: list[Any] = []

        def kept(eqn: Any, operands: Sequence[Any], parts: list[Any] = parts) -> Sequence[Any]:
            parts[:] = [operands[1]]
            return operands[:1]

        def gathered(eqn: Any, operands: Sequence[Any], parts: list[Any] = parts) -> list[Any]:
            whole, part = operands[0].shape, parts[0]
            dims = [dim for dim, (a, b) in enumerate(zip(part.shape, whole, strict=True)) if a != b]
            if len(dims) != 1:
                raise NotApplicable("the parts lie along several dims")
            return [jax.lax.all_gather(part, _axes_of(eqn), axis=dims[0], tiled=True)]

        program.edit([Equation("", written, at.inside)], kept)
        program.edit([at], gathered)


def _cast_after(program: _Program, change: changes.CastAfter) -> None:
    for at in program.found(change.equation):
        made = {id(v): eqn for eqn in at.inside.eqns for v in eqn.outvars}
        cast = made.get(id(at.equation.invars[0]))
        if cast is None or cast.primitive.name != "convert_element_type" or len(at.equation.invars) != 1:
            raise NotApplicable("no cast stands before it")
        narrow: list[Any] = []

        def kept(eqn: Any, operands: Sequence[Any], narrow: list[Any] = narrow) -> list[Any]:
            narrow[:] = operands
            return list(equations.bound(eqn, operands))

        def moved(eqn: Any, operands: Sequence[Any], narrow: list[Any] = narrow) -> list[Any]:
            return [x.astype(operands[0].dtype) for x in equations.bound(eqn, narrow)]

        program.edit([Equation("", cast, at.inside)], kept)
        program.edit([at], moved)


def _cast_before(program: _Program, change: changes.CastBefore) -> None:
    def edit(eqn: Any, operands: Sequence[Any]) -> list[Any]:
        narrow = equations.bound(eqn, [x.astype(DTYPES[change.dtype][0]) for x in operands])
        return [x.astype(v.aval.dtype) for x, v in zip(narrow, eqn.outvars, strict=True)]

    at = program.found(change.equation)
    # Others of its name may be needed as wide as they are.
    program.edit(at if len(at) == 1 else _cast_alone(at, change.dtype), edit)


def _cast_alone(at: Sequence[Equation], dtype: str) -> list[Equation]:
    """Of several equations of one name, those whose result is laid out anew and cast to this dtype, and no more."""
    found = [each for each in at if _is_cast_alone(each, DTYPES[dtype][0])]
    if not found:
        raise NotApplicable(f"several operations have its name, and the traced program casts none of them to {dtype}")
    return found


def _is_cast_alone(at: Equation, dtype: str) -> bool:
    held = set(map(id, at.equation.outvars))
    for eqn in at.inside.eqns:
        if any(id(v) in held for v in eqn.invars):
            if eqn.primitive.name in _LAYOUT:
                held |= set(map(id, eqn.outvars))
            elif eqn.primitive.name != "convert_element_type" or eqn.params["new_dtype"] != dtype:
                return False
    return not any(id(v) in held for v in at.inside.outvars)


def _send_narrow(program: _Program, change: changes.SendNarrow) -> None:
    jaxpr = program.jaxpr.jaxpr
    found = equations.named(jaxpr, change.equation)
    at = [each for each in found if each.primitive in WRITTEN]
    if not found and len(alone := [*constraints_of_narrow(jaxpr)]) == 1:  # Under a name of the compiler's own.
        at = alone
    at, refusals = at or _constraints(program, change.equation), []
    for each in at:
        try:
            edits = [*sent_narrow(each, program.placed(change.dims) if change.dims else None)]
        except NotApplicable as why:
            refusals.append(why)  # Of several of its name some may be wide.
            continue
        for equation, edit in edits:
            program.edit([equation], edit)
    if len(refusals) == len(at):
        raise refusals[0]


def _keep_large_side(program: _Program, change: changes.KeepLargeSide) -> None:
    def edit(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        contracted, batch = eqn.params["dimension_numbers"]
        large = max((0, 1), key=lambda side: operands[side].size)
        given = list(operands)
        for side in (0, 1):
            dims: list[tuple[str, ...]] = [() for _ in operands[side].shape]
            if change.is_summed:
                dims[contracted[side][0]] = change.axes
            if change.is_summed or side != large:
                given[side] = pinned(given[side], program.placed(tuple(dims)))
        if change.is_summed:
            return equations.bound(eqn, given)
        free = [
            [at for at in range(len(operands[side].shape)) if at not in (*contracted[side], *batch[side])]
            for side in (0, 1)
        ]
        at = len(batch[0]) + (len(free[0]) if large else 0)
        split = tuple(change.axes if dim == at else () for dim in range(len(eqn.outvars[0].aval.shape)))
        return [pinned(equations.bound(eqn, given)[0], program.placed(split))]

    program.edit(program.found(change.equation), edit)


def _donate(program: _Program, change: changes.Donate) -> None:
    results = list(program.jaxpr.out_avals)
    for number, arg in enumerate(program.args):
        if change.names and program.names[number] not in change.names:
            continue
        taken = next((one for one in results if (one.shape, one.dtype) == (arg.shape, arg.dtype)), None)
        if taken is not None and number not in program.donated:
            results.remove(taken)
            program.donated = (*program.donated, number)
    if len(results) == len(program.jaxpr.out_avals):
        raise NotApplicable("no result has the shape and dtype of an argument that is not donated yet")


def _pass_constants(program: _Program, change: changes.PassConstants) -> None:
    size = program.mesh.shape[change.axis]
    for number, const in enumerate(program.jaxpr.consts):
        if const.nbytes >= LARGE:
            dim = next((at for at, whole in enumerate(const.shape) if whole % size == 0), None)
            dims: Dims = () if dim is None else (*((),) * dim, (change.axis,))
            program.passed[number] = jax.ShapeDtypeStruct(const.shape, const.dtype, sharding=program.placed(dims))
    if not program.passed:
        raise NotApplicable("the traced program closes over no such array")


def _order_devices(program: _Program, change: changes.OrderDevices) -> None:
    before = program.mesh
    devices = np.array(before.devices.flat)[list(change.order)].reshape(before.devices.shape)
    after = Mesh(devices, before.axis_names, axis_types=before.axis_types)

    def moved(value: Any) -> Any:
        if isinstance(value, NamedSharding) and value.mesh == before:
            return NamedSharding(after, value.spec, memory_kind=value.memory_kind)
        return after if isinstance(value, Mesh) and value == before else value

    program.mesh = after
    program.jaxpr = equations.replaced(program.jaxpr, moved)
    program.args = [
        jax.ShapeDtypeStruct(arg.shape, arg.dtype, sharding=moved(arg.sharding), weak_type=arg.weak_type)
        for arg in program.args
    ]
    program.into, program.out = list(map(moved, program.into)), list(map(moved, program.out))


def _unroll_scans(program: _Program, change: changes.UnrollScans) -> None:
    at = [
        each
        for each in equations.scans(program.jaxpr.jaxpr, change.depth)
        if each.equation.params["length"] > each.equation.params["unroll"] < change.times
    ]
    if not at:
        raise NotApplicable("it has no such jax.lax.scan")

    def edit(eqn: Any, operands: Sequence[Any]) -> Any:
        return eqn.replace(params={**eqn.params, "unroll": change.times})

    program.edit(at, edit)


def _partitionable_keys(program: _Program, change: changes.PartitionableKeys) -> None:
    del change
    program.is_as_traced = False


_MAKERS: dict[type, Callable[[_Program, Any], None]] = {
    changes.ShardArgument: _shard_argument,
    changes.PinArgument: _pin_argument,
    changes.ShardResult: _shard_result,
    changes.ShardResultsAlike: _shard_results_alike,
    changes.KeepDonated: _keep_donated,
    changes.PinOperand: _pin_operand,
    changes.PinBefore: _pin_before,
    changes.PinInstead: _pin_instead,
    changes.FreeUnnamed: _free_unnamed,
    changes.DropConstraint: _drop_constraint,
    changes.OnEachDevice: _on_each_device,
    changes.ThroughIndices: _through_indices,
    changes.ReduceOverLess: _reduce_over_less,
    changes.Scatter: _scatter,
    changes.Gather: _gather,
    changes.CastAfter: _cast_after,
    changes.CastBefore: _cast_before,
    changes.SendNarrow: _send_narrow,
    changes.KeepLargeSide: _keep_large_side,
    changes.Donate: _donate,
    changes.PassConstants: _pass_constants,
    changes.OrderDevices: _order_devices,
    changes.UnrollScans: _unroll_scans,
    changes.PartitionableKeys: _partitionable_keys,
}
