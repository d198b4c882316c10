"""Chapter 18: which order of sharding constraints keeps the all-to-all of a declared dispatch?

The layer is declared, in two formulations: rows are looked up and put into slots, or chosen by a product with a one-hot
array (GShard). Source of the order that loses it: vllm-project/tpu-inference, review of pull request 2137.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab.book.experts import all_to_all_wire_bytes
from lab.compile.inspection import inspect_program
from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Totals
from lab.harness.claim import Claim, calculated, decided
from lab.harness.evidence import counted
from lab.harness.question import Question, Row
from lab.hlo.shapes import bits
from lab.meshes.attached import device_count
from lab.meshes.axes import EXPERT, Axes
from lab.meshes.backends import make_mesh, prepare
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.models import experts, routers
from lab.programs.models.shape import indexable

OWN, EXPERTS = PartitionSpec(EXPERT), PartitionSpec(None, EXPERT)
"""Of [B, E, C, D]: each device its own sequences, or its own experts."""
ORDERS = {"nowhere": (), "to its experts at once": (EXPERTS,), "to its own device, then to its experts": (OWN, EXPERTS)}


@dataclass(frozen=True)
class Assumed:
    """One sequence a device, float32, one expert a token; the sizes of the reported case.

    Raises:
      UsageError: sizes beyond int32.
    """

    length: int = 64
    embed: int = 128
    mlp: int = 256
    experts: int = 16
    slots: int = 8
    target: str = "gpu:h100:1x8"

    def __post_init__(self) -> None:
        indexable(length=self.length, embed=self.embed, mlp=self.mlp, **{"experts * slots": self.experts * self.slots})


def looked_up(x_BSD: jax.Array, routes: routers.Routes, s: Assumed) -> jax.Array:
    return jax.vmap(partial(experts.dispatched, experts=s.experts, slots=s.slots))(x_BSD, routes)


def put_back(y_BECF: jax.Array, routes: routers.Routes, s: Assumed) -> jax.Array:
    return jax.vmap(experts.combined)(y_BECF, routes)


def one_hot(routes: routers.Routes, s: Assumed) -> jax.Array:
    """[B, S, E, C]: zeros for what is dropped."""
    return (
        jax.nn.one_hot(routes.expert_Tk[..., 0], s.experts)[..., None]
        * jax.nn.one_hot(routes.slot_Tk[..., 0], s.slots)[..., None, :]
    )


def multiplied(x_BSD: jax.Array, routes: routers.Routes, s: Assumed) -> jax.Array:
    return jnp.einsum("bsec,bsd->becd", one_hot(routes, s), x_BSD)


def multiplied_back(y_BECF: jax.Array, routes: routers.Routes, s: Assumed) -> jax.Array:
    return jnp.einsum("bsec,becf,bs->bsf", one_hot(routes, s), y_BECF, routes.weight_Tk[..., 0])


FORMULATIONS: dict[str, tuple[Callable[..., jax.Array], Callable[..., jax.Array]]] = {
    "looked up": (looked_up, put_back),
    "multiplied": (multiplied, multiplied_back),
}


@cache
def compiled(s: Assumed, formulation: str, order: str) -> Ledger:
    """One layer's forward pass.

    Raises:
      UsageError: experts that do not split over the target, or one device.
    """
    target = parse_target(s.target)
    prepare([target])
    mesh = make_mesh(target, Axes.of({EXPERT: device_count(target)}))
    if mesh.size == 1:
        raise UsageError(f"target={target} has one device, which sends nothing; take two or more, such as cpu:8")
    if s.experts % mesh.size:
        raise UsageError(
            f"experts={s.experts} is not divisible by the {mesh.size} devices of {target}; make it a multiple"
        )
    program = jax.jit(partial(layer, s, mesh, formulation, order), out_shardings=NamedSharding(mesh, OWN))
    return inspect_program(program, shapes(s, mesh), mesh, target, source=order)


def layer(
    s: Assumed, mesh: Mesh, formulation: str, order: str, x_BSD: jax.Array, router_DE: jax.Array, w_EDF: jax.Array
) -> jax.Array:
    there, back = FORMULATIONS[formulation]
    routes = jax.vmap(partial(routers.routes, k=1))(routers.softmax_gates(x_BSD @ router_DE))
    z_BECF = jnp.einsum("becd,edf->becf", held(mesh, there(x_BSD, routes, s), ORDERS[order]), w_EDF)
    return back(held(mesh, z_BECF, ORDERS[order][::-1]), routes, s)


def held(mesh: Mesh, x: jax.Array, specs: tuple[PartitionSpec, ...]) -> jax.Array:
    for spec in specs:
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
    return x


def shapes(s: Assumed, mesh: Mesh) -> tuple[jax.ShapeDtypeStruct, ...]:
    taken = (
        ((mesh.size, s.length, s.embed), OWN),
        ((s.embed, s.experts), PartitionSpec()),
        ((s.experts, s.embed, s.mlp), OWN),
    )
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec)) for shape, spec in taken)


def book(s: Assumed) -> float:
    """Slots there, and wider ones back."""
    return float(
        all_to_all_wire_bytes(s.experts * s.slots * (s.embed + s.mlp), device_count(parse_target(s.target)), 1)
    )


def sent(measured: Ledger) -> float:
    """Elements, since TPUs multiply and move float32 in bfloat16."""
    return float(sum(8 * known(t.wire_bytes) * known(t.executions) / bits(t.dtype) for t in measured.split().transfers))


def answer(s: Assumed) -> tuple[Row, ...]:
    return tuple(
        Row(f"{how}, held {order}", sent(compiled(s, how, order)), "elements", book(s))
        for how in FORMULATIONS
        for order in ORDERS
    )


def claims(s: Assumed) -> tuple[Claim, ...]:
    return tuple(_claim(s, formulation, order) for formulation in FORMULATIONS for order in ORDERS)


def _claim(s: Assumed, formulation: str, order: str) -> Claim:
    measured = compiled(s, formulation, order)
    sizes = {
        kind: Totals.of(t for t in measured.transfers if t.kind is kind).payload_bytes
        for kind in dict.fromkeys(t.kind for t in measured.transfers)
    }
    evidence = (
        " and ".join(f"{kind} of {counted(size)} B" for kind, size in sizes.items())
        + f": {sent(measured) / book(s):.2f} times the elements of two all-to-alls"
    )
    statement = f"a dispatch that is {formulation}, held {order}"
    if len(ORDERS[order]) < 2:
        return calculated("A36", evidence, statement=statement)
    return decided(
        "A36",
        set(sizes) == {Kind.ALL_TO_ALL} and sent(measured) == book(s),
        evidence,
        statement=f"{statement}, is two all-to-alls",
    )


EXPERIMENT = Question(
    name="ch18_constraint_order",
    chapter=18,
    question="Which order of sharding constraints keeps the all-to-all of a declared dispatch?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
