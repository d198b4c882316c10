"""What waits on the host: inputs of layers on GPUs; state only where a compile-only device lists its memories."""

from dataclasses import replace

import pytest

from lab.experiments.ch22_offloading import Assumed, answer, claims
from lab.meshes.errors import UsageError

pytestmark = pytest.mark.compiles

GPUS = Assumed(embed=256, kv_heads=2, mlp=512, length=256, target="gpu:h100:1x2")


def test_inputs_of_layers_wait_on_the_host_to_the_byte():
    # Two sequences a device of 256 tokens, 256 bf16 numbers, 4 layers.
    stack = GPUS.stack(True)
    assert stack.host_temporaries == GPUS.inputs == 2 * 256 * 256 * 2 * 4
    assert GPUS.stack(False).host_temporaries == 0
    # Twice as many in two micro-batches: the same at a time.
    two = replace(GPUS, batch=8, accumulation=2)
    assert (two.inputs, two.stack(True)) == (GPUS.inputs, stack)


def test_state_stays_where_memory_kinds_are_dropped_and_no_claim_is_made_of_it():
    state, traffic, inputs = claims(GPUS)
    assert GPUS.step(True) == GPUS.step(False)
    assert [str(claim.verdict) for claim in (state, traffic, inputs)] == ["calculated", "calculated", "confirmed"]
    assert "JAX drops the memory kind" in state.evidence


def test_where_cpus_leave_all_of_it_in_one_memory_no_claim_is_made():
    cpus = replace(GPUS, layers=2, target="cpu:2")
    assert cpus.stack(True).host_temporaries == cpus.step(True).host_arguments == 0
    assert [str(claim.verdict) for claim in claims(cpus)] == ["calculated"] * 3


def test_fewer_sequences_than_devices_are_refused_in_a_line():
    with pytest.raises(
        UsageError,
        match="4 sequences of a micro-batch are not divisible by the 8 devices of gpu:h100:1x8; make batch a multiple",
    ):
        answer(replace(GPUS, target="gpu:h100:1x8"))


def test_what_stays_and_what_leaves_make_what_a_device_holds():
    assert GPUS.between_steps == GPUS.step(False).device_arguments
    assert 0 < GPUS.state < GPUS.between_steps
