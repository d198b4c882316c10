"""Lets a program of several devices run on arrays that have a shape, a type and a sharding, and no values.

What a script calls with such arrays is traced and not executed, function by function, as `jax.eval_shape` does. JAX
offers no such evaluation, so this module replaces what evaluates primitives, puts arrays on devices and runs compiled
functions, as long as it follows. It is the one place of the lab that uses private modules of JAX.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, ValuesView
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from typing import Any, NoReturn

import jax
import numpy as np
from jax._src import array, basearray, compiler, core, dispatch, dtypes, pjit, stages, xla_bridge
from jax._src import mesh as mesh_contexts
from jax._src.interpreters import mlir, pxla
from jax._src.lax import lax
from jax._src.numpy import array_methods
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from jaxlib.mlir.passmanager import PassManager

from lab.compile import sources
from lab.compile.argument_names import readable
from lab.diagnosis.remarks import Remark, heard
from lab.meshes.platforms import Platform

COMPUTED_BYTES = 2**16
"""The most that a result may have to be computed all the same: keys, counters and schedules stay values."""
STARTED = ("jax_num_cpu_devices", "jax_platforms", "jax_platform_name", "jax_cuda_visible_devices")
"""Options that name the devices; they are chosen already."""
MEMORY_STATS = dict.fromkeys(("bytes_in_use", "peak_bytes_in_use", "largest_alloc_size", "num_allocs"), 0)
"""Of devices on which nothing is allocated."""


Stage = Callable[[str], AbstractContextManager[None]]
LOWER = stages.Traced.lower
TRACED_TAKES = inspect.signature(stages.Traced.__init__).parameters
MESHES: dict[Any, Any] = {}
"""Meshes of devices that arrays have been on, by what the types of arrays say of them."""


class ShapeArray(basearray.Array):
    """An array without values.

    Attributes:
      aval: its shape and type, as JAX has them.
    """

    __array_priority__ = 100

    def __init__(self, aval: Any, placed: Sharding | Callable[[], Sharding] | None = None) -> None:
        """Args: placed: where it lies, or what finds that out; None: where its type says, or wherever it is used."""
        self._aval, self._placed = aval, placed or _by_type(aval)
        if isinstance(placed, NamedSharding):
            MESHES[placed.mesh.abstract_mesh] = placed.mesh

    aval = property(lambda self: self._aval)
    shape = property(lambda self: self.aval.shape)
    dtype = property(lambda self: self.aval.dtype)
    weak_type = property(lambda self: self.aval.weak_type)
    ndim = property(lambda self: len(self.aval.shape))
    size = property(lambda self: prod(self.aval.shape))
    committed = _committed = property(lambda self: self._where() is not None)
    is_fully_replicated = property(lambda self: self.sharding.is_fully_replicated)
    is_fully_addressable = True

    @property
    def sharding(self) -> Sharding:
        return self._where() or SingleDeviceSharding(jax.devices()[0])

    @property
    def is_split(self) -> bool:
        """Whether it lies on several devices."""
        return _is_wide(self._where())

    def _where(self) -> Sharding | None:
        if callable(self._placed):
            found = self._placed()
            # What a compiler puts on one device it leaves free to be moved.
            self._placed = found if _is_wide(found) else None
        return self._placed

    @property
    def addressable_shards(self) -> list[ShapeShard]:
        """One a device, as `jax.Array` has them; each without values, too."""
        copies = Counter[str]()  # A slice has no hash before Python 3.12.
        shards = []
        for number, (device, index) in enumerate(self.sharding.devices_indices_map(self.shape).items()):
            shards.append(ShapeShard(device, index, copies[str(index)], self.addressable_data(number)))
            copies[str(index)] += 1
        return shards

    global_shards = addressable_shards

    def addressable_data(self, index: int) -> ShapeArray:
        del index  # All parts have one shape.
        return ShapeArray(core.ShapedArray(self.sharding.shard_shape(self.shape), self.dtype))

    def devices(self) -> set[Any]:
        return self.sharding.device_set

    def block_until_ready(self) -> ShapeArray:
        return self

    def is_ready(self) -> bool:
        return True

    def is_deleted(self) -> bool:
        return False

    def delete(self) -> None:
        pass

    def copy_to_host_async(self) -> None:
        pass

    def __deepcopy__(self, _: Any) -> ShapeArray:
        return self

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"<{self.aval.str_short()} without values>"

    def __format__(self, _: str) -> str:
        return repr(self)

    def _has_none(self, *_: Any, **__: Any) -> NoReturn:
        raise sources.ValueNeeded(self.aval.str_short())

    __array__ = __bool__ = __int__ = __float__ = __index__ = __complex__ = __dlpack__ = __reduce__ = _has_none
    item = tolist = tobytes = unsafe_buffer_pointer = _has_none
    _value = property(_has_none)


@dataclass(frozen=True)
class ShapeShard:
    """What one device has of an array without values: see `jax.Shard`."""

    device: Any
    index: tuple[slice, ...]
    replica_id: int
    data: ShapeArray


ShapeArray.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
array_methods._set_array_base_attributes(ShapeArray)
core.pytype_aval_mappings[ShapeArray] = lambda value: value.aval
dtypes.canonicalize_value_handlers[ShapeArray] = lambda value: value
mlir.register_constant_handler(ShapeArray, lambda value, _: mlir.ir_constant(_unequal(value)))


def _by_type(aval: Any) -> Sharding | None:
    mesh = MESHES.get(aval.sharding.mesh)
    return None if mesh is None or mesh.empty else NamedSharding(mesh, aval.sharding.spec)


def _unequal(value: ShapeArray) -> np.ndarray:
    """What stands in a program for an array that it closes over: entries that XLA cannot simplify away."""
    entries: np.ndarray = (np.arange(value.size) * 31 % 127).astype(value.dtype).reshape(value.shape)
    return entries


@dataclass
class Called:
    """A function over several devices that a program called.

    Attributes:
      name: of the function; what `jax.pmap` makes is `pmap`.
      place: the line that called it, of the program's own: `train.py:36`.
      args: the flat arguments, as shapes with the shardings that it takes them in.
      work: multiplications of its products, and entries of all other arrays that it computes.
      is_own: of the program, and not an operation of JAX's own, as `jnp.isnan` is.
      stage: what goes on around a compilation, by its name.
      remarks, compile_s: of the compiler, once it is compiled.
    """

    name: str
    place: str
    args: tuple[jax.ShapeDtypeStruct, ...]
    work: int
    is_own: bool
    traced: Any = field(repr=False)
    stage: Stage = field(repr=False, compare=False)
    remarks: list[Remark] = field(default_factory=list, repr=False)
    compile_s: float = 0.0

    @property
    def only_makes_arrays(self) -> bool:
        """Whether it takes none that are split and multiplies none: an initialiser, and no step."""
        takes = any(_is_wide(shape.sharding) for shape in self.args)
        return not takes and not _PRODUCTS & set(_primitives(self.traced.jaxpr.jaxpr))

    @property
    def program(self) -> jax.stages.Compiled | jax.stages.Lowered:
        """Compiled where the program had to know where its results lie."""
        return self._compiled if "_compiled" in vars(self) else self._lowered

    @cached_property
    def _lowered(self) -> jax.stages.Lowered:
        with callbacks_compile():
            lowered: jax.stages.Lowered = LOWER(self.traced)
        return lowered

    @cached_property
    def _compiled(self) -> jax.stages.Compiled:
        began = time.perf_counter()
        with self.stage(f"compiling {self.name} ({self.place}), to know where its results lie"), heard(self.remarks):
            compiled = self._lowered.compile()
        self.compile_s = time.perf_counter() - began
        return compiled

    @cached_property
    def output_shardings(self) -> list[Sharding]:
        """Of the flat results, as the compiler chooses them."""
        mesh = self._mesh
        if mesh is None or mesh.devices.flat[0].platform != Platform.TPU:
            return jax.tree.leaves(self._compiled.output_shardings)
        # XLA for TPUs makes machine code for minutes before it tells; Shardy, whose choice it is, takes no time.
        return propagated(self._lowered, [aval.ndim for aval in self.traced.jaxpr.out_avals], mesh)

    @property
    def _mesh(self) -> Any:
        """The first that an argument lies on, or that the function names."""
        named = (*(shape.sharding for shape in self.args), *_placements(self.traced._params))
        meshes = [getattr(each, "mesh", each) for each in named]
        concrete = [MESHES.get(mesh) if isinstance(mesh, jax.sharding.AbstractMesh) else mesh for mesh in meshes]
        return next((mesh for mesh in concrete if isinstance(mesh, jax.sharding.Mesh) and mesh.size > 1), None)


def propagated(lowered: jax.stages.Lowered, dims: Sequence[int], mesh: Any) -> list[Sharding]:
    """Where the results of these numbers of dims lie on a mesh, as Shardy propagates shardings through a program."""
    with mlir.make_ir_context():
        module = ir.Module.parse(str(lowered.compiler_ir()))
        PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(module.operation)
        results = list(ir.ArrayAttr(ir.SymbolTable(module.operation)["main"].attributes["res_attrs"]))
        # Tokens stand before the results.
        specs = [_spec(result) for result in results[len(results) - len(dims) :]]
    return [
        NamedSharding(mesh, jax.sharding.PartitionSpec(*spec[:count])) for spec, count in zip(specs, dims, strict=True)
    ]


def _spec(result: Any) -> list[tuple[str, ...]]:
    if "sdy.sharding" not in result:
        return []
    parts = sdy.TensorShardingAttr(result["sdy.sharding"]).dimension_shardings
    return [tuple(sdy.AxisRefAttr(axis).name for axis in sdy.DimensionShardingAttr(part).axes) for part in parts]


@contextmanager
def follow(
    devices: Sequence[Any],
    usable_bytes: int | None = None,
    called: Callable[[Called], None] = lambda _: None,
    stage: Stage = lambda _: nullcontext(),
) -> Iterator[ValuesView[Called]]:
    """Inside, JAX has these devices, and computes shapes alone.

    Args:
      usable_bytes: what JAX takes of the memory of each; None on CPUs.
      called: what to do with a call; it may raise.
      stage: what goes on around the compilation of a call whose results' placement the program needs, by its name.
    Yields:
      The different calls so far, in their order.
    """
    MESHES.clear()  # Of the program before, whose devices these are not.
    following = _Following(called, stage)
    before, host = jax.config.values["jax_default_device"], jax.local_devices(backend="cpu")[0]
    run_jitted, put_one = pjit._pjit_call_impl_python, pxla.batched_device_put
    infer = pjit._infer_params

    def jitted(*args: Any, **params: Any) -> Any:
        found = following.call(args, params)
        return run_jitted(*args, **params) if found is None else (found, None, None, [])

    def compiled(self: Any, *args: Any) -> Any:
        if not any(map(_is_wide, self._out_shardings)) and not any(isinstance(each, ShapeArray) for each in args):
            return self.unsafe_call(*args)
        return [ShapeArray(aval, placed) for aval, placed in zip(self.out_avals, self._out_shardings, strict=True)]

    def inferred(*args: Any) -> Any:
        found, values = infer(*args)
        following.inferred[id(found.params["jaxpr"])] = found
        return found, values

    def put_parts(aval: Any, sharding: Sharding, *rest: Any, **named: Any) -> Any:
        is_host = sharding.device_set == {host} or sharding.device_set.isdisjoint(devices)
        return put_one(aval, sharding, *rest, **named) if is_host else _on(aval, sharding)

    def lowered(self: Any, **named: Any) -> Any:
        if _is_split(self._meta_tys_flat, self._params):
            following.recorded(tuple(map(_shape, self._meta_tys_flat)), self._params)
        return LOWER(self, **named)

    update: Any = jax.config.update
    with ExitStack() as stack:
        stack.enter_context(callbacks_compile())
        jax.config.update("jax_default_device", host)
        stack.callback(update, "jax_default_device", before)
        replaced = partial(_replaced, stack)
        stack.callback(core.trace_ctx.set_trace, core.eval_trace)
        replaced(core, eval_trace=following, check_eval_args=lambda _: None)
        replaced(pjit, _pjit_call_impl_python=jitted, _infer_params=inferred)
        replaced(stages.Traced, lower=lowered)
        replaced(pxla, batched_device_put=put_parts)
        replaced(pxla.MeshExecutable, call=compiled, create_cpp_call=lambda *_: None)
        replaced(dispatch, _batched_device_put_impl=_put(dispatch._batched_device_put_impl))
        replaced(lax, full=_filled(lax.full))
        replaced(array, jax, make_array_from_callback=_called_back, make_array_from_single_device_arrays=_joined)
        replaced(jax, xla_bridge, **_of_devices(devices))
        replaced(jax, default_backend=lambda: devices[0].platform)
        if usable_bytes is not None:
            replaced(type(devices[0]), memory_stats=lambda _: MEMORY_STATS | {"bytes_limit": usable_bytes})
        replaced(jax.distributed, initialize=lambda *_, **__: None)
        replaced(jax.config, update=lambda name, value: None if name in STARTED else update(name, value))
        core.trace_ctx.set_trace(following)
        yield following.by_program.values()


@contextmanager
def callbacks_compile() -> Iterator[None]:
    """Inside, programs that call back to the host, as `jax.debug.print` does, also compile for GPUs that only compile:
    JAX knows the platform of GPUs that it has alone, and their compiler takes no function to call."""
    known, compile_for = xla_bridge.canonicalize_platform, compiler.backend_compile_and_load

    def canonical(platform: str) -> str:
        try:
            return known(platform)
        except RuntimeError:
            if platform != Platform.GPU:
                raise
            return "cuda"

    def without_functions(backend: Any, *args: Any) -> Any:
        *rest, functions = args
        only_compiles = backend.platform == Platform.GPU and type(backend).__name__.startswith("CompileOnly")
        return compile_for(backend, *rest, [] if only_compiles else functions)

    with ExitStack() as stack:
        _replaced(stack, xla_bridge, canonicalize_platform=canonical)
        _replaced(stack, compiler, backend_compile_and_load=without_functions)
        yield


def lowered_for(traced: Any, mesh: Any) -> jax.stages.Lowered:
    """Lowered on the meshes that a function and its arguments name, and compiled for the devices of another that has as
    many."""
    devices = tuple(mesh.devices.flat)
    platform = "cuda" if devices[0].platform == Platform.GPU else devices[0].platform
    with ExitStack() as stack:
        _replaced(stack, mlir.ModuleContext, get_backend=lambda *_, **__: devices[0].client)
        lowered: jax.stages.Lowered = LOWER(traced, lowering_platforms=(platform,))
    lowering: Any = lowered._lowering
    for name in ("in_shardings", "out_shardings"):
        lowering.compile_args[name] = tuple(
            NamedSharding(mesh, each.spec) if isinstance(each, NamedSharding) else each
            for each in lowering.compile_args[name]
        )
    lowering.compile_args["backend"] = devices[0].client
    lowering._device_list = pxla._create_device_list(devices)
    return lowered


def put_module(lowered: jax.stages.Lowered, exported: Any) -> None:
    """Has a lowered call of an exported function compile to what the function was lowered to, as if it were not
    called by another."""
    with mlir.make_ir_context():
        lowering: Any = lowered._lowering
        lowering._hlo = exported.mlir_module(serialized=False)


def _replaced(stack: ExitStack, *owners: Any, **values: Any) -> None:
    """Until the stack is closed."""
    for owner in owners:
        for name, value in values.items():
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)


class _Following(core.EvalTrace):
    """Evaluates primitives: small ones of values, all others to shapes."""

    def __init__(self, called: Callable[[Called], None], stage: Stage) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.called, self.stage = called, stage
        self.by_program: dict[Any, Called] = {}
        self.inferred: dict[int, Any] = {}

    def process_primitive(self, primitive: Any, args: Any, params: Any, /) -> Any:
        if primitive is dispatch.device_put_p:
            return dispatch._batched_device_put_impl(*args, **params)
        if primitive is pjit.sharding_constraint_p and any(isinstance(each, ShapeArray) for each in args):
            return _constrained(args[0], params["sharding"])
        found = self.call(args, params) if primitive is pjit.jit_p else _shapes(primitive, args, params)
        if found is not None:
            return found
        return super().process_primitive(primitive, args, params)  # type: ignore[no-untyped-call]

    def call(self, args: Sequence[Any], params: dict[str, Any]) -> list[ShapeArray] | None:
        """What a jitted function returns; None where it is to be computed."""
        jaxpr = params["jaxpr"]
        if not _is_split(args, params):
            is_small = _bytes(jaxpr.out_avals) <= COMPUTED_BYTES and params["ctx_mesh"].empty
            if is_small and not any(isinstance(each, ShapeArray) for each in args):
                return None
            return [ShapeArray(aval, _in_force()) for aval in jaxpr.out_avals]
        call = self.recorded(tuple(map(_shape, args)), params)
        return [
            _on(aval, where) if _is_wide(where) else ShapeArray(aval, _later(call, index))
            for index, (aval, where) in enumerate(zip(jaxpr.out_avals, params["out_shardings"], strict=True))
        ]

    def recorded(self, shapes: tuple[jax.ShapeDtypeStruct, ...], params: dict[str, Any]) -> Called:
        if in_force := _in_force():
            MESHES[in_force.mesh.abstract_mesh] = in_force.mesh
        key = (id(params["jaxpr"]), tuple(map(_as_jax_knows, shapes)))
        if key not in self.by_program:
            self.by_program[key] = Called(
                "pmap" if _is_pmap(params["jaxpr"]) else params["name"],
                _place(),
                tuple(map(_placed, shapes, params["in_shardings"])),
                _work(params["jaxpr"].jaxpr),
                _is_own(params["jaxpr"]),
                _traced(shapes, _with_names(params, getattr(self.inferred.get(id(params["jaxpr"])), "in_tree", None))),
                self.stage,
            )
        self.called(self.by_program[key])
        return self.by_program[key]


def with_names(traced: Any) -> Any:
    """The same with arguments named as `lab.compile.argument_names` does."""
    known = {"fun_sourceinfo": traced._fun_sourceinfo} if "fun_sourceinfo" in TRACED_TAKES else {}
    params = _with_names(traced._params, traced._in_tree)
    return stages.Traced(traced._meta_tys_flat, params, traced._in_tree, traced.out_tree, traced._consts, **known)


def _with_names(params: dict[str, Any], tree: Any) -> dict[str, Any]:
    jaxpr = params["jaxpr"].jaxpr
    known = jaxpr.debug_info.arg_names or ()
    names = known if tree is None else readable(known, tree)
    if names == known:
        return params
    named = jaxpr.replace(debug_info=jaxpr.debug_info._replace(arg_names=names))
    return params | {"jaxpr": params["jaxpr"].replace(jaxpr=named)}


def _traced(shapes: tuple[jax.ShapeDtypeStruct, ...], params: dict[str, Any]) -> Any:
    given, returned = jax.tree.structure((shapes, {})), jax.tree.structure(list(params["jaxpr"].out_avals))
    # Releases from 0.11 on also take where the function stands, for their messages.
    known = {"fun_sourceinfo": params["name"]} if "fun_sourceinfo" in TRACED_TAKES else {}
    return stages.Traced(list(map(pjit.convert_to_metaty, shapes)), params, given, returned, [], **known)


def _shape(value: Any) -> jax.ShapeDtypeStruct:
    """Of an array, or of what JAX takes for one; only those that have no values can lie on the target's devices."""
    is_type = isinstance(value, pjit.MetaTy)
    aval = value.aval if is_type else core.typeof(value)
    placed = value.sharding if (is_type or isinstance(value, ShapeArray)) and value.committed else None
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=placed, weak_type=aval.weak_type)


def _as_jax_knows(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """`P('x')` and `P('x', None)` of a matrix are one placement, and are compiled once."""
    if not isinstance(shape.sharding, NamedSharding):
        return shape
    known: jax.ShapeDtypeStruct = shape.update(sharding=shape.sharding.update(spec=_trimmed(shape.sharding.spec)))
    return known


def _trimmed(spec: Any) -> Any:
    names = list(spec)
    while names and not names[-1]:
        names.pop()
    return spec.update(partitions=names)


def _placed(shape: jax.ShapeDtypeStruct, wanted: Any) -> jax.ShapeDtypeStruct:
    """Where the function wants it: `jax.pmap` names the mesh's axis in its own way."""
    return shape.update(sharding=wanted) if isinstance(wanted, NamedSharding) else shape


def _shapes(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Of a primitive by itself; the result lies as an argument of its shape does."""
    given = [each for each in args if isinstance(each, ShapeArray)]
    if not given and mesh_contexts.get_concrete_mesh().empty:
        return None
    found, _ = primitive.abstract_eval(*map(core.typeof, args), **params)
    placed = {each.shape: each._placed for each in given}
    otherwise = None if any(map(_is_placed, given)) else _in_force()
    results = found if primitive.multiple_results else [found]
    arrays = [ShapeArray(aval, placed.get(aval.shape) or otherwise) for aval in results]
    return arrays if primitive.multiple_results else arrays[0]


def _is_placed(value: ShapeArray) -> bool:
    return value._placed is not None


def _in_force() -> NamedSharding | None:
    """Where a result lies of which nothing says where: whole on each device of the mesh in force."""
    mesh = mesh_contexts.get_concrete_mesh()
    return None if mesh.empty else NamedSharding(mesh, jax.sharding.PartitionSpec())


def _constrained(value: ShapeArray, wanted: Any) -> ShapeArray:
    """`jax.lax.with_sharding_constraint` outside of jit, which lays an array out anew on the devices that it lies on.

    Raises:
      ValueError: JAX refuses it: the array lies on other devices.
    """
    if isinstance(wanted, NamedSharding) and isinstance(wanted.mesh, jax.sharding.AbstractMesh):
        active = mesh_contexts.get_concrete_mesh()
        mesh = getattr(value.sharding, "mesh", None) if active.empty else active
        if not isinstance(mesh, jax.sharding.Mesh):
            raise ValueError(
                "with_sharding_constraint outside of jit: the spec needs a mesh; put the array on one first, with "
                "jax.device_put, or activate it with jax.set_mesh"
            )
        wanted = NamedSharding(mesh, wanted.spec)
    elif value.committed and isinstance(wanted, Sharding) and value.sharding.device_set != wanted.device_set:
        raise ValueError(
            f"with_sharding_constraint outside of jit: the array lies on {len(value.sharding.device_set)} devices and "
            f"its sharding names {len(wanted.device_set)}; put it there first, with jax.device_put"
        )
    return _on(core.typeof(value), wanted)


def _later(call: Called, index: int) -> Callable[[], Sharding]:
    return lambda: call.output_shardings[index]


def _put(put: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def putting(*values: Any, devices: Sequence[Any], **rest: Any) -> list[Any]:
        found = []
        for index, (value, device) in enumerate(zip(values, devices, strict=True)):
            if device is None and not isinstance(value, ShapeArray):
                found += put(value, devices=[device], **{name: each[index : index + 1] for name, each in rest.items()})
            else:
                found.append(_on(core.typeof(value), _sharding(device) or getattr(value, "_placed", None)))
        return found

    return putting


def _filled(full: Callable[..., Any]) -> Callable[..., Any]:
    """`jnp.zeros_like` names a placement, and forgets it where even the scalar has no value."""

    def filled(*args: Any, sharding: Any = None, **named: Any) -> Any:
        found = full(*args, sharding=sharding, **named)
        is_abstract = isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh)
        is_forgotten = isinstance(found, ShapeArray) and _is_wide(sharding) and not is_abstract
        return _on(found.aval, sharding) if is_forgotten else found

    return filled


def _sharding(device: Any) -> Sharding | None:
    """Of what `jax.device_put` takes: a device, a sharding, a format or a memory space."""
    device = getattr(device, "sharding", device)
    return SingleDeviceSharding(device) if isinstance(device, jax.Device) else device


def _on(aval: Any, placed: Any) -> ShapeArray:
    return ShapeArray(core.update_aval_with_sharding(aval, placed) if isinstance(placed, Sharding) else aval, placed)


def array_of(value: Any) -> Any:
    """An array without values for a shape; all else as it is."""
    if not isinstance(value, jax.ShapeDtypeStruct):
        return value
    return _on(core.ShapedArray(value.shape, value.dtype, weak_type=value.weak_type), value.sharding)


def _called_back(shape: Any, sharding: Any, callback: Any, dtype: Any = None, **_: Any) -> ShapeArray:
    kind = dtype if dtype is not None else core.typeof(callback((slice(None),) * len(shape))).dtype
    return _on(core.ShapedArray(tuple(shape), dtypes.canonicalize_dtype(kind)), _sharding(sharding))


def _joined(shape: Sequence[int], sharding: Sharding, arrays: Sequence[Any], *, dtype: Any = None) -> ShapeArray:
    kind = dtype if dtype is not None else arrays[0].dtype
    return _on(core.ShapedArray(tuple(shape), dtypes.canonicalize_dtype(kind)), sharding)


def _is_split(args: Iterable[Any], params: dict[str, Any]) -> bool:
    given = any(each.is_split if isinstance(each, ShapeArray) else _is_wide(each) for each in args)
    return given or any(map(_is_wide, _placements(params)))


def _placements(params: dict[str, Any]) -> Iterator[Any]:
    """Shardings and meshes that a function and those inside it name; the mesh in force splits nothing by itself."""
    for name, value in params.items():
        if name == "ctx_mesh":
            continue
        yield from value if isinstance(value, tuple | list) else (value,)
    for jaxpr in core.jaxprs_in_params(params):
        for equation in jaxpr.eqns:
            yield from _placements(equation.params)


def _is_wide(placed: Any) -> bool:
    if isinstance(placed, pjit.MetaTy):
        return _is_wide(placed.sharding)
    if isinstance(placed, NamedSharding):
        return placed.mesh.size > 1
    if isinstance(placed, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        return not placed.empty and placed.size > 1
    return isinstance(placed, Sharding) and len(placed.device_set) > 1


def _is_own(jaxpr: Any) -> bool:
    return "/jax/_src/" not in str(jaxpr.jaxpr.debug_info.func_src_info) or _is_pmap(jaxpr)


def _is_pmap(jaxpr: Any) -> bool:
    """`jax.pmap` jits a function of its own around the program's."""
    return "/jax/_src/pmap.py" in str(jaxpr.jaxpr.debug_info.func_src_info)


_PRODUCTS = {"dot_general", "conv_general_dilated", "ragged_dot_general", "shard_map"}


def _primitives(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in core.jaxprs_in_params(equation.params):
            yield from _primitives(inner)


def _work(jaxpr: Any) -> int:
    """Loops count as often as they run where that is known."""
    total = 0
    for equation in jaxpr.eqns:
        inner = sum(map(_work, core.jaxprs_in_params(equation.params)))
        total += equation.params.get("length", 1) * inner if equation.primitive.name == "scan" else inner
        made = sum(prod(out.aval.shape) for out in equation.outvars if hasattr(out.aval, "shape"))
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            made *= prod(equation.invars[0].aval.shape[dim] for dim in contracted)
        total += made
    return int(total)


def _bytes(avals: Iterable[Any]) -> int:
    return sum(prod(aval.shape) * aval.dtype.itemsize for aval in avals if hasattr(aval, "shape"))


def _place() -> str:
    """The innermost line of the program's own."""
    frame = sys._getframe()
    while frame.f_back and not sources.is_users(frame):
        frame = frame.f_back
    return sources.line_of(frame, frame.f_lineno)


def _of_devices(devices: Sequence[Any]) -> dict[str, Callable[..., Any]]:
    """What JAX says of its devices, where it has these, of one process."""
    others = xla_bridge.devices

    def given(backend: Any = None) -> list[Any]:
        is_theirs = backend in (None, devices[0].platform, "cuda" if devices[0].platform == "gpu" else None)
        return list(devices) if is_theirs else others(backend)

    return {
        "devices": given,
        "local_devices": lambda process_index=None, backend=None, host_id=None: given(backend),
        "device_count": lambda backend=None: len(given(backend)),
        "local_device_count": lambda backend=None: len(given(backend)),
        "process_count": lambda backend=None: 1,
        "process_index": lambda backend=None: 0,
    }
