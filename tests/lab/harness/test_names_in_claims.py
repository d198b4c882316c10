"""A claim about a place of a step, where the compiled program bears the name of another place for it: by hand-made
ledgers."""

from dataclasses import replace

import pytest

from lab.core.ledger import Ledger, Transfer
from lab.harness.claim import Claim
from tests.experiments.test_claims import changed, ideal, is_activation, verdicts
from tests.lab.harness.test_claims import settled

NAME = "ch15_tensor_parallel"


def enters_head(t: Transfer) -> bool:
    return is_activation(t) and (t.scope, t.phase) == ("head", "backward")


def of_head(measured: Ledger) -> Claim:
    (claim,) = (claim for claim in settled(NAME, measured, "gpu") if claim.id == "A19")
    return claim


@pytest.mark.parametrize(
    "name",
    [{"scope": ""}, {"scope": "", "phase": None}],
    ids=["none", "none and no phase"],
)
def test_a_sum_of_the_head_that_the_program_does_not_name_is_counted_at_the_head_and_said_to_be(name):
    measured = changed(ideal(NAME), enters_head, **name)
    assert verdicts(NAME, measured)["A19"] == "refuted"
    claim = of_head(measured)
    assert (str(claim.verdict), "names some transfers differently" in claim.evidence) == ("confirmed", True)


def test_names_say_nothing_of_a_claim_that_holds():
    assert "otherwise" not in of_head(ideal(NAME)).evidence


@pytest.mark.parametrize("name", [{"scope": "layers/mlp/up"}, {"scope": "", "phase": "forward"}])
def test_a_sum_of_the_head_under_another_name_or_in_the_other_phase_stays_there(name):
    assert of_head(changed(ideal(NAME), enters_head, **name)).is_undisputed_refutation


@pytest.mark.parametrize("executions", [0, 2])
def test_names_excuse_no_sum_too_few_or_too_many(executions):
    asked = ideal(NAME)
    (one,) = filter(enters_head, asked.transfers)
    others = tuple(t for t in asked.transfers if t != one)
    assert of_head(
        replace(asked, transfers=(*others, *[replace(one, scope="layers/mlp/up")] * executions))
    ).is_undisputed_refutation
