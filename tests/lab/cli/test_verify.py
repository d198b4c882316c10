"""`lab verify --full` draws what nobody ran before, and draws it again when asked."""

from lab.cli import verify
from lab.harness import suite


def test_each_seed_draws_its_own_configurations_and_the_same_ones_again(monkeypatch):
    monkeypatch.setattr(verify, "DRAWN", 2)
    monkeypatch.setattr(verify, "DRAWN_COMPOSITIONS", 2)
    experiments, *_ = suite.parted(suite.load())

    def drawn(seed):
        return [
            (run.experiment.name, run.target, run.experiment.parameters) for run in verify._drawn(experiments, seed)
        ]

    first = drawn(20270131)
    assert len(first) == 4
    assert first == drawn(20270131)
    others = drawn(20270201)
    assert first[:2] != others[:2] and first[2:] != others[2:]
