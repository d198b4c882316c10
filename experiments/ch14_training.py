"""Chapter 14: do all layouts train the same model? A small decoder on the standard library's own sources, in bytes."""

from dataclasses import replace

from experiments import (
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
from lab.decoder_experiments import text
from lab.decoder_experiments.training import Trained, Training, TrainingShape
from lab.experiment import Claim, decided

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


def claims(trained: Trained) -> tuple[Claim, ...]:
    evidence = (
        f"{len(trained.curves)} trainings of {trained.parameters.steps} steps, the loss from {trained.start:.3f} to {trained.end:.3f}, differ from one device's "
        f"by {trained.worst_relative_error:.1e} at most; other orders of the sequences move that by {trained.alone.moved.max():.1e}"
    )
    return (decided("ch14.partition_theorem", trained.worst_relative_error <= trained.alone.tolerance, evidence),)


EXPERIMENT = Training(
    name="ch14_training",
    chapter=14,
    question="Do all layouts train the same model?",
    parameters=TrainingShape().shrunk(vocab=text.BYTES, embed=64, head_dim=8, mlp=176),
    layouts=tuple(replace(module.EXPERIMENT, name=layout) for layout, module in LAYOUTS.items()),
    claims=claims,
)
