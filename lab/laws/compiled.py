"""Compiles a family's program at one size and measures it, in a process of its own. What was measured is kept on disk
by the program's text, so that no program is compiled twice."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from math import prod
from typing import Any

import msgspec

from lab.compile import inspection, sources
from lab.compile.kept import place
from lab.compile.other_process import Stage
from lab.core import codec
from lab.core.files import write_whole
from lab.diagnosis.program import Program
from lab.diagnosis.remedy import CompilerOption, NotApplicable
from lab.laws.family import Built, Family, built
from lab.laws.measurement import Argument, Measurement, Refusal, outputs, products, sites
from lab.meshes.errors import UsageError
from lab.meshes.platforms import Platform

_FORMAT = 7


def measured(stage: Stage, family: Family, sizes: Mapping[str, int]) -> Measurement | Refusal:
    """What a compile at these sizes tells, or why there is none."""
    import time

    import jax

    from lab.compile import shapes_only
    from lab.laws import splits

    shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
    try:
        with stage(f"building {family.source} with {shown}"):
            program = built(family, sizes)
            with sources.users_code(family.source), shapes_only.callbacks_compile():
                staged = inspection.staged(program.function, program.args, program.mesh, family.source)
                traced = staged if isinstance(staged, jax.stages.Traced) else None
                lowered = staged if traced is None else _lowered(traced, program.mesh)
        more = (
            str(_FORMAT),
            str(program.target),
            str(dict(program.mesh.shape)),
            *("=".join(flag) for flag in family.flags),
        )
        kept = place("laws", lowered, *more).with_suffix(".json")
        if kept.is_file():
            with suppress(UsageError, msgspec.DecodeError, OSError):
                return codec.from_json(Measurement, msgspec.json.decode(kept.read_bytes()))
        began = time.perf_counter()
        with stage(f"compiling {family.source} with {shown}"), sources.compiler(family.source, program.target):
            found = _read(family, program, lowered, traced)
        asked = splits.asked(program.args, traced.jaxpr if traced is not None else None)
        result = replace(_of(found, program.args, lowered), splits=asked, seconds=time.perf_counter() - began)
    except (UsageError, NotApplicable) as refusal:
        return Refusal(str(refusal), tuple(getattr(refusal, "__notes__", ())))
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, codec.to_text(result))
    return result


def _read(family: Family, program: Built, lowered: Any, traced: Any) -> Program:
    until_dumped = program.target.platform in (Platform.TPU, Platform.GPU)
    given, source = (lowered, (), program.mesh, program.target), family.source
    if family.flags:
        options = tuple(CompilerOption(*flag) for flag in family.flags)
        return inspection.read_changed(*given, options, source=source, until_dumped=until_dumped)
    return inspection.read_program(*given, source=source, until_dumped=until_dumped, traced=traced)


def _lowered(traced: Any, mesh: Any) -> Any:
    import jax

    with jax.set_mesh(mesh) if isinstance(mesh, jax.sharding.Mesh) else nullcontext():
        return traced.lower()


def _of(program: Program, args: Any, lowered: Any) -> Measurement:
    ledger = program.ledger
    return Measurement(
        tuple(sites(ledger)),
        tuple(products(program)),
        tuple(_arguments(args, lowered)),
        (),
        ledger.flops,
        ledger.memory,
        ledger.notes,
        ledger.is_complete,
        outputs=tuple(outputs(program)),
    )


def _arguments(args: Any, lowered: Any) -> list[Argument]:
    """Those that the compiled program takes: JAX leaves out what nothing uses."""
    import jax

    kept = lowered._lowering.compile_args["kept_var_idx"]  # JAX tells it in no other way before it compiles.
    found = []
    for number, (path, leaf) in enumerate(jax.tree.leaves_with_path(args)):
        if number in kept:
            sharding = getattr(leaf, "sharding", None)
            local = sharding.shard_shape(leaf.shape) if sharding is not None else leaf.shape
            found.append(Argument(jax.tree_util.keystr(path), prod(local) * jax.numpy.dtype(leaf.dtype).itemsize))
    return found
