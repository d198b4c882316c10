"""Sums that compilers combine: GPUs pack their operands into one flat array, CPUs widen them and name all after the
first. What is wrong with each is found all the same."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from lab import diagnosis
from lab.compile import inspection
from lab.core.note import NoteKind
from tests.cases.compiling import ahead_of_time_gpu, array, cpu, mesh_on, pinned
from tests.lab.diagnosis.diagnosing import diagnosed, line

pytestmark = pytest.mark.compiles

TARGETS = pytest.mark.parametrize("target", ["cpu:8", pytest.param("gpu:h100:2x4", marks=ahead_of_time_gpu)])


def loss(w_up, w_down, x):
    return jnp.mean(jnp.square(jax.nn.relu(x @ w_up) @ w_down))


def step(target: str, *out):
    mesh = mesh_on(target, fsdp=2, tensor=4)
    w_up = array(mesh, (256, 512), "fsdp", "tensor", dtype=jnp.bfloat16)
    w_down = array(mesh, (512, 256), "tensor", "fsdp", dtype=jnp.bfloat16)
    x = array(mesh, (2048, 256), "fsdp", dtype=jnp.bfloat16)
    function = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)), **({"out_shardings": out} if out else {}))
    return diagnosed(mesh, function, w_up, w_down, x, target=target), (w_up.sharding, w_down.sharding)


@TARGETS
def test_each_gradient_of_a_combined_sum_is_returned_whole_with_the_bytes_of_the_output(target):
    found, shardings = step(target)
    gradients = [f for f in found.findings if f.kind == "given_back_whole"]
    assert sorted((f.sentence.split()[3], f.memory_bytes) for f in gradients) == [("w_down", 65_536), ("w_up", 65_536)]
    assert all(f.axes == ("fsdp",) and f.totals.executions == 1 for f in gradients)
    kept, _ = step(target, None, shardings)
    assert "given_back_whole" not in {f.kind for f in kept.findings}


def notes(found, kind: NoteKind) -> list[str]:
    return [str(note) for note in found.ledger.notes if note.kind == kind]


def test_every_array_that_the_cpu_widens_is_counted_as_in_the_table_and_in_no_note():
    found, _ = step("cpu:8")
    (widened,) = notes(found, NoteKind.WIDENED_BY_CPU)
    scalars = sum(part.payload_bytes == 4 for t in found.ledger.transfers for part in t.parts)
    everything = found.ledger.totals()
    assert (scalars, everything.arrays) == (1, 6)
    assert widened.startswith(f"{everything.arrays - scalars} arrays of 16-bit floats are sent as f32 in a step")
    assert f", {everything.payload_bytes - 4:,} B of payload, " in widened
    assert notes(found, NoteKind.PROMOTED_REDUCTIONS) == []


def summed_in_f32(w, x):
    gradient = jax.grad(lambda w: jnp.sum(jnp.square(x.astype(jnp.float32) @ w.astype(jnp.float32))))(w)
    return gradient.astype(jnp.bfloat16)


def test_a_sum_that_the_program_itself_asks_for_in_f32_is_not_widened():
    mesh = cpu(d=8)
    w, x = array(mesh, (64, 64), dtype=jnp.bfloat16), array(mesh, (512, 64), "d", dtype=jnp.bfloat16)
    found = diagnosed(mesh, summed_in_f32, w, x, out=P(), target="cpu:8")
    assert [t.dtype for t in found.ledger.transfers] == ["f32"]
    assert [f.kind for f in found.findings] == []


def test_of_a_combination_in_which_the_program_asks_for_f32_too_the_widened_are_at_least_those_that_are_proven():
    mesh = cpu(d=8)

    def both(w, x):
        return jax.grad(lambda w: jnp.sum(jnp.square(x @ w).astype(jnp.float32)))(w), summed_in_f32(w, x)

    w, x = array(mesh, (64, 64), dtype=jnp.bfloat16), array(mesh, (512, 64), "d", dtype=jnp.bfloat16)
    found = diagnosed(mesh, both, w, x, out=P(), target="cpu:8")
    assert [(t.dtype, t.arrays) for t in found.ledger.transfers] == [("f32", 2)]
    (widened,) = notes(found, NoteKind.WIDENED_BY_CPU)
    assert widened.startswith("at least 1 array of 16-bit floats is sent as f32 in a step")


@ahead_of_time_gpu
def test_notes_count_the_arrays_of_a_packed_sum_as_the_table_does():
    found, _ = step("gpu:h100:2x4")
    assert found.ledger.totals().arrays == 6
    (narrow,), (slow,) = notes(found, NoteKind.GRADIENTS_SUMMED_NARROW), notes(found, NoteKind.SLOW_LINKS)
    assert narrow.startswith(
        "2 arrays of the backward pass (over fsdp) are summed over devices in bf16, 131,072 B a step"
    )
    assert " along fsdp, in " in slow and slow.endswith("executions of 5 arrays")


@ahead_of_time_gpu
def test_the_note_on_the_network_names_what_each_transfer_spans():
    mesh = mesh_on("gpu:h100:2x4", fsdp=2, tensor=4)

    def sums(x):
        return jax.lax.psum(x, "fsdp"), jax.lax.psum(jnp.sum(x), ("fsdp", "tensor"))

    function = jax.shard_map(sums, mesh=mesh, in_specs=P("fsdp", "tensor"), out_specs=(P(None, "tensor"), P()))
    found = diagnosed(mesh, function, array(mesh, (256, 256), "fsdp", "tensor"), target="gpu:h100:2x4")
    (slow,) = notes(found, NoteKind.SLOW_LINKS)
    assert sorted(t.span for t in found.ledger.transfers) == ["fsdp", "fsdp+tensor"]
    assert " along fsdp and fsdp+tensor, in 2 executions" in slow or " along fsdp+tensor and fsdp, in 2 exec" in slow


@ahead_of_time_gpu
def test_the_note_on_the_network_says_that_a_branch_may_not_run():
    mesh = mesh_on("gpu:h100:2x4", fsdp=2, tensor=4)

    def sums(x, is_on):
        return jax.lax.cond(is_on[0] > 0, lambda x: jax.lax.psum(x, "fsdp"), lambda x: 2 * x, x)

    specs = {"in_specs": (P(None, "tensor"), P()), "out_specs": P(None, "tensor")}
    function = jax.shard_map(sums, mesh=mesh, **specs, check_vma=False)
    x, is_on = array(mesh, (256, 256), None, "tensor"), array(mesh, (1,))
    (slow,) = notes(diagnosed(mesh, function, x, is_on, target="gpu:h100:2x4"), NoteKind.SLOW_LINKS)
    assert slow.startswith("each device sends at most 65,536 B a step in groups that reach across")
    assert slow.endswith(" along fsdp, in 1 execution, if every branch runs")


def layered(w, x):
    hidden = jnp.tanh(x @ w)
    return jnp.mean(jnp.square(hidden))


def accumulated(w, xs):
    def add(total, x):
        return jax.tree.map(jnp.add, total, jax.value_and_grad(layered)(w, x)), None

    return jax.lax.scan(add, (0.0, jnp.zeros_like(w)), xs)[0]


def test_a_loss_and_its_gradient_reduced_in_a_loop_are_named_by_the_line_of_the_gradient():
    mesh = cpu(d=8)
    w, xs = array(mesh, (64, 64)), array(mesh, (4, 512, 64), None, "d")
    found = diagnosed(mesh, accumulated, w, xs, out=P(), target="cpu:8")
    (looped,) = [f for f in found.findings if f.kind == "reduced_in_loop"]
    assert [t.arrays for t in found.ledger.transfers] == [2]
    assert (looped.totals.executions, looped.totals.arrays, looped.origin) == (4, 8, line(layered, 1))


def test_the_bytes_of_an_iteration_count_a_sum_in_the_loop_over_layers_once_a_layer():
    mesh = cpu(d=8)

    def model(layers, head, x):
        return jnp.sum(jnp.square(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, layers)[0] @ head))

    def accumulated(layers, head, xs):
        def add(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(model, argnums=(0, 1))(layers, head, x)), None

        return jax.lax.scan(add, (jnp.zeros_like(layers), jnp.zeros_like(head)), xs)[0]

    layers, head, xs = array(mesh, (3, 64, 64)), array(mesh, (64, 128)), array(mesh, (4, 512, 64), None, "d")
    found = diagnosed(mesh, accumulated, layers, head, xs, out=(P(), P()), target="cpu:8")
    (looped,) = [f for f in found.findings if f.kind == "reduced_in_loop"]
    assert (looped.totals.executions, looped.totals.payload_bytes) == (4 * 3 + 4, 4 * (3 * 64 * 64 + 64 * 128) * 4)
    assert f", {(3 * 64 * 64 + 64 * 128) * 4:,} B each time; " in looped.sentence


def test_an_argument_that_a_constraint_replicates_is_one_array_and_no_weight():
    mesh = cpu(d=8)

    def residual(w, x):
        x = pinned(mesh, x)
        return jnp.mean(jnp.square(x + jnp.tanh(x @ w)))

    w, x = array(mesh, (64, 64)), array(mesh, (512, 64), "d")
    # From jax 0.11 on the traced program alone says what the constraint is laid on.
    found = diagnosis.of(inspection.read_program(jax.value_and_grad(residual), (w, x), mesh, None, source="residual"))
    (kept,) = [f for f in found.findings if f.kind == "kept_whole"]
    assert kept.sentence.startswith("1 sharded argument (x f32[512,64] P('d', None)) is gathered once")
    assert (kept.memory_bytes, kept.totals.arrays) == (131_072, 1) and "drop the sharding constraint" in kept.advice


@pytest.mark.parametrize(
    ("spec", "said"),
    [(("d",), ["no sharding names unused=2: all devices along it do the same work"]), (("d", "unused"), [])],
)
def test_an_axis_that_no_sharding_names_is_noted(spec, said):
    mesh = cpu(d=4, unused=2)
    found = diagnosed(mesh, lambda x: 2 * x, array(mesh, (64, 64), *spec), out=P(*spec), target="cpu:8")
    assert notes(found, NoteKind.UNUSED_AXES) == said
