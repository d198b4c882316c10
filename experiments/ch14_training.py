"""Chapter 14: do all layouts train the same model? A small decoder on the standard library's own sources, in bytes."""

from lab.experiments import (
    ch14_data_parallel,
    ch15_tensor_parallel,
    ch17_sequence_parallel,
    ch20_zero1,
    ch20_zero2,
    ch20_zero3,
    ch24_fsdp_tensor_parallel,
    ch24_hybrid,
    ch24_llama3_405b,
)
from lab.harness.claim import Claim, decided
from lab.harness.decoder.training import Training, TrainingResult, trainee
from lab.harness.decoder.training_shape import SMALL

LAYOUTS = {
    "data parallel": ch14_data_parallel,
    "ZeRO-1": ch20_zero1,
    "ZeRO-2": ch20_zero2,
    "ZeRO-3": ch20_zero3,
    "hybrid": ch24_hybrid,
    "tensor": ch15_tensor_parallel,
    "tensor + sequence": ch17_sequence_parallel,
    "FSDP x tensor": ch24_fsdp_tensor_parallel,
    "FSDP x tensor + sequence": ch24_llama3_405b,
}


def claims(trained: TrainingResult) -> tuple[Claim, ...]:
    return (decided("ch14.partition_theorem", trained.is_one_curve, trained.evidence, structural=True),)


EXPERIMENT = Training(
    name="ch14_training",
    chapter=14,
    question="Do all layouts train the same model?",
    parameters=SMALL,
    layouts=tuple(trainee(layout, module.EXPERIMENT) for layout, module in LAYOUTS.items()),
    claims=claims,
)
