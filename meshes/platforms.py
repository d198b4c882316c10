"""Kinds of devices that programs are compiled for, and what joins them. No JAX here."""

from enum import StrEnum


class Platform(StrEnum):
    """Attached devices are those of this process, whatever they are."""

    CPU = "cpu"
    GPU = "gpu"
    TPU = "tpu"
    ATTACHED = "attached"


class LinkName(StrEnum):
    """What joins GPUs inside a host and between hosts, TPUs inside a slice and between slices."""

    HOST = "host"
    NETWORK = "network"
    ICI = "ici"
    DCN = "dcn"


GPU_LINKS = LinkName.HOST, LinkName.NETWORK
TPU_LINKS = LinkName.ICI, LinkName.DCN
