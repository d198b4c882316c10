"""Whether the lab's checks see a mistake: one change at a time to its own code, and which test, verdict or claim fails.

`python -m tests.mutants --seed 1 --count 100` draws changes evenly from the parts of the code that a verdict stands
on, runs what names the place with each, and prints those that nothing saw.
"""
