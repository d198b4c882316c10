"""Trainings that go on after a failure: checkpoints, restores on another mesh, and checks for faults that say
nothing."""
