"""Rounds of local SGD and DiLoCo: what they compute and send."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lab.core.ledger import Memory
from lab.experiments import ch29_training
from lab.experiments.ch29_training import last
from lab.harness.decoder.round_numerics import compare_rounds
from lab.harness.decoder.rounds import SMALL_ROUND
from lab.harness.registry import load
from lab.harness.run import run
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.targets import parse_target
from lab.programs.models import decoder
from lab.programs.transforms.local_sgd import DILOCO, RoundShape
from lab.settle import Verdict
from tests.long_tests import long

TWO_SLICES = Axes.of({"replica": 2, "fsdp": 128})
ON_GPUS = pytest.mark.skipif(not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed")
ON_TPUS = pytest.mark.skipif(not plugins.installed("tpu"), reason="the compile-only plugin for TPUs is not installed")


def verdicts(name: str, **choices) -> dict[str | None, str]:
    """What theory's own transfers say of the claims."""
    experiment = load(name)
    shape = replace(experiment.parameters, **choices)
    ideal = experiment.predict(shape, TWO_SLICES)
    return {claim.statement: str(claim.verdict) for claim in experiment.claims(shape, TWO_SLICES, ideal)}


@pytest.mark.parametrize("outer", ["f32", "int8", "int4"])
@pytest.mark.parametrize("fragments", [1, 8])
def test_a_round_sends_the_weights_once_in_whatever_format_and_fragments(outer, fragments):
    found = verdicts("ch29_diloco", outer=outer, fragments=fragments)
    assert set(found.values()) == {"confirmed"}
    assert len(found) == 2 + (fragments > 1)


def test_a_round_of_500_steps_sends_between_replicas_what_one_does_and_inside_500_times_as_much():
    experiment = load("ch29_diloco")
    rounds = {h: experiment.predict(replace(experiment.parameters, every=h), TWO_SLICES) for h in (1, 500)}
    between, inside = (
        {
            h: sum(t.executions * t.wire_bytes for t in ledger.transfers if t.axes == axes)
            for h, ledger in rounds.items()
        }
        for axes in (("replica",), ("fsdp",))
    )
    assert between[500] == between[1] and inside[500] == 500 * inside[1]
    assert rounds[500].steps == 500


def test_plain_descent_inside_needs_no_norm_of_gradients_and_adamw_one_a_step():
    norms = {}
    for name in ("ch29_local_sgd", "ch29_diloco"):
        experiment = load(name)
        asked = experiment.predict(replace(experiment.parameters, every=4), TWO_SLICES).transfers
        norms[name] = [t.executions for t in asked if t.scope == "clip"]
    assert norms == {"ch29_local_sgd": [], "ch29_diloco": [4]}


def test_a_claim_on_state_needs_anchor_and_momentum_to_the_byte():
    experiment = load("ch29_diloco")
    ideal = experiment.predict(experiment.parameters, TWO_SLICES)
    held = 82_206_724  # As compiled for tpu:v5p:4x4x8*2.

    def of(arguments: int) -> str:
        measured = replace(ideal, memory=Memory(arguments, 0, 0, 0, None))
        return str(experiment.claims(experiment.parameters, TWO_SLICES, measured)[-1].verdict)

    assert (of(held), of(held + 4)) == ("confirmed", "refuted")


def settled(name: str, target: str, shape: RoundShape) -> None:
    result = run(load(name), target=parse_target(target), style="explicit", parameters=shape)
    assert (result.failure, result.settlement.unexplained, result.unchecked) == (None, (), None)
    assert result.verdict in (Verdict.EXACT, Verdict.EXPLAINED)
    assert result.is_fine and "confirmed" in {str(claim.verdict) for claim in result.claims}


@long
@pytest.mark.compiles
def test_replicas_learn_what_one_device_does_in_turn_in_fragments_that_take_their_mean_late():
    shape = replace(SMALL_ROUND, layers=2, every=5, fragments=2, delay=1)
    mesh = make_mesh(parse_target("cpu:8"), Axes.of({"replica": 2, "fsdp": 4}))
    found = compare_rounds(DILOCO, "explicit", shape, mesh)
    assert found.worst_relative_error < found.tolerance and found.steps == 10


@pytest.mark.compiles
@long
@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("ch29_local_sgd", {}),
        ("ch29_diloco", {"every": 5, "fragments": 2, "delay": 1}),
        ("ch29_diloco", {"outer": "int4"}),
        ("ch29_diloco", {"outer": "int8", "accumulation": 2}),
    ],
)
def test_replicas_on_8_cpu_devices_learn_what_one_device_does_and_send_what_theory_says(name, choices):
    settled(name, "cpu:8", replace(SMALL_ROUND, **choices))


@pytest.mark.compiles
@ON_GPUS
@long
@pytest.mark.parametrize("choices", [{"outer": "int8", "fragments": 2}, {"delay": 1}])
def test_two_hosts_of_gpus_send_each_other_what_theory_says(choices):
    settled("ch29_diloco", "gpu:h100:2x8", replace(SMALL_ROUND, batch=32, **choices))


@pytest.mark.compiles
@ON_TPUS
def test_two_slices_send_each_other_what_theory_says():
    """Of sizes that fill the tiles of a TPU."""
    sizes = {"batch": 32, "length": 128, "embed": 512, "mlp": 1024, "vocab": 1024}
    settled("ch29_diloco", "tpu:v5p:2x2x2*2", RoundShape(every=8, fragments=2, outer="int4", **sizes))


@pytest.mark.compiles
@ON_TPUS
@long
@pytest.mark.parametrize("outer", ["f32", "int4"])
def test_two_slices_of_128_send_the_predicted_bytes_of_a_step_of_500(outer):
    experiment = load("ch29_diloco")
    shape, target = replace(experiment.parameters, fragments=8, outer=outer), parse_target("tpu:v5p:4x4x8*2")
    result = run(experiment, target=target, style="explicit", parameters=shape)
    predicted, compiled = (
        sum(t.executions * t.wire_bytes for t in ledger.transfers if t.axes == ("replica",))
        for ledger in (experiment.predict(shape, TWO_SLICES), result.measured)
    )
    assert result.verdict is Verdict.EXPLAINED and result.is_fine
    assert compiled == predicted == {"f32": 16_031_744, "int4": 2_301_952}[outer]
    assert result.measured.steps == 500


TRAINED = load("ch29_training").parameters


@pytest.mark.compiles
def test_weights_averaged_after_every_step_are_those_of_synchronous_descent():
    assumed, start = replace(TRAINED, steps=6, every=2), decoder.initial(TRAINED.shape)
    every_step = ch29_training.METHODS[ch29_training.EVERY_STEP]
    found, expected = (ch29_training.in_rounds(assumed, every_step, start, replicas) for replicas in (2, 1))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert found[-1] < found[0] - 0.5


@pytest.mark.compiles
@long
def test_200_steps_of_replicas_that_meet_every_20_are_reported_beside_a_mean_every_step():
    every_step, *others = load("ch29_training").claims(TRAINED)
    assert str(every_step.verdict) == "confirmed"
    assert {str(claim.verdict) for claim in others} == {"calculated"}
    band = ch29_training.band(TRAINED)
    assert last(band.losses) < band.losses[0] - 1 and band.width < 0.05
    gaps = {name: ch29_training.gaps(name, TRAINED)[-1] for name in ch29_training.METHODS}
    assert gaps["local SGD"] > 0 > gaps["DiLoCo"]


def in_order(target: str, **flags: str) -> list[str]:
    """What a schedule has of a mean over replicas that is needed after a loop, and of that loop, whose steps have a
    mean of their own."""
    place = parse_target(target)
    prepare([place])
    mesh = make_mesh(place, Axes.of({"replica": 2, "fsdp": 8}))

    def late(x_1NN: jax.Array, w_DD: jax.Array, c_1BD: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(c_BD: jax.Array, _: None) -> tuple[jax.Array, None]:
            own = jax.lax.pcast(c_BD, "fsdp", to="varying")
            return jax.lax.pmean(jnp.tanh(own @ w_DD), "fsdp"), None

        mean = jax.lax.pmean(x_1NN[0], "replica")
        c_BD, _ = jax.lax.scan(step, c_1BD[0], length=8)
        return (mean + jnp.sum(c_BD))[None], c_BD[None]

    specs = (P("replica"), P(), P("replica"))
    shapes = ((2, 1024, 1024), (512, 512), (2, 256, 512))
    arguments = [
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    function = jax.jit(jax.shard_map(late, mesh=mesh, in_specs=specs, out_specs=(P("replica"), P("replica"))))
    text = function.lower(*arguments).compile(compiler_options=flags or None).as_text()
    found = re.findall(r" (while|all-reduce-start|all-reduce-done|send|recv-done)\(", text[text.index("ENTRY") :])
    return ["start" if each in ("all-reduce-start", "send") else each.rpartition("-")[2] for each in found]


@pytest.mark.compiles
@ON_GPUS
def test_gpus_start_a_late_mean_after_a_loop_with_means_of_its_own_unless_a_flag_lets_two_run_at_once():
    flag = {"xla_gpu_experimental_parallel_collective_overlap_limit": "2"}
    assert in_order("gpu:h100:2x8") == ["while", "start", "done"]
    assert in_order("gpu:h100:2x8", **flag) == ["start", "while", "done"]


@pytest.mark.compiles
@ON_TPUS
def test_tpus_send_a_late_mean_to_the_other_slice_before_the_loop():
    assert in_order("tpu:v5p:2x2x2*2") == ["start", "while", "done"]
