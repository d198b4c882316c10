"""What a strategy is: where arrays lie, where values change hands, and what theory says that costs. Strategies compose with `|`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lab.ledger import Ledger, Transfer
from lab.models.mlp import DTYPES, MlpShape, Seam, Seams, Weights, loss
from meshes.axes import Axes
from meshes.layouts import Layout

UP_DF, DOWN_FD = ("embed", "mlp"), ("mlp", "embed")
X_BD, HIDDEN_BF = ("batch", "embed"), ("batch", "mlp")

Program = tuple[Callable[..., Any], tuple[Any, ...]]
Terms = Callable[[MlpShape, Layout, Axes], tuple[Transfer, ...]]


@dataclass(frozen=True)
class Strategy:
    """A way to spread a training step over a mesh.

    `a | b` does both, each on its own axes: layouts unite, seams follow each other, terms add up.

    Attributes:
      stored: layout of weights and gradients between steps.
      used: layout inside a layer, of weights and activations.
      seams: the collectives, written out; their transposes are those of the backward pass.
      terms: (shape, used, axes) to the transfers that theory asks for, `used` being the layout of the whole composition.
    """

    stored: Layout
    used: Layout
    seams: Seams
    terms: Terms

    def __or__(self, other: Strategy) -> Strategy:
        return Strategy(
            stored=self.stored | other.stored,
            used=self.used | other.used,
            seams=self.seams | other.seams,
            terms=lambda shape, used, axes: self.terms(shape, used, axes) + other.terms(shape, used, axes),
        )

    def predict(self, shape: MlpShape, axes: Axes) -> Ledger:
        """The ledger of one step that theory asks for.

        Raises:
          Unusable: a dim does not split over its axes, or the mesh lacks an axis.
        """
        self._check(shape, axes)
        return Ledger(self.terms(shape, self.used, axes), devices=axes.size, mesh=axes.shape)

    def build(self, style: str, shape: MlpShape, mesh: Mesh) -> Program:
        """One step, (weights, x_BD, y_BD) to (loss, gradients), and its arguments as shapes with shardings.

        Args:
          style: "declared": the compiler inserts the collectives that the layouts ask for; "explicit": `seams` are written out.
        Raises:
          Unusable: a dim does not split over its axes, or the mesh lacks an axis.
        """
        self._check(shape, Axes.of(mesh.shape))
        weights = Weights(self.stored.spec("layers", *UP_DF), self.stored.spec("layers", *DOWN_FD))
        batch = self.used.spec(*X_BD)
        if style == "declared":
            step = loss_and_gradients(shape, self._constraints(mesh))
        else:
            local = loss_and_gradients(shape, self.seams)
            step = jax.shard_map(local, mesh=mesh, in_specs=(weights, batch, batch), out_specs=(PartitionSpec(), weights))
        return _jitted(step, shape, mesh, weights, batch)

    def _constraints(self, mesh: Mesh) -> Seams:
        """The seams of the declared style: every value held to its layout, a weight first to the one, then to the other."""

        def hold(*specs: PartitionSpec) -> Seam:
            return partial(_held, shardings=tuple(NamedSharding(mesh, spec) for spec in specs))

        return Seams(
            enter=hold(self.used.spec(*X_BD)),
            up=hold(self.stored.spec(*UP_DF), self.used.spec(*UP_DF)),
            hidden=hold(self.used.spec(*HIDDEN_BF)),
            down=hold(self.stored.spec(*DOWN_FD), self.used.spec(*DOWN_FD)),
            leave=hold(self.used.spec(*X_BD)),
        )

    def _check(self, shape: MlpShape, axes: Axes) -> None:
        for layout, dims in ((self.stored, UP_DF), (self.used, X_BD), (self.used, HIDDEN_BF)):
            layout.local_shape(dims, [getattr(shape, dim) for dim in dims], axes)


def loss_and_gradients(shape: MlpShape, seams: Seams = Seams()) -> Callable[..., Any]:
    """(weights, x_BD, y_BD) to (loss, gradients): without seams, the step of one device."""
    return jax.value_and_grad(partial(loss, shape=shape, seams=seams))


def _held(x: jax.Array, shardings: tuple[NamedSharding, ...]) -> jax.Array:
    for sharding in shardings:
        x = jax.lax.with_sharding_constraint(x, sharding)
    return x


def _jitted(step: Callable[..., Any], shape: MlpShape, mesh: Mesh, weights: Weights, batch: PartitionSpec) -> Program:
    dtype, on = DTYPES[shape.dtype], partial(NamedSharding, mesh)
    x_BD = jax.ShapeDtypeStruct((shape.batch, shape.embed), dtype, sharding=on(batch))
    up_LDF = jax.ShapeDtypeStruct((shape.layers, shape.embed, shape.mlp), dtype, sharding=on(weights.up))
    down_LFD = jax.ShapeDtypeStruct((shape.layers, shape.mlp, shape.embed), dtype, sharding=on(weights.down))
    gradients = Weights(on(weights.up), on(weights.down))
    return jax.jit(step, out_shardings=(on(PartitionSpec()), gradients)), (Weights(up_LDF, down_LFD), x_BD, x_BD)
