"""Chapters 34 to 36: what does a step of a published training run send, on its own mesh and machine? `--set row=` names
the run."""

from lab.harness.decoder.published import published_experiment

EXPERIMENT = published_experiment(
    name="ch34_published",
    chapter=34,
    question="What does a step of a published training run send, on its own mesh and machine?",
    row="maxtext-70b-h200-256",
)
