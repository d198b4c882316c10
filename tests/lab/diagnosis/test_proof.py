"""What the lab says to have tried equals what the better program, written by hand, compiles to."""

import importlib
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from markupsafe import escape

import lab
from lab import diagnosis
from lab.compile import inspection, remedies
from lab.core.units import exact
from lab.diagnosis import KINDS
from lab.diagnosis.proof import A_TEXT, NO_USE
from lab.diagnosis.remedy import Gather, NotApplicable, remedy_text
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.report.diagnosis import edit_text, proof_text
from lab.report.html import reports
from tests.cases.compiling import ahead_of_time_gpu, ahead_of_time_tpu, array, cpu, mesh_on, pinned, tpu
from tests.lab.diagnosis.cures import CURES, ORDERS, OTHERS, named
from tests.lab.diagnosis.diagnosing import only
from tests.long_tests import long

pytestmark = [pytest.mark.compiles, pytest.mark.filterwarnings("ignore:Some donated buffers")]
QUICK = ("not_scattered", "given_back_whole", "constraint_undone", "held_whole", "computed_redundantly", "axis_order")
"""Each applies its remedy in another way: to an equation of a shard_map, a result, a constraint, an argument."""


def read(built, mesh, target):
    function, args = built
    return inspection.read_program(function, args, mesh, target, source="step", until_dumped=target.platform == "tpu")


def sums(program):
    """By other sums than the lab's own: bytes by link, FLOPs, and memory."""
    ledger, memory = program.ledger, program.ledger.memory
    sent = {}
    for t in ledger.transfers:
        if bytes_sent := t.wire_bytes * t.executions:
            sent[str(t.link)] = sent.get(str(t.link), 0) + bytes_sent
    held = memory.arguments + memory.outputs + memory.temporaries - memory.aliased
    return sent, ledger.flops, held if memory.peak is None else memory.peak


def calculated(account):
    """Bytes by link after what is advised; None where these are a bound."""
    if account.at_most or not account.sent or any(row.after is None for row in account.sent):
        return None
    sent = {}
    for row in account.sent:
        if row.after:
            sent[row.link] = sent.get(row.link, 0) + row.after
    return sent


def settle(kind, target, axes, built, cure, order=None):
    place = parse_target(target)
    if not plugins.installed(place.platform):
        pytest.skip(f"the {place.platform} plugin is not installed")
    mesh = make_mesh(place, Axes.parse(axes))
    (found,) = [f for f in diagnosis.of(read(built(mesh), mesh, place), prove=True).findings if f.kind == kind]
    better = make_mesh(place, Axes.parse(order or axes))
    sent, flops, memory = sums(read(cure(better), better, place))
    assert found.proof.not_tried is None
    after = found.proof.after
    assert (found.proof.pays, after.sent, after.flops) == (True, sent, flops)
    if kind != "larger_side_gathered":  # CPUs all-reduce what it scatters.
        assert calculated(found.account) in (None, sent)
    # Of two ways to write one program compilers hold some numbers more or less.
    assert abs(after.memory - memory) <= 64
    text = proof_text(found)
    assert text.startswith("tried: ") and all(f"{exact(number)} B" in text for number in (*sent.values(), after.memory))
    return found


def example(kind):
    (row,) = [row for row in KINDS if row.name == kind]
    build = importlib.import_module(f"lab.diagnosis.examples.{kind}").build
    return row.target or f"cpu:{Axes.parse(row.mesh).size}", row.mesh, build


def of_example(kind):
    settle(kind, *example(kind), CURES[kind], ORDERS.get(kind))


def same_values(kind):
    """The changed program runs, and gives what the program gives."""
    target, axes, build = example(kind)
    mesh = make_mesh(parse_target(target), Axes.parse(axes))
    function, args = build(mesh)
    traced = (function if hasattr(function, "trace") else jax.jit(function)).trace(*args)
    finding = only(diagnosis.of(inspection.read_program(function, args, mesh, None, source=kind)))
    lowered, _, _ = remedies.changed(traced, mesh, finding.remedy)
    keys = jax.random.split(jax.random.key(0), len(jax.tree.leaves(args)))
    values = [
        jax.random.normal(key, leaf.shape).astype(leaf.dtype)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
        else jax.random.randint(key, leaf.shape, 0, 64, leaf.dtype)
        for key, leaf in zip(keys, jax.tree.leaves(args), strict=True)
    ]
    changed = lowered.compile()
    (given,) = changed.input_shardings[:1]
    placed = jax.device_put(values, list(given))
    before = traced.lower().compile()
    expected = before(*jax.device_put(jax.tree.unflatten(jax.tree.structure(args), values), before.input_shardings[0]))
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(changed(*placed)), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", QUICK)
def test_what_was_tried_for_a_finding_equals_the_better_program(kind):
    of_example(kind)


@pytest.mark.parametrize("kind", QUICK[:1])
def test_a_changed_program_gives_the_same_values(kind):
    same_values(kind)


def test_of_two_sums_of_one_name_on_two_lines_neither_becomes_a_gather_and_of_one_line_in_a_python_loop_both_do():
    mesh = cpu(x=8)

    def gather(x_RD, start):
        zeros = jnp.zeros((8 * x_RD.shape[0], *x_RD.shape[1:]), x_RD.dtype)
        return jax.lax.psum(jax.lax.dynamic_update_slice_in_dim(zeros, x_RD, start * x_RD.shape[0], 0), "x")

    def one_backwards(x_RD):
        rank = jax.lax.axis_index("x")
        whole = gather(x_RD, rank)
        return whole, gather(x_RD, 7 - rank)

    def both(x_RD):
        return tuple(gather(x_RD * (1 + layer), jax.lax.axis_index("x")) for layer in range(2))

    def changed(function):
        mapped = jax.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False)
        traced = jax.jit(mapped).trace(jax.ShapeDtypeStruct((64, 8), jnp.float32))
        change = Gather(f"jit({function.__name__})/shard_map/psum")
        return remedies.changed(traced, mesh, (change,))[0].as_text()

    assert changed(both).count("stablehlo.all_gather") == 2
    with pytest.raises(NotApplicable, match="operations on several lines have its name"):
        changed(one_backwards)


NEVER_RUN = (
    "narrowed_after",
    "dequantised_before",
    "on_slow_link",
    "not_neighbours",
    "gathered_twice",
    "random_numbers_moved",
)
"""For GPUs and TPUs that only compile, and what draws other numbers."""


@long
@pytest.mark.parametrize("kind", [kind for kind in CURES if kind not in (QUICK[0], *NEVER_RUN)])
def test_any_changed_program_gives_the_same_values(kind):
    same_values(kind)


@long
@pytest.mark.parametrize("kind", [kind for kind in CURES if kind not in QUICK])
def test_what_was_tried_for_any_other_kind_equals_the_better_program(kind):
    of_example(kind)


@long
@pytest.mark.parametrize("kind", OTHERS)
def test_what_was_tried_for_a_program_of_another_kind_equals_the_better_program(kind):
    settle(kind, *OTHERS[kind])


def redundant(mesh):
    """Products of 2.1 GFLOP that eight devices do alike."""
    return lambda x, w: x @ w, (array(mesh, (4096, 512)), array(mesh, (512, 512)))


def test_a_remedy_that_does_not_pay_is_not_advised_and_the_finding_says_what_was_tried():
    mesh = cpu(data=8)
    table = jnp.arange(512.0 * 512).reshape(512, 512)
    step = jax.jit(lambda x: x @ table, out_shardings=NamedSharding(mesh, P("data")))
    (found,) = lab.diagnose(step, array(mesh, (64, 512), "data"))
    assert (found.kind, found.proof.pays, found.proof.after.sent) == ("array_constant", False, {"host": 917_504})
    assert found.advice.startswith("a change was tried, and saved nothing with this compiler: the array as an argument")
    assert proof_text(found) == "" and "pass it" not in found.advice
    assert found.json_object().proof == found.proof


def test_a_finding_whose_sentence_is_the_remedy_is_dropped_where_the_compiler_does_not_bear_it_out():
    mesh = cpu(tensor=8)
    function, args = importlib.import_module("lab.diagnosis.examples.larger_side_gathered").build(mesh)
    program = inspection.read_program(function, args, mesh, None, source="step")
    assert only(diagnosis.of(program, prove=True)).kind == "larger_side_gathered"
    assert diagnosis.of(replace(program, attempt=lambda _: program), prove=True).findings == ()


def two_gradients_whole():
    mesh = cpu(data=8)

    def loss(w, v, x):
        return jnp.sum(jnp.tanh(jnp.tanh(x @ pinned(mesh, w)) @ pinned(mesh, v)) ** 2)

    shapes = array(mesh, (32, 128), "data"), array(mesh, (128, 64), "data"), array(mesh, (256, 32), "data")
    step = jax.jit(jax.grad(loss, argnums=(0, 1)))
    return inspection.read_program(step, shapes, mesh, None, source="step")


def test_remedies_for_which_there_is_no_time_are_tried_together_and_once():
    program, asked = two_gradients_whole(), []

    def counted(remedy):
        asked.append(remedy)
        return program.attempt(remedy)

    slow = replace(program, attempt=counted, seconds=60.0)
    found = [f for f in diagnosis.of(slow, prove=True).findings if f.proof.after]
    assert len(asked) == 1 and len(found) > 1
    assert {f.proof.together for f in found} == {len(found) - 1} and len({str(f.proof.after) for f in found}) == 1
    remedies = [remedy_text(f.remedy) for f in found]
    assert [set(f.proof.others) for f in found] == [set(remedies) - {own} for own in remedies] != [set()] * len(found)
    assert f"tried: {remedies[0]} (at once with {found[0].proof.others[0]}" in proof_text(found[0])
    assert f"T{escape(proof_text(found[0])[1:])}" in reports.findings(diagnosis.of(slow, prove=True))
    # Where they do not pay together, there is no time left for one alone.
    idle = replace(slow, attempt=lambda _: program)
    late = {f.proof.not_tried for f in diagnosis.of(idle, prove=True).findings if f.remedy}
    assert late == {NO_USE}


def test_what_cannot_be_tried_says_why(tmp_path):
    mesh = cpu(data=8)
    function, args = redundant(mesh)
    lowered = jax.jit(function).lower(*args)
    text = tmp_path / "step.hlo"
    text.write_text(lowered.compile().as_text())
    (of_lowered,) = lab.diagnose(lowered, mesh=mesh)
    (of_compiled,) = lab.diagnose(lowered.compile(), mesh=mesh)
    (of_text,) = lab.diagnose(text, mesh="data=8")
    (untried,) = lab.diagnose(lowered, mesh=mesh, prove=False)
    assert "give the function" in of_lowered.proof.not_tried
    assert "a compiled program cannot be changed" in of_compiled.proof.not_tried
    assert (of_text.proof.not_tried, untried.proof) == (A_TEXT, None)
    # What nobody can try is told all the same, with the spec.
    assert edit_text(of_text).endswith("in_shardings P('data', None) of x and out_shardings P('data') of result 0")
    assert edit_text(of_lowered) == edit_text(of_text) and edit_text(untried) == ""


def test_equations_inside_a_scan_of_a_jitted_layer_are_changed_where_they_stand():
    """Not the one with the same operation outside of it."""
    mesh = cpu(data=4, tensor=2)

    @jax.jit
    def layer(x):
        return jnp.sin(pinned(mesh, jnp.cos(x), None, None, "tensor"))

    def step(x):
        return jax.lax.scan(lambda x, _: (layer(x), None), jnp.cos(x), None, length=3)[0]

    x = array(mesh, (16, 64, 128), "data", None, "tensor")
    (found,) = lab.diagnose(jax.jit(step, out_shardings=x.sharding), x)
    assert (found.kind, found.proof.before.wire_bytes, found.proof.after.wire_bytes) == (
        "constraint_undone",
        3 * 196_608,
        0,
    )


def test_an_operation_under_a_vmap_is_found_where_it_is_the_only_one():
    mesh = cpu(data=8)
    rows = jax.jit(jax.vmap(jnp.fft.fft), out_shardings=NamedSharding(mesh, P("data")))
    (found,) = lab.diagnose(rows, array(mesh, (64, 256), "data", dtype=jnp.complex64))
    assert (found.kind, found.proof.pays, found.proof.after.sent) == ("unsplit_operation", True, {})


def test_columns_of_a_right_hand_side_are_solved_apart():
    mesh = cpu(data=8)
    solve = partial(jax.scipy.linalg.solve_triangular, lower=True)
    columns = jax.jit(solve, out_shardings=NamedSharding(mesh, P(None, "data")))
    (found,) = lab.diagnose(columns, array(mesh, (64, 64)), array(mesh, (64, 256), None, "data"))
    assert (found.kind, found.proof.pays, found.proof.after.sent) == ("unsplit_operation", True, {})


@long
@ahead_of_time_tpu
def test_on_tpus_without_a_target_bytes_pass_links_all_the_same():
    mesh = tpu(data=2, tensor=4)
    total = jax.jit(lambda x: jnp.cos(pinned(mesh, jnp.sin(x), None, "tensor")))
    x = array(mesh, (1024, 1024), "data", "tensor")
    (found,) = lab.diagnose(jax.jit(total, out_shardings=x.sharding), x)
    assert (found.kind, found.proof.pays, found.proof.after.wire_bytes) == ("constraint_undone", True, 0)
    assert found.proof.before.on_links >= found.proof.before.wire_bytes > 0


def two_weights_and_moments(*moments):
    """Two square weights, split by columns and by rows, whose moments no name tells apart."""

    def build(mesh):
        columns, rows = named(mesh, None, "data"), named(mesh, "data")

        def step(up, down, m, n, x):
            g, h = jax.grad(lambda w: jnp.mean(jnp.square(jnp.tanh(x @ w[0]) @ w[1])))((up, down))
            m, n = 0.9 * m + g, 0.9 * n + h
            return up - m, down - n, m, n

        specs = (None, "data"), ("data",), *moments
        args = *(array(mesh, (64, 64), *spec) for spec in specs), array(mesh, (32, 64))
        return jax.jit(step, donate_argnums=(0, 1, 2, 3), out_shardings=(columns, rows, columns, rows)), args

    return build


def test_moments_are_split_as_devices_use_them_and_results_that_are_split_stay_as_they_are():
    apart = two_weights_and_moments((None, "data"), ("data",))
    settle("held_whole", "cpu:8", "data=8", two_weights_and_moments((), ()), apart)


def test_a_product_of_a_product_is_split_as_that_is():
    def whole(mesh, *spec):
        args = array(mesh, (512, 512), *spec), array(mesh, (512, 512)), array(mesh, (512, 512))
        return jax.jit(lambda x, up, down: jnp.tanh(x @ up) @ down), args

    found = settle("computed_redundantly", "cpu:8", "data=8", whole, lambda mesh: whole(mesh, "data"))
    assert found.proof.after.sent == {}


@ahead_of_time_gpu
def test_a_product_that_a_gpu_cuts_along_what_it_sums_over_is_told_as_any_other():
    mesh = mesh_on("gpu:h100:1x8", data=8)
    step = jax.jit(lambda x, up, down: jnp.tanh(x @ up) @ down)
    found = lab.diagnose(step, *[array(mesh, (512, 512))] * 3, mesh=mesh, target="gpu:h100:1x8", prove=False)
    assert [finding.kind for finding in found] == ["computed_redundantly"]


@pytest.mark.parametrize("kind", ["reduced_twice", "reduced_for_nothing"])
def test_of_sums_with_one_name_only_the_needless_is_left_out(kind):
    def multiplied(second):
        def local(x, w, bias):
            return second(jax.lax.psum(x @ w, "model"), bias)

        def build(mesh):
            specs = (P(None, "model"), P("model"), P())
            function = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
            shapes = (64, 256), (256, 64), (64, 64)
            return function, [array(mesh, shape, *spec) for shape, spec in zip(shapes, specs, strict=True)]

        return build

    wrong, right = {
        "reduced_twice": (lambda y, bias: jax.lax.pmean(y, "model"), lambda y, bias: y),
        "reduced_for_nothing": (lambda y, bias: y + jax.lax.psum(bias, "model"), lambda y, bias: y + 4 * bias),
    }[kind]
    settle(kind, "cpu:4", "model=4", multiplied(wrong), multiplied(right))
