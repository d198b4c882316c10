"""Chapter 34: what did a step of Llama 3 405B send on 8,192 and 16,384 H100s, on the meshes of its report?"""

from lab.harness.decoder.published import published_experiment

EXPERIMENT = published_experiment(
    name="ch34_llama3_405b",
    chapter=34,
    question="What does a step of Llama 3 405B send on the meshes of its report?",
    row="llama3-405b-8k-16384",
)
