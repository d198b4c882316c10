"""Chapter 22: what leaves the device when optimizer state and layer inputs are offloaded to host memory?"""

from dataclasses import asdict, dataclass

from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.offload import Planned, offloaded_layers, offloaded_step
from lab.harness.evidence import counted
from lab.harness.question import Question, Row
from lab.meshes.attached import device_count
from lab.meshes.axes import DATA, Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.memory.saved import saved_layer_bytes
from lab.programs.memory.state import parameters_on_device, static_bytes
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.data_parallel import DATA_PARALLEL
from lab.programs.strategies.zero1 import ZERO1

MASTER_AND_MOMENTS = 12
# A scalar takes 512 bytes of a TPU's memory (T8); the count of AdamW's steps is one.
SCALAR_PADDING = 508
NOTHING_AWAY = (
    "nothing is on the host, as on CPUs, where XLA plans one memory, and for arguments on GPUs that only compile, "
    "where JAX drops the memory kind without a word"
)


@dataclass(frozen=True)
class Assumed(DecoderShape):
    """ZeRO-1 over all devices, whose master weights and moments are on the host between steps; and, alone, layers
    recomputed from inputs on the host."""

    batch: int = 4
    length: int = 1024
    embed: int = 1024
    mlp: int = 2816
    vocab: int = 4096
    target: str = "tpu:v5p:2x2x1"

    @property
    def axes(self) -> Axes:
        return Axes.of({DATA: device_count(parse_target(self.target))})

    def shape(self, **changes: int | str) -> DecoderShape:
        return DecoderShape(**{name: value for name, value in asdict(self).items() if name != "target"} | changes)

    def step(self, is_offloaded: bool) -> Planned:
        return offloaded_step(ZERO1, self.shape(), self.target, self.axes, is_offloaded)

    def stack(self, is_offloaded: bool) -> Planned:
        """One device's sequences of one micro-batch."""
        alone = self.shape(remat="none", batch=self.micro_batch // self.axes.size, accumulation=1)
        return offloaded_layers(alone, self.target, self.axes, is_offloaded)

    @property
    def state(self) -> int:
        """Bytes of one device's part of master weights and moments."""
        return MASTER_AND_MOMENTS * parameters_on_device(ZERO1.master, self.shape(), self.axes)

    @property
    def between_steps(self) -> int:
        return static_bytes(ZERO1, self.shape(), self.axes)

    @property
    def inputs(self) -> int:
        return self.layers * saved_layer_bytes(DATA_PARALLEL, self.shape(remat="full"), self.axes)


def answer(assumed: Assumed) -> tuple[Row, ...]:
    """Raises UsageError where a micro-batch does not split over the devices."""
    if assumed.micro_batch % assumed.axes.size:
        raise UsageError(
            f"{assumed.micro_batch} sequences of a micro-batch are not divisible by the {assumed.axes.size} devices of "
            f"{assumed.target}; make batch a multiple"
        )
    kept, away = assumed.step(False), assumed.step(True)
    here, there = assumed.stack(False), assumed.stack(True)
    return (
        Row("state on the device: device between steps", kept.device_arguments, "bytes", assumed.between_steps),
        Row("state on the device: peak of the device", kept.device_peak, "bytes"),
        Row(
            "state on the host: device between steps",
            away.device_arguments,
            "bytes",
            assumed.between_steps - assumed.state,
        ),
        Row("state on the host: host", away.host_arguments, "bytes", assumed.state),
        Row("state on the host: peak of the device", away.device_peak, "bytes"),
        Row("layer inputs on the device: peak of the device", here.device_peak, "bytes"),
        Row("layer inputs on the host: peak of the device", there.device_peak, "bytes"),
        Row("layer inputs on the host: host", there.host_temporaries, "bytes", assumed.inputs),
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    return (_state(assumed), _traffic(assumed), _inputs(assumed))


def _state(assumed: Assumed) -> Claim:
    kept, away = assumed.step(False), assumed.step(True)
    evidence = (
        f"between steps {counted(away.host_arguments)} B are on the host and {counted(away.device_arguments)} B on "
        "the device"
    )
    evidence += f", which holds {counted(kept.device_arguments)} B without"
    if away.host_arguments == 0:
        return calculated("ch22.zero_offload_memory", f"{evidence}: {NOTHING_AWAY}")
    padding = away.device_arguments - (assumed.between_steps - assumed.state)
    holds = away.host_arguments == assumed.state and padding in (0, SCALAR_PADDING)
    evidence += "; all 12 Psi / P are away and 2 Psi stay, but the update has all of them on the device again"
    evidence += f", and the peak is {counted(away.device_peak)} B against {counted(kept.device_peak)} B"
    return decided("ch22.zero_offload_memory", holds, evidence, statement="between steps 2 Psi are on the device")


def _traffic(assumed: Assumed) -> Claim:
    evidence = f"with AdamW on the device {counted(assumed.state)} B come and go each step"
    return calculated(
        "ch22.zero_offload_traffic",
        f"{evidence}; on the host it takes 2 Psi / P of gradients down and as much of weights up",
    )


def _inputs(assumed: Assumed) -> Claim:
    here, there = assumed.stack(False), assumed.stack(True)
    evidence = (
        f"{counted(there.host_temporaries)} B of the host hold the inputs of {assumed.layers} layers, 2 b S H each"
    )
    evidence += f"; the device's peak is {counted(there.device_peak)} B against {counted(here.device_peak)} B"
    if there.host_temporaries == 0:
        return calculated("ch21.offloaded_ckpt", f"{evidence}: {NOTHING_AWAY}")
    return decided(
        "ch21.offloaded_ckpt",
        there.host_temporaries == assumed.inputs,
        evidence,
        statement="inputs of recomputed layers wait on the host",
    )


EXPERIMENT = Question(
    name="ch22_offloading",
    chapter=22,
    question="What leaves the device when optimizer state and layer inputs are offloaded to host memory?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
