"""What the attached devices are, and how many. JAX is asked when these functions are called, not before."""

from __future__ import annotations

from lab.meshes.errors import UsageError
from lab.meshes.hardware import known_chip
from lab.meshes.platforms import Platform
from lab.meshes.targets import Target


def device_count(target: Target) -> int:
    """Of the target; of `attached` the devices that this process has."""
    if target.devices is not None:
        return target.devices
    import jax

    return jax.device_count()


def resolve_attached(target: Target) -> Target:
    """The target itself; of attached devices their platform, chip (None where the table of hardware lacks it),
    processes and devices a process.

    Raises:
      UsageError: devices of another kind than CPUs, GPUs and TPUs.
    """
    if target.platform != Platform.ATTACHED:
        return target
    import jax

    first = jax.devices()[0]
    try:
        platform = Platform(first.platform)
    except ValueError:
        raise UsageError(
            f"attached: found {first.platform} devices, expected CPUs, GPUs or TPUs; name a target"
        ) from None
    known = known_chip(first.device_kind)
    return Target(platform, known.key if known else None, (jax.process_count(), jax.local_device_count()))
