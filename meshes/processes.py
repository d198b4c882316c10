"""The processes of one program, as JAX's own runtime finds them: Open MPI, SLURM, Kubernetes, TPU pods, plain
addresses. JAX is imported where there is a sign of several, not before."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from lab.meshes.errors import UsageError, one_line

COORDINATOR, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
"""Plain addresses. Of these `jax.distributed.initialize` itself reads the first alone."""
_SIGNS = (
    {"OMPI_MCA_orte_hnp_uri"},
    {"SLURM_STEP_NODELIST", "SLURM_PROCID"},
    {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"},
)
"""Variables without which JAX finds no several processes, or finds them by asking a metadata server."""
_WORKERS = "TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES"
"""Lists of a pod's workers; of one worker alone, which the lab itself names for TPUs that only compile, no sign."""
LONGEST_START_S = 300


@dataclass(frozen=True)
class Processes:
    """Attributes:
    coordinator: host and port of process 0.
    index: of this process, from 0.
    """

    coordinator: str
    count: int
    index: int


def found() -> Processes | None:
    """The processes of which this one is, or is to be, one; None where it is alone.

    Raises:
      UsageError: variables that say so are no numbers, or JAX cannot tell from them.
    """
    if {COORDINATOR, COUNT, INDEX} <= os.environ.keys():
        return _several(os.environ[COORDINATOR], _number(COUNT), _number(INDEX))
    is_pod = any("," in os.environ.get(workers, "") for workers in _WORKERS)
    if not is_pod and not any(sign <= os.environ.keys() for sign in _SIGNS):
        return None
    # JAX has no public name for what it finds.
    from jax._src.clusters import ClusterEnv

    try:
        coordinator, count, index, _ = ClusterEnv.auto_detect_unset_distributed_params(
            os.environ.get(COORDINATOR), None, None, [], None, LONGEST_START_S
        )
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        raise UsageError(
            f"the environment names several processes, and JAX cannot tell which: {one_line(error)}; set "
            f"{COORDINATOR}, {COUNT} and {INDEX}"
        ) from error
    return None if coordinator is None or count is None or index is None else _several(coordinator, count, index)


def _several(coordinator: str, count: int, index: int) -> Processes | None:
    if not 0 <= index < count:
        raise UsageError(f"found process {index} of {count}, expected 0 to {count - 1}; number the processes from 0")
    return Processes(coordinator, count, index) if count > 1 else None


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise UsageError(f"{name}={os.environ[name]}: expected a number") from None


def is_first() -> bool:
    """Whether this process prints and writes for all."""
    processes = found()
    return processes is None or processes.index == 0


def join() -> None:
    """Makes the devices of all processes those of JAX, once; nothing where this process is alone.

    Raises:
      UsageError: as `found`; JAX has started without the others, or does not reach them.
    """
    processes = found()
    if processes is None:
        return
    import jax

    if jax.distributed.is_initialized():
        return
    try:
        jax.distributed.initialize(processes.coordinator, processes.count, processes.index)
    except RuntimeError as error:
        raise UsageError(
            f"process {processes.index} of {processes.count}: JAX does not join the others at {processes.coordinator}: "
            f"{one_line(error)}"
        ) from error


def fetched(tree: Any) -> Any:
    """The values of arrays, whole, in each of the processes whose devices have them; see `jax.device_get`."""
    import jax

    if jax.process_count() == 1:
        return jax.device_get(tree)
    from jax.experimental import multihost_utils

    return jax.tree.map(
        lambda x: (
            multihost_utils.process_allgather(x, tiled=True)
            if isinstance(x, jax.Array) and not x.is_fully_addressable
            else jax.device_get(x)
        ),
        tree,
    )
