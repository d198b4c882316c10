"""Where XLA's own parser accepts a text, ours reads the same instructions: names, opcodes, result shapes and operands,
in order."""

from functools import cache

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from lab.hlo.text import parse
from tests.cases.compiling import array, compiled, cpu, pinned
from tests.data import kept
from tests.hlo_corpus.corpus import OURS, theirs
from tests.hlo_corpus.xla_parser import Read, read_by_xla, without_layouts

THEIRS = theirs("hlo/*/*", "cases/compiled/*/*")
TEXTS = {**OURS, **THEIRS}


@cache
def accepted(name: str) -> dict[str, list[Read]] | None:
    """As XLA reads it; None where it refuses."""
    try:
        return read_by_xla(TEXTS[name]())
    except jax.errors.JaxRuntimeError:
        return None


def read_by_us(text: str) -> dict[str, list[Read]]:
    computations = parse(text).computations.values()
    return {
        c.name: [Read(i.name, i.opcode, without_layouts(i.shape), i.operands) for i in c.instructions]
        for c in computations
    }


def printed(by_xla: dict[str, list[Read]], text: str) -> dict[str, list[Read]]:
    """Without the computations that XLA makes for asynchronous operations printed in short."""
    return {
        name: instructions
        for name, instructions in by_xla.items()
        if not name.startswith("async_wrapped") or f"%{name} (" in text
    }


@pytest.mark.parametrize("name", TEXTS)
def test_instructions_of_kept_and_published_texts_are_those_of_xla(name):
    by_xla, text = accepted(name), TEXTS[name]()
    if by_xla is None:
        pytest.skip(f"XLA's parser of jax {jax.__version__} refuses this text of another version, or cut one")
    assert read_by_us(text) == printed(by_xla, text)


def test_xla_accepts_every_kept_text_of_its_own_version():
    own = [name for name, entry in kept.index().items() if entry["jax"] == jax.__version__]
    assert [name for name in own if accepted(name) is None] == []


@pytest.mark.skipif(not THEIRS, reason="the published and compiled texts of others, ../shared, are absent")
def test_xla_accepts_201_of_204_texts_of_others():
    """It refuses the two cut ones and one of another version's attributes."""
    assert (sum(accepted(name) is not None for name in THEIRS), len(THEIRS)) == (201, 204)


MESHES = [{"a": 8}, {"a": 4, "b": 2}, {"a": 2, "b": 2, "c": 2}]
STEPS = {
    "tanh": jnp.tanh,
    "square": lambda x: x @ x.T,
    "transpose": jnp.transpose,
    "softmax": lambda x: jax.nn.softmax(x, axis=-1),
    "roll": lambda x: jnp.roll(x, 1, axis=0),
    "sort": lambda x: jnp.sort(x, axis=0),
    "rows": lambda x: x[jnp.arange(16) % 5],
    "sum": lambda x: x - x.sum(axis=0, keepdims=True),
    "half": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    "scan": lambda x: jax.lax.scan(lambda h, _: (jnp.sin(h @ h), None), x, length=3)[0],
    "branch": lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x, lambda: x.T),
    "until": lambda x: jax.lax.while_loop(lambda h: h.max() < 1, lambda h: 2 * h + 1, x),
}


@st.composite
def programs(draw):
    """A mesh, and steps on [16, 16] matrices, after each of which the sharding may be pinned."""
    axes = draw(st.sampled_from(MESHES))
    side = st.sampled_from([None, *axes, tuple(axes)])
    specs = st.tuples(side, side).filter(lambda spec: spec[0] is None or not set(spec[0]) & set(spec[1] or ()))
    steps = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.none() | specs), min_size=1, max_size=5)
    return axes, draw(specs), draw(steps), draw(specs)


@pytest.mark.compiles
@settings(max_examples=50, deadline=None, derandomize=True)
@given(programs())
def test_instructions_of_fifty_random_sharded_programs_are_those_of_xla(program):
    axes, before, steps, after = program
    mesh = cpu(**axes)

    def run(x):
        for step, spec in steps:
            x = STEPS[step](x) if spec is None else pinned(mesh, STEPS[step](x), *spec)
        return x

    text = compiled(mesh, run, array(mesh, (16, 16), *before), out=P(*after)).as_text()
    assert read_by_us(text) == printed(read_by_xla(text), text)
