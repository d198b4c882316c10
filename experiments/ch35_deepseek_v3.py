"""Chapter 35: what does a step of DeepSeek-V3 send on 2,048 GPUs, pipe 16 x expert 64 x data 2?"""

from dataclasses import replace

from lab.harness.decoder.published import published_experiment

PUBLISHED = published_experiment(
    name="ch35_deepseek_v3",
    chapter=35,
    question="What does a step of DeepSeek-V3 send on 2,048 GPUs, pipe 16 x expert 64 x data 2?",
    row="deepseek-v3-2048",
)
# With twice the vocabulary none of the three steps that are compared would have its gradients clipped.
EXPERIMENT = replace(PUBLISHED, numeric_parameters=replace(PUBLISHED.numeric_parameters, vocab=48))
