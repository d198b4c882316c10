"""Chapter 34: what does a step of Llama 3.1 405B send on 512 or 2,048 H100s, on the mesh of an MLPerf submission?"""

from lab.harness.decoder.published import published_experiment

EXPERIMENT = published_experiment(
    name="ch34_mlperf_405b",
    chapter=34,
    question="What does a step of Llama 3.1 405B send on the mesh of an MLPerf submission?",
    row="mlperf5-405b-512",
)
