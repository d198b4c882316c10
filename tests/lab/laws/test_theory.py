"""Laws of the lab's layouts beside theory: nothing is compiled, what theory predicts stands for what is."""

from dataclasses import replace

import pytest

from lab.harness import registry
from lab.harness.settings import with_settings
from lab.laws.derive import About, Start, derived, with_compiled
from lab.laws.law import Law, Refused
from lab.laws.measurement import Measurement, sites
from lab.laws.polynomial import monomial
from lab.laws.theory import beside_theory
from lab.meshes.axes import Axes
from tests.lab.laws.corpus import EXPERIMENTS

EVERY = {asked.source: asked for asked in EXPERIMENTS if "accumulation" not in asked.vary}


def asked_of(name):
    """An experiment, its sizes, where its law begins, and what it predicts at sizes."""
    asked = EVERY[name]
    experiment = registry.experiment(name)
    parameters = with_settings(experiment.parameters, dict(asked.settings))
    mesh = asked.mesh.axes
    start = Start({each: 2 if each in mesh.names else getattr(parameters, each) for each in asked.vary}, mesh)

    def predicted(sizes):
        axes = Axes.of({each: sizes[each] for each in mesh.names})
        return experiment.predict(replace(parameters, **{k: v for k, v in sizes.items() if k not in mesh.names}), axes)

    return experiment, parameters, start, predicted


def law_of(name, start, predicted) -> Law:
    def measure(some):
        return [Measurement(tuple(sites(predicted(sizes))), (), (), (), None, None, (), True) for sizes in some]

    return derived(About(name, "cpu:2", "cpu", "explicit", "theory"), start, measure)[0]


@pytest.mark.parametrize("name", EVERY)
def test_the_law_of_what_is_predicted_predicts_what_it_never_saw(name):
    _, _, start, predicted = asked_of(name)
    law = law_of(name, start, predicted)
    assert not [each for each in law.refused if each.kind]
    far = {
        each: 8 if each in start.mesh.names else 21 if each == "layers" else 16 * size
        for each, size in start.sizes.items()
    }
    found, expected = with_compiled(law, far).at(far), predicted(far).totals()
    assert (found["payload_bytes"], found["wire_bytes"]) == (expected.payload_bytes, expected.wire_bytes)


def test_a_law_that_is_theory_s_own_settles_exactly_and_another_is_a_finding():
    experiment, parameters, start, predicted = asked_of("ch20_zero3")
    law = law_of("ch20_zero3", start, predicted)
    beside = beside_theory(law, experiment, parameters, start).theory
    assert beside.settled[-1].verdict == "exact"
    assert all(each.is_same for each in beside.beside)
    first, *rest = law.terms
    twice = replace(first, executions=(monomial(2, {"layers": 1}),), payload_of_step=(monomial(1, {"embed": 1}),))
    beside = beside_theory(replace(law, terms=(twice, *rest)), experiment, parameters, start).theory
    assert beside.settled[-1].verdict == "refuted"
    assert beside.settled[-1].findings
    assert [each.kind for each in beside.beside if not each.is_same] == [first.kind]


def test_what_theory_predicts_where_the_law_refuses_is_no_finding():
    experiment, parameters, start, predicted = asked_of("ch20_zero3")
    law = law_of("ch20_zero3", start, predicted)
    first, *rest = law.terms
    refused = Refused(first.kind, first.axes, "a transfer", "its reason", 0.5)
    beside = beside_theory(replace(law, terms=tuple(rest), refused=(refused,)), experiment, parameters, start).theory
    assert (beside.settled[-1].verdict, beside.settled[-1].findings) == ("incomplete", ())
    # A transfer of the same kind that a compiler put together otherwise.
    other = next(term for term in rest if (term.kind, term.axes) == (first.kind, first.axes))
    sent = (monomial(1, {"embed": 1}),)
    odd = replace(other, scope="", phase=None, origin=None, payload=sent, payload_of_step=sent)
    terms = (odd, *(term for term in rest if term is not other))
    beside = beside_theory(replace(law, terms=terms, refused=(refused,)), experiment, parameters, start).theory
    assert (beside.settled[-1].verdict, beside.settled[-1].findings) == ("incomplete", ())
    beside = beside_theory(replace(law, terms=tuple(rest)), experiment, parameters, start).theory
    assert beside.settled[-1].verdict == "refuted"


def test_permutes_are_settled_by_their_distance():
    experiment, parameters, start, predicted = asked_of("ch17_ring_attention")
    law = law_of("ch17_ring_attention", start, predicted)
    assert {term.shift for term in law.terms if term.kind == "collective_permute"} == {1}
    assert beside_theory(law, experiment, parameters, start).theory.settled[-1].verdict == "exact"
