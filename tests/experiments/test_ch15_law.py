"""Chapter 15's volume out of a law: nothing is compiled, what theory predicts stands for what is."""

from dataclasses import replace

import pytest

from lab.experiments import ch15_law
from lab.harness import registry
from lab.harness.settings import with_settings
from lab.laws.derive import About, Start, derived
from lab.laws.measurement import Measurement, sites
from lab.meshes.axes import Axes


def law_with(remat):
    experiment = registry.experiment("ch15_tensor_parallel")
    settings = {"layers": 3, "batch": 8, "length": 32, "embed": 64, "mlp": 96, "vocab": 128, "dtype": "f32"}
    parameters = with_settings(
        experiment.parameters, {name: str(each) for name, each in settings.items()} | {"remat": remat}
    )
    start = Start(
        {"data": 2, "tensor": 2, **{name: settings[name] for name in ("layers", "batch", "length", "embed")}},
        Axes.of({"data": 2, "tensor": 2}),
    )

    def predicted(at):
        axes = Axes.of({"data": at["data"], "tensor": at["tensor"]})
        own = {name: size for name, size in at.items() if name not in axes.names}
        ledger = experiment.predict(replace(parameters, **own), axes)
        return Measurement(tuple(sites(ledger)), (), (), (), None, None, (), True)

    return derived(About("ch15", "cpu:4", "cpu", "explicit", "theory"), start, lambda some: list(map(predicted, some)))[
        0
    ]


@pytest.mark.parametrize("remat, verdict", [("none", "confirmed"), ("full", "refuted")])
def test_a_law_with_another_sum_a_layer_is_not_the_books(monkeypatch, remat, verdict):
    """Recomputation repeats one of the four."""
    monkeypatch.setattr(ch15_law, "law", lambda assumed: law_with(remat))
    (claim,) = ch15_law.claims(ch15_law.Assumed())
    assert claim.verdict == verdict
    rows = ch15_law.answer(ch15_law.Assumed())
    assert rows[0].what.startswith("payload of all_reduce over ")
