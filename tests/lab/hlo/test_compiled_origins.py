"""The lines by which transfers of compiled programs are shown: what all modules call, flax modules, a single file."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import lab
from lab.core.ledger import Ledger
from lab.hlo import read_text
from lab.meshes.axes import Axes
from lab.report.tables import ledger_text
from tests.cases.compiling import ahead_of_time_gpu, compiled, mesh_on
from tests.lab.diagnosis.diagnosing import diagnosed, line
from tests.lab.hlo.shared_helpers import constrain, einsum

pytestmark = pytest.mark.compiles
SIZE, AXES = 64, {"data": 2, "tensor": 2}
PRODUCT = P("data", "tensor"), P("tensor"), P("tensor"), P("tensor")
on_cpu_and_gpu = pytest.mark.parametrize("target", ["cpu:4", pytest.param("gpu:h100:1x4", marks=ahead_of_time_gpu)])


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        w = self.param("w", nn.initializers.ones, (SIZE, SIZE))
        return jnp.sin(einsum(x, w))


class Nnx(nnx.Module):
    def __init__(self, w):
        self.w = nnx.Param(w)

    def project(self, x):
        return jnp.cos(einsum(x, self.w[...]))


def plain(x, w):
    return jnp.tan(einsum(x, w))


def model(x, w, v, u):
    x = Linen().apply({"params": {"w": w}}, x)
    x = Nnx(v).project(x)
    return plain(x, u)


def sine(x):
    return jnp.sin(constrain(constrain(x, "data"), None, "data"))


def cosine(x):
    return jnp.cos(constrain(constrain(x, None, "data"), "data"))


def tangent(x):
    return jnp.tan(constrain(constrain(x, "data"), None))


def turned(x):
    return tangent(cosine(sine(jnp.sin(x))))


def square(x, w):
    return jnp.sin(x @ w)


def squares(x, w, v, u):
    x = square(x, w)
    x = square(x, v)
    return square(x, u)


def products(x, w, v, u):
    x = jnp.sin(x @ w)
    x = jnp.cos(x @ v)
    return jnp.tan(x @ u)


def arrays(mesh, specs):
    return [jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32, sharding=NamedSharding(mesh, spec)) for spec in specs]


def inspected(target, function, *specs):
    mesh = mesh_on(target, **AXES)
    return lab.inspect(function, *arrays(mesh, specs), mesh=mesh, target=target)


def origins(ledger):
    return sorted(t.origin for t in ledger.transfers)


def via(helper, *callers):
    return sorted(f"{line(function, below)} {name} via {line(helper, 1)}" for function, below, name in callers)


CALLERS = (
    (Linen.__call__.__wrapped__, 3, "Linen"),
    (Nnx.project, 1, "Nnx.project"),
    (plain, 1, "plain"),
)


@on_cpu_and_gpu
def test_what_all_modules_call_is_shown_by_the_line_that_calls_it(target):
    found = inspected(target, model, *PRODUCT)
    assert origins(found) == via(einsum, *CALLERS)
    assert sorted(t.scope_or_function for t in found.transfers) == ["Linen", "Nnx.project()", "plain()"]
    (linen,) = [t for t in found.transfers if t.scope]
    assert [frame.name for frame in linen.stack][:3] == ["einsum", "Linen", "model"]


def test_a_text_alone_tells_the_same_lines():
    mesh = mesh_on("cpu:4", **AXES)
    text = compiled(mesh, model, *arrays(mesh, PRODUCT)).as_text()
    assert origins(read_text(text, axes=Axes.of(AXES))) == via(einsum, *CALLERS)


@on_cpu_and_gpu
def test_a_wrapped_constraint_is_shown_by_its_three_call_sites(target):
    found = inspected(target, turned, P("data"))
    assert origins(found) == sorted(
        f"{line(function, 1)} {function.__name__} via {line(constrain, 5)}" for function in (sine, cosine, tangent)
    )


def test_in_one_file_a_line_that_all_call_is_shown_by_line_alone():
    found = inspected("cpu:4", squares, *PRODUCT)
    inner = line(square, 1).rpartition(":")[2]
    assert origins(found) == sorted(f"{line(squares, number)} via line {inner}" for number in (1, 2, 3))


def test_lines_of_one_file_that_differ_stand_by_themselves():
    assert origins(inspected("cpu:4", products, *PRODUCT)) == sorted(line(products, number) for number in (1, 2, 3))


def squared(w, x):
    return jnp.sum(einsum(x, w) ** 2) + jnp.sum(einsum(w, x) ** 2)


def test_a_finding_has_the_line_that_calls_a_helper_and_the_whole_stack():
    mesh = mesh_on("cpu:4", **AXES)
    found = diagnosed(mesh, jax.grad(squared), *arrays(mesh, (P("data"), P("data"))))
    assert found.findings and {finding.origin for finding in found.findings} <= set(origins(found.ledger))
    for finding in found.findings:
        assert finding.json_object().stack == finding.stack
        assert [frame.name for frame in finding.stack][:2] == ["einsum", "squared"]


def metrics(x, y):
    return (
        jnp.sum(jnp.tanh(x)),
        jnp.sum(jnp.abs(x)),
        jnp.sum(jnp.sin(y)),
    )


def summed_as_they_are(x, y):
    return jax.lax.psum(x, "data"), jax.lax.psum(y, "data")


@ahead_of_time_gpu
def test_numbers_that_a_gpu_sums_together_are_shown_by_the_lines_of_each_and_arguments_by_who_joined_them():
    mesh = mesh_on("gpu:h100:1x4", **AXES)
    args = [jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32, sharding=NamedSharding(mesh, P("data")))] * 2
    (joined,) = lab.inspect(compiled(mesh, metrics, *args), mesh=mesh).transfers
    lines = [line(metrics, below) for below in (2, 3, 4)]
    assert sorted(part.origin for part in joined.parts) == lines and joined.origin in lines
    if joined.op_name is None:  # From jax 0.11 on it has the name of one.
        assert sorted(part.origin for part in joined.split()) == lines
        assert f"{joined.origin} and 2 more lines" in ledger_text(Ledger((joined,)))

    by_hand = jax.shard_map(summed_as_they_are, mesh=mesh, in_specs=P("data"), out_specs=P())
    (nobodys,) = lab.inspect(compiled(mesh, by_hand, *args), mesh=mesh).transfers
    assert [part.origin for part in nobodys.parts] == [None, None]
    if nobodys.op_name is None:
        assert "XLA's combiner" in ledger_text(Ledger((nobodys,)))


def made_in_one_scope_and_summed_in_another(x, y):
    with jax.named_scope("made"):
        x = jnp.sin(x)
    with jax.named_scope("exchange"):
        return jax.lax.psum(x, "data"), jax.lax.psum(y, "data")


@ahead_of_time_gpu
def test_sums_that_a_gpu_packs_into_one_are_of_the_scope_that_sums_and_not_of_the_one_that_makes():
    mesh = mesh_on("gpu:h100:1x4", **AXES)
    args = [jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32, sharding=NamedSharding(mesh, P("data")))] * 2
    program = jax.shard_map(made_in_one_scope_and_summed_in_another, mesh=mesh, in_specs=P("data"), out_specs=P())
    (packed,) = lab.inspect(compiled(mesh, program, *args), mesh=mesh).transfers
    assert [part.scope for part in packed.parts] == ["exchange", "exchange"]
