"""Kinds of devices that programs are compiled for. No JAX here."""

from enum import StrEnum


class Platform(StrEnum):
    """Attached devices are those of this process, whatever they are."""

    CPU = "cpu"
    GPU = "gpu"
    TPU = "tpu"
    ATTACHED = "attached"
