"""A batch that is whole after its first weight, where tables and weights are split over its axis too."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import pytest

from lab import diagnosis
from lab.compile import inspection
from lab.meshes.targets import parse_target
from tests.cases.compiling import ahead_of_time_gpu, ahead_of_time_tpu, array, mesh_on, pinned
from tests.lab.diagnosis.diagnosing import kinds, line, wasted

pytestmark = pytest.mark.compiles

CPU = "cpu:8"
MESH = {"data": 4, "model": 2}
TWO = {"table": ("model", "data"), "up": ("data", "model"), "down": ("model", "data")}
FSDP = {"table": ("data",), "up": ("data",), "down": ("data",)}
ROWS = {"table": (None, "data"), "up": ("data",), "down": ("data",)}
MEGATRON = {"table": ("model",), "up": (None, "model"), "down": ("model",)}


def look_up(table, tokens):
    return table[tokens]


def take(table, tokens):
    return jnp.take(table, tokens, axis=0)


def one_hot(table, tokens):
    return jax.nn.one_hot(tokens, 256) @ table


def patches(table, pixels):
    return pixels @ table


def step(mesh, enter, specs, pin=(), batch=32, tokens=("data",), trains=True):
    """Two layers in a scan behind an embedding: their forward pass, or a step that gives back new weights."""

    def forward(weights, inputs):
        x_BLD = enter(weights["table"], inputs)
        x_BLD = pinned(mesh, x_BLD, *pin) if pin else x_BLD

        def layer(x_BLD, w):
            norm_BL1 = jnp.mean(x_BLD**2, -1, keepdims=True)
            return x_BLD + jax.nn.gelu(x_BLD * jax.lax.rsqrt(norm_BL1 + 1e-6) @ w["up"]) @ w["down"], None

        layers = {name: weights[name] for name in ("up", "down")}
        return jax.lax.scan(jax.checkpoint(layer), x_BLD, layers)[0] @ weights["table"].T

    def train(weights, inputs):
        loss, gradients = jax.value_and_grad(lambda w: jnp.mean(forward(w, inputs) ** 2))(weights)
        return loss, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    weights = {
        "table": array(mesh, (256, 128), *specs["table"]),
        "up": array(mesh, (2, 128, 256), None, *specs["up"]),
        "down": array(mesh, (2, 256, 128), None, *specs["down"]),
    }
    is_pixels = enter is patches
    shape, dtype = ((batch, 32, 256), jnp.float32) if is_pixels else ((batch, 32), jnp.int32)
    function = jax.jit(train, donate_argnums=0) if trains else jax.jit(forward)
    return function, (weights, array(mesh, shape, *tokens, dtype=dtype))


@cache
def program(target, enter, spec, **options):
    mesh, place = mesh_on(target, **MESH), parse_target(target)
    specs = {"two": TWO, "fsdp": FSDP, "rows": ROWS, "megatron": MEGATRON}[spec]
    function, args = step(mesh, enter, specs, **options)
    return inspection.read_program(function, args, mesh, place, source="step", until_dumped=place.platform == "tpu")


def sent(program):
    return program.ledger.totals().wire_bytes


@pytest.mark.parametrize(
    ("target", "enter", "spec", "trains"),
    [
        (CPU, look_up, "two", True),
        (CPU, look_up, "two", False),
        (CPU, look_up, "fsdp", True),
        (CPU, take, "rows", True),
        (CPU, one_hot, "two", True),
        (CPU, patches, "two", True),
        pytest.param("gpu:h100:1x8", look_up, "two", True, marks=ahead_of_time_gpu),
        pytest.param("tpu:v5e:2x4", take, "two", True, marks=ahead_of_time_tpu),
    ],
)
def test_a_batch_that_its_first_weight_makes_whole_is_told_and_keeping_it_split_saves_what_is_said(
    target, enter, spec, trains
):
    bad = program(target, enter, spec, trains=trains)
    finding = next(f for f in diagnosis.of(bad).findings if f.kind == "batch_made_whole")
    cured = program(target, enter, spec, trains=trains, pin=("data",))
    saved = sent(bad) - sent(cured)
    # What a better program sends is a bound: never is more promised than saved, nor much less.
    assert saved / 2 < wasted(finding) <= saved
    assert finding.origin == line(enter, 1) and finding.axes == ("data",)
    assert finding.advice.startswith(f"constrain what the {'product' if enter in (one_hot, patches) else 'lookup'} at")
    assert "jax.lax.with_sharding_constraint(x, P('data'))" in finding.advice
    assert "batch_made_whole" not in kinds(diagnosis.of(cured))


def quantized(mesh, pin):
    """Weights that are made of narrower ones and their scales, behind one that is not."""

    def forward(table, first, up, scales, down, tokens):
        x_BLD = pinned(mesh, table[tokens], "data") if pin else table[tokens]
        x_BLD = jnp.tanh(x_BLD @ first)
        return jnp.tanh(x_BLD @ (up.astype(jnp.float32) * scales)) @ jnp.tanh(down)

    weights = (
        array(mesh, (256, 128), "model", "data"),
        array(mesh, (128, 128), "data", "model"),
        array(mesh, (128, 1024), "data", "model", dtype=jnp.int8),
        array(mesh, (1024,), "model"),
        array(mesh, (1024, 128), "model", "data"),
    )
    args = *weights, array(mesh, (32, 32), "data", dtype=jnp.int32)
    return inspection.read_program(jax.jit(forward), args, mesh, parse_target(CPU), source="forward")


def test_weights_that_are_made_of_others_are_counted_among_what_is_gathered_instead():
    mesh = mesh_on(CPU, **MESH)
    bad, cured = quantized(mesh, False), quantized(mesh, True)
    finding = next(f for f in diagnosis.of(bad).findings if f.kind == "batch_made_whole")
    assert (sent(bad) - sent(cured)) / 2 < wasted(finding) <= sent(bad) - sent(cured)


@pytest.mark.parametrize("enter", [take, one_hot])
def test_the_constraint_is_tried_at_the_lookup_and_gives_what_one_written_there_gives(enter):
    spec = "rows" if enter is take else "two"
    found = diagnosis.of(program(CPU, enter, spec, trains=True), prove=True).findings
    finding = next(f for f in found if f.kind == "batch_made_whole")
    assert finding.proof.pays and finding.proof.after.wire_bytes == sent(
        program(CPU, enter, spec, trains=True, pin=("data",))
    )


def test_of_sharded_weights_the_backward_pass_alone_moves_activations_where_no_constraint_keeps_gradients_split():
    found = program(CPU, look_up, "fsdp", trains=True)
    (finding,) = [f for f in diagnosis.of(found).findings if f.kind == "batch_made_whole"]
    assert "but gradients of what comes of its lookup in weights['table']" in finding.sentence
    assert {str(t.phase) for t in finding.transfers} == {"backward"}
    # The forward pass by itself needs no word, and where the constraint saves nothing, it is not advised.
    assert "batch_made_whole" not in kinds(diagnosis.of(program(CPU, look_up, "fsdp", trains=False)))
    idle = replace(found, attempt=lambda _: found)
    assert "batch_made_whole" not in kinds(diagnosis.of(idle, prove=True))


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("megatron", {"batch": 256}),
        ("megatron", {"batch": 512, "tokens": (("data", "model"),), "trains": False}),
        ("megatron", {"batch": 256, "tokens": ("data", "model")}),
        ("two", {"tokens": ()}),
        ("two", {"batch": 4, "trains": False}),
    ],
    ids=["tensor parallel", "over the batch too", "sequence parallel", "whole batch", "small batch"],
)
def test_sums_over_axes_that_split_no_batch_or_a_small_one_need_no_word(spec, options):
    assert "batch_made_whole" not in kinds(diagnosis.of(program(CPU, look_up, spec, **options)))
