"""Flags of XLA that schedule, pipeline, combine or split what a step communicates, and leave its results alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lab.compile.xla_flags import Flag
from lab.core.ledger import Kind
from lab.diagnosis.remedy import CompilerOption
from lab.frontier.intervention import Intervention, Lever
from lab.meshes.platforms import Platform

MEGABYTES = (0, 8, 128, 1024)
"""Of combined transfers: none, less than XLA combines by default (30 MB), and more."""
_MIB = 1 << 20
_EVERY = frozenset(Kind)


@dataclass(frozen=True)
class Candidate:
    """Values of some flags that are set together.

    Attributes:
      needs: it does nothing to a step without transfers of one of these kinds.
      label: for people, of several.
    """

    options: tuple[tuple[str, str], ...]
    needs: frozenset[Kind] = _EVERY
    label: str = ""


def _on(*names: str, needs: Collection[Kind] = _EVERY, label: str = "") -> Candidate:
    return Candidate(tuple((name, "True") for name in names), frozenset(needs), label)


def _set(name: str, value: str, needs: Collection[Kind] = _EVERY) -> Candidate:
    return Candidate(((name, value),), frozenset(needs))


_GATHER, _SCATTER, _REDUCE = Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE
_PERMUTE, _ALL_TO_ALL = Kind.COLLECTIVE_PERMUTE, Kind.ALL_TO_ALL
GPU = (
    _on("xla_gpu_enable_latency_hiding_scheduler"),
    _on("xla_gpu_enable_while_loop_double_buffering"),
    _set("xla_gpu_enable_while_loop_unrolling", "WHILE_LOOP_UNROLLING_NO_UNROLL"),
    _on("xla_gpu_enable_pipelined_all_gather", needs=[_GATHER]),
    _on("xla_gpu_enable_pipelined_all_reduce", needs=[_REDUCE]),
    _set("xla_gpu_enable_pipelined_reduce_scatter", "False", [_SCATTER]),
    _on(
        "xla_gpu_enable_pipelined_all_gather",
        "xla_gpu_enable_pipelined_all_reduce",
        "xla_gpu_enable_pipelined_reduce_scatter",
        "xla_gpu_enable_pipelined_p2p",
        label="xla_gpu_enable_pipelined_... of every kind",
    ),
    _on("xla_gpu_enable_pipelined_p2p", needs=[_PERMUTE, Kind.SEND_RECV]),
    _on("xla_gpu_enable_while_loop_reduce_scatter_code_motion", needs=[_SCATTER, _REDUCE]),
    _on("xla_gpu_enable_all_gather_combine_by_dim", needs=[_GATHER]),
    _on("xla_gpu_enable_reduce_scatter_combine_by_dim", needs=[_SCATTER]),
    _on("xla_gpu_experimental_enable_heuristic_collective_combining"),
    _set("xla_gpu_experimental_parallel_collective_overlap_limit", "4"),
    _on("xla_gpu_experimental_collective_start_as_early_as_possible"),
    _set("xla_gpu_enable_analytical_sol_latency_estimator", "False"),
    _set("xla_gpu_threshold_for_windowed_einsum_mib", "0", [_GATHER, _SCATTER, _REDUCE]),
    _on("xla_gpu_experimental_enable_alltoall_windowed_einsum", needs=[_ALL_TO_ALL]),
    _set("xla_gpu_collective_permute_decomposer_threshold", "0", [_PERMUTE]),
    _set(
        "xla_gpu_experimental_pipeline_parallelism_opt_level",
        "PIPELINE_PARALLELISM_OPT_LEVEL_ENABLE",
        [_PERMUTE, Kind.SEND_RECV],
    ),
    _set("xla_gpu_memory_limit_slop_factor", "80"),
)
TPU = (
    _set("xla_tpu_enable_latency_hiding_scheduler", "False"),
    _set("xla_tpu_enable_async_collective_fusion", "False"),
    _on("xla_tpu_overlap_compute_collective_tc"),
    _on("xla_tpu_aggressive_opt_barrier_removal"),
    _set("xla_tpu_scoped_vmem_limit_kib", "65536"),
    _on("xla_tpu_enable_data_parallel_all_reduce_opt", needs=[_REDUCE]),
    _set("xla_jf_spmd_threshold_for_windowed_einsum_mib", "0", [_GATHER, _SCATTER, _REDUCE]),
    _on("xla_tpu_enable_sparse_core_collective_offload_all_gather", needs=[_GATHER]),
    _on("xla_tpu_enable_sparse_core_collective_offload_reduce_scatter", needs=[_SCATTER]),
    _on("xla_tpu_enable_sparse_core_collective_offload_all_reduce", needs=[_REDUCE]),
)
CPU = (
    Candidate((("xla_cpu_enable_concurrency_optimized_scheduler", "False"),)),
    _set("xla_disable_hlo_passes", "cpu-all-reduce-combiner", [_REDUCE]),
)
_THRESHOLDS = {kind: f"xla_gpu_{kind}_combine_threshold_bytes" for kind in (_GATHER, _SCATTER, _REDUCE, _PERMUTE)}
_BY_PLATFORM = {Platform.GPU: GPU, Platform.TPU: TPU, Platform.CPU: CPU}


def interventions(platform: Platform, kinds: Collection[Kind], known: Mapping[str, Flag]) -> Iterator[Intervention]:
    """Those that could do something to a step with transfers of these kinds, and that change a default.

    Args:
      known: flags of the installed release; those of libtpu it does not tell.
    """
    for one in _BY_PLATFORM.get(platform, ()):
        if not one.needs.isdisjoint(kinds) and _is_news(one, known):
            yield Intervention(Lever.FLAG, tuple(CompilerOption(*option) for option in one.options), label=one.label)
    if platform == Platform.GPU:
        here = [name for kind, name in _THRESHOLDS.items() if kind in kinds and name in known]
        for megabytes in MEGABYTES:
            # All kinds alike, and each kind alone.
            for names in (here, *([name] for name in here if len(here) > 1)):
                if names:
                    options = tuple(CompilerOption(name, str(megabytes * _MIB)) for name in names)
                    yield Intervention(Lever.BUCKETS, options, label=_bucket(names, megabytes))


def _bucket(names: Sequence[str], megabytes: int) -> str:
    """`all_gathers combined up to 128 MiB`."""
    kinds = [f"{kind}s" for kind, name in _THRESHOLDS.items() if name in names]
    what = kinds[0] if len(kinds) == 1 else "every kind"
    return f"{what} combined up to {megabytes} MiB" if megabytes else f"{what} not combined"


def _is_news(one: Candidate, known: Mapping[str, Flag]) -> bool:
    named = {name: value for name, value in one.options if not name.startswith(("xla_tpu", "xla_jf"))}
    return set(named) <= set(known) and (
        len(named) < len(one.options) or any(known[name].default != value for name, value in named.items())
    )
