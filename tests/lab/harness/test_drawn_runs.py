"""Configurations that nobody chose: from every experiment, the same for the same seed, and such as experiments take."""

from collections import Counter

from lab.harness import suite
from lab.harness.drawn_runs import TARGETS, drawn_runs
from lab.meshes.targets import parse_target
from lab.programs.models.shape import DecoderShape

EVERY = suite.parted(suite.load())[0]
EXPERIMENTS = [one for one in EVERY if one not in suite.composed(EVERY)]


def test_every_experiment_and_target_is_drawn_and_the_same_seed_draws_the_same():
    runs = drawn_runs(EXPERIMENTS, 200)
    assert {run.experiment.name for run in runs} == {e.name for e in EXPERIMENTS if e.place is None}
    assert {str(run.target) for run in runs} == set(TARGETS)

    def drawn(seed: int) -> list[tuple]:
        return [
            (r.experiment.name, r.style, r.target, r.experiment.parameters) for r in drawn_runs(EXPERIMENTS, 20, seed)
        ]

    assert drawn(0) == drawn(0) != drawn(1)


def test_a_decoder_has_new_sizes_and_what_makes_the_experiment():
    own = {experiment.name: experiment.parameters for experiment in EXPERIMENTS}
    decoders = [r for r in drawn_runs(EXPERIMENTS, 60) if type(r.experiment.parameters) is DecoderShape]
    for run in decoders:
        shape, before = run.experiment.parameters, own[run.experiment.name]
        assert (shape.embed, shape.mlp, shape.vocab) != (before.embed, before.mlp, before.vocab)
        assert (shape.experts, shape.router, shape.window) == (before.experts, before.router, before.window)
    assert len(Counter(run.experiment.parameters.remat for run in decoders)) > 2


def test_what_is_drawn_is_predicted_for_its_mesh():
    for run in drawn_runs(EXPERIMENTS, 30, seed=2):
        run.experiment.predict(run.experiment.parameters, run.experiment.axes(parse_target(str(run.target))))
