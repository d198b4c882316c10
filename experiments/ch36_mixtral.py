"""Chapter 36: what does a step of Mixtral 8x22B send on 256 TPUs, fsdp 64 x expert 4?"""

from lab.harness.decoder.published import published_experiment

EXPERIMENT = published_experiment(
    name="ch36_mixtral",
    chapter=36,
    question="What does a step of Mixtral 8x22B send on 256 TPUs, fsdp 64 x expert 4?",
    row="maxtext-mixtral-8x22b-v6e-256",
)
