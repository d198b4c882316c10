"""State that a step gives back updated: told where it is not donated, and silent where both are kept on purpose."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from lab.diagnosis.examples import collected_anew
from tests.cases.compiling import ahead_of_time_gpu, array, cpu, mesh_on
from tests.lab.diagnosis.diagnosing import diagnosed, kinds, only

pytestmark = pytest.mark.compiles
W = P("fsdp")


def loss(w, x):
    return jnp.mean((x @ w) ** 2) + 0.1 * jnp.sum(w**2)


def adam(w, m, v, x):
    g = jax.grad(loss)(w, x)
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
    return w - m / (1e-8 + jnp.sqrt(v)), m, v


def steps(w, m, v, xs):
    """Several in one program."""
    return jax.lax.scan(lambda state, x: (adam(*state, x), None), (w, m, v), xs)[0]


def step(function, out, state: int, *x: int, **options):
    mesh = cpu(fsdp=8)
    arrays = [array(mesh, (64, 1024), "fsdp")] * state
    inputs = [array(mesh, x, *[None] * (len(x) - 2), "fsdp")] if x else []
    return diagnosed(mesh, function, *arrays, *inputs, out=out, **options)


@pytest.mark.parametrize(("function", "x"), [(adam, (32, 64)), (steps, (3, 32, 64))])
def test_parameters_and_moments_that_are_not_donated_are_held_twice(function, x):
    found = only(step(function, (W, W, W), 3, *x))
    assert (found.kind, found.memory_bytes) == ("not_donated", 3 * 8 * 1024 * 4)
    assert found.sentence.startswith("3 arrays of state (the largest is w f32[64,1024] P('fsdp', None)) are given back")
    assert "donate_argnames=('w', 'm', 'v')" in found.advice


def test_of_state_that_is_donated_in_part_the_rest_is_told():
    found = only(step(adam, (W, W, W), 3, 32, 64, donate_argnums=(0, 2)))
    assert found.memory_bytes == 8 * 1024 * 4 and found.sentence.startswith("m f32[64,1024] P('fsdp', None) is given")


def same(w, x):
    return jax.grad(loss, argnums=1)(w, x)[0, 0], w


def with_old(w, x):
    return w, w - jax.grad(loss)(w, x)


def two_ways(w, x):
    g = jax.grad(loss)(w, x)
    return w - g, w - 0.1 * g


@pytest.mark.parametrize(
    ("function", "out"),
    [(jax.grad(loss), W), (loss, P()), (same, (P(), W)), (with_old, (W, W)), (two_ways, (W, W))],
    ids=["gradient", "evaluation", "unchanged", "old and new", "two results of one"],
)
def test_what_gives_no_update_back_or_keeps_the_old_on_purpose_is_silent(function, out):
    assert kinds(step(function, out, 1, 32, 64)) == []


def optimized(params, grads, opt_state):
    moments = 0.9 * opt_state + 0.1 * grads
    return params - 0.1 * moments, moments


def test_an_optimizers_step_by_itself_is_told_and_what_only_scales_by_moments_is_not():
    found = only(step(optimized, (W, W), 3))
    assert found.advice.startswith("donate params and opt_state (") and found.memory_bytes == 2 * 8 * 1024 * 4
    assert kinds(step(lambda moments, x: (moments - x) * 0.1, W, 2)) == []


def test_an_update_of_another_sharding_or_dtype_could_take_over_no_memory():
    assert "not_donated" not in kinds(step(lambda w, x: w - jax.grad(loss)(w, x), P(None, "fsdp"), 1, 32, 64))
    narrow = step(lambda w, x: (w - jax.grad(loss)(w, x)).astype(jnp.bfloat16), W, 1, 32, 64)
    assert "not_donated" not in kinds(narrow)


def test_a_row_written_into_a_cache_copies_all_of_it_where_it_is_not_donated():
    mesh = cpu(data=8)
    cache, row, at = array(mesh, (64, 2048), "data"), array(mesh, (64, 1), "data"), array(mesh, (), dtype=jnp.int32)

    def write(cache, row, at):
        return jax.lax.dynamic_update_slice(cache, row, (0, at))

    found = only(diagnosed(mesh, write, cache, row, at, out=P("data")))
    assert (found.kind, found.memory_bytes, found.accessed_bytes) == ("not_donated", 65_536, 131_072)
    assert kinds(diagnosed(mesh, write, cache, row, at, out=P("data"), donate_argnums=0)) == []


def attended(x, keys):
    return jnp.einsum("hs,shd->hd", jax.nn.softmax(jnp.einsum("hd,shd->hs", x, keys)), keys)


def scattered(x, cache, at):
    def layer(x, keys):
        keys = keys.at[at[None]].set(x[None])
        return attended(x, keys), keys

    return jax.lax.scan(layer, x, cache)


def carried(x, cache, at):
    def layer(state, number):
        x, cache = state
        cache = jax.lax.dynamic_update_slice(cache, x[None, None], (number, at, 0, 0))
        return (attended(x, cache[number]), cache), None

    return jax.lax.scan(layer, (x, cache), jnp.arange(cache.shape[0]))[0]


def carried_by_layers(x, cache, at):
    def layer(state, number):
        x, cache = state
        keys = cache[number].at[at[None]].set(x[None])
        cache = jax.lax.dynamic_update_slice(cache, keys[None], (number, 0, 0, 0))
        return (attended(x, keys), cache), None

    return jax.lax.scan(layer, (x, cache), jnp.arange(cache.shape[0]))[0]


def summed_up(x, cache, at):
    """No state: what is collected ends here."""
    x, cache = collected_anew.step(x, cache, at)
    return x, jnp.max(cache, axis=(0, 1), keepdims=True)


def mostly_replaced(x, cache, at):
    """As a prompt does: most of each layer is new."""

    def layer(x, keys):
        keys = jax.lax.dynamic_update_slice(keys, jnp.tanh(keys[:768] + x), (at, 0, 0))
        return attended(x, keys), keys

    return jax.lax.scan(layer, x, cache)


def decoded(function, *another, **options):
    """The diagnosis of a step with results of other specs behind its own."""
    mesh = cpu(tensor=8)
    args = array(mesh, (16, 64), "tensor"), array(mesh, (4, 1024, 16, 64), None, None, "tensor")
    out = P("tensor"), P(None, None, "tensor"), *another
    return diagnosed(mesh, function, *args, array(mesh, (), dtype=jnp.int32), out=out, **options)


def from_the_last(x, cache, at):
    def layer(x, keys):
        keys = jax.lax.dynamic_update_slice(keys, x[None], (at, 0, 0))
        return attended(x, keys), keys

    return jax.lax.scan(layer, x, cache, reverse=True)


def written_from_the_last(x, cache, at):
    def layer(number, state):
        x, new = state
        keys = jax.lax.dynamic_update_slice(cache[number], x[None], (at, 0, 0))
        at_end = cache.shape[0] - 1 - number
        return attended(x, keys), jax.lax.dynamic_update_slice(new, keys[None], (at_end, 0, 0, 0))

    return jax.lax.fori_loop(0, cache.shape[0], layer, (x, jnp.zeros_like(cache)))


def read_from_the_last(x, cache, at):
    def layer(x, number):
        keys = jax.lax.dynamic_update_slice(cache[cache.shape[0] - 1 - number], x[None], (at, 0, 0))
        return attended(x, keys), keys

    return jax.lax.scan(layer, x, jnp.arange(cache.shape[0]))


def held(found):
    memory = found.ledger.memory
    return memory.arguments + memory.outputs + memory.temporaries - memory.aliased


@pytest.mark.parametrize("function", [collected_anew.step, scattered, from_the_last])
@pytest.mark.parametrize("donated", [(), 1])
def test_a_cache_that_a_scan_collects_anew_is_held_once_more_than_one_that_it_carries(function, donated):
    found, better = decoded(function, donate_argnums=donated), decoded(carried, donate_argnums=1)
    one = only(found)
    assert (one.kind, one.memory_bytes, one.accessed_bytes) == ("collected_anew", 2_097_152, 2 * 2_097_152)
    assert held(found) - held(better) >= one.memory_bytes and kinds(better) == []
    assert one.advice.startswith("carry cache" if donated else "donate cache (donate_argnames=('cache',)")
    assert one.origin.endswith(f".py:{function.__code__.co_firstlineno + 2}")


def test_a_cache_that_is_carried_or_mostly_replaced_or_ends_in_the_step_is_not_collected_anew():
    assert kinds(decoded(carried)) == ["not_donated"]
    for other in (carried_by_layers, mostly_replaced, summed_up):
        assert kinds(decoded(other, donate_argnums=1 if other is not summed_up else ())) == []


@pytest.mark.parametrize("function", [written_from_the_last, read_from_the_last])
def test_a_cache_whose_layers_change_places_has_to_be_collected_anew(function):
    assert kinds(decoded(function, donate_argnums=1)) == []


def kept_beside(x, cache, at):
    return *collected_anew.step(x, cache, at), cache


def compared(x, cache, at):
    x, new = collected_anew.step(x, cache, at)
    return x, new, jnp.max(new - cache)


def read_by_another_loop(x, cache, at):
    x, new = collected_anew.step(x, cache, at)
    return x, new, jax.lax.scan(lambda x, keys: (attended(x, keys), None), x, cache)[0]


def read_across_layers(x, cache, at):
    def layer(x, each):
        keys, number = each
        keys = jax.lax.dynamic_update_slice(keys, x[None], (at, 0, 0))
        return attended(x, keys) + attended(x, cache[(3 * number + 1) % 4]), keys

    return *jax.lax.scan(layer, x, (cache, jnp.arange(4))), x


@pytest.mark.parametrize(
    "function, another",
    [
        (kept_beside, P(None, None, "tensor")),
        (compared, P()),
        (read_by_another_loop, P("tensor")),
        (read_across_layers, P("tensor")),
    ],
)
def test_a_cache_that_is_needed_as_it_was_has_to_be_collected_anew(function, another):
    assert kinds(decoded(function, another, donate_argnums=1)) == []


def test_a_cache_that_is_given_back_with_layers_in_another_dim_is_no_update_in_place():
    def step(x, cache, at):
        x, cache = collected_anew.step(x, cache, at)
        return x, jnp.moveaxis(cache, 0, 1)

    mesh = cpu(tensor=8)
    args = array(mesh, (16, 64), "tensor"), array(mesh, (8, 8, 16, 64), None, None, "tensor")
    out = P("tensor"), P(None, None, "tensor")
    at = array(mesh, (), dtype=jnp.int32)
    assert kinds(diagnosed(mesh, step, *args, at, out=out, donate_argnums=1)) == []
    assert kinds(diagnosed(mesh, collected_anew.step, *args, at, out=out, donate_argnums=1)) == ["collected_anew"]


def of_sequences(cache, w, x, at):
    def layer(x, each):
        keys, w = each
        queries = (x @ w).reshape(4, 1, 8, 24)
        keys = jax.lax.dynamic_update_slice(keys, queries, (0, at, 0, 0))
        scores = jax.nn.softmax(jnp.einsum("bqhd,bshd->bhqs", queries, keys))
        return x + jnp.einsum("bhqs,bshd->bqhd", scores, keys).reshape(x.shape), keys

    return jax.lax.scan(layer, x, (cache, w))


@ahead_of_time_gpu
def test_a_cache_is_known_where_it_is_collected_with_its_dims_in_another_order():
    target = "gpu:h100:1x8"
    mesh = mesh_on(target, tensor=8)
    cache, w = (
        array(mesh, (3, 4, 256, 8, 24), None, None, None, "tensor"),
        array(mesh, (3, 192, 192), None, None, "tensor"),
    )
    args = cache, w, array(mesh, (4, 192)), array(mesh, (), dtype=jnp.int32)
    one = only(diagnosed(mesh, of_sequences, *args, target=target, donate_argnums=0))
    assert (one.kind, one.memory_bytes) == ("collected_anew", 3 * 4 * 256 * 24 * 4)
