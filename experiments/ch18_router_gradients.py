"""Chapter 18: what gradient reaches a router from the loss and from its load-balancing terms?

A router of random logits, as the decoder's layers run it, differentiated by JAX, against the chapter's formulas. Seeds
are fixed.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lab.book.experts import balance_gradient, gate_gradient
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.meshes.errors import UsageError
from lab.programs.models import experts, routers

CLOSE = 1e-5
"""Of the largest entry, float32."""
MOST_NUMBERS = 1 << 26
"""Of an array, 256 MiB in float32."""


@dataclass(frozen=True)
class Assumed:
    """One group of tokens.

    Raises:
      UsageError: a token that visits one expert or all, or arrays that are too large.
    """

    tokens: int = 64
    experts: int = 8
    top_k: int = 2
    embed: int = 16

    def __post_init__(self) -> None:
        if not 2 <= self.top_k < self.experts:
            raise UsageError(
                f"top_k={self.top_k} of experts={self.experts}: expected 2 or more, and fewer than there are"
            )
        if (numbers := max(self.experts * self.tokens * self.top_k, self.embed) * self.experts) > MOST_NUMBERS:
            found = f"tokens={self.tokens}, experts={self.experts}, top_k={self.top_k}, embed={self.embed}"
            raise UsageError(f"{found}: arrays of {numbers:,} numbers; expected {MOST_NUMBERS:,} at most")

    def logits(self, groups: int = 1) -> jax.Array:
        """[groups, T, E]."""
        return jax.random.normal(jax.random.key(18), (groups, self.tokens, self.experts))


def answer(assumed: Assumed) -> tuple[Row, ...]:
    kinds = {
        "the gate of one": (1, False),
        "the gate of one, normalised": (1, True),
        f"gates of {assumed.top_k}, normalised": (assumed.top_k, True),
    }
    return tuple(
        Row(f"largest gradient of a token's logits by {kind}", float(np.abs(_mixed(assumed, *how)[0]).max()))
        for kind, how in kinds.items()
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    parts = _top_1, _router_gradient, _balance, _global_balance, _z
    return tuple(claim for part in parts for claim in part(assumed))


def _mixed(assumed: Assumed, k: int, is_normalised: bool) -> tuple[np.ndarray, routers.Routes, jax.Array, jax.Array]:
    """The gradient by one token's logits of <u, y>, y = sum w_i E_i; with routes, outputs and u."""
    outputs_ED, u_D = (
        jax.random.normal(jax.random.key(seed), shape)
        for seed, shape in ((1, (assumed.experts, assumed.embed)), (2, (assumed.embed,)))
    )

    def loss(logits_TE: jax.Array) -> jax.Array:
        routes = routers.routes(routers.softmax_gates(logits_TE), k)
        weight_Tk = routes.weight_Tk / routes.weight_Tk.sum(-1, keepdims=True) if is_normalised else routes.weight_Tk
        return experts.combined(outputs_ED[:, None], routes._replace(weight_Tk=weight_Tk))[0] @ u_D

    logits_TE = assumed.logits()[0, :1]
    return (
        np.asarray(jax.grad(loss)(logits_TE)[0]),
        routers.routes(routers.softmax_gates(logits_TE), k),
        outputs_ED,
        u_D,
    )


def _top_1(assumed: Assumed) -> tuple[Claim, ...]:
    plain, normalised = (np.abs(_mixed(assumed, 1, is_normalised)[0]).max() for is_normalised in (False, True))
    evidence = (
        f"the largest gradient of the logits is {plain:.2g} with the gate itself, {normalised:.2g} with the gate "
        "normalised to 1"
    )
    return (
        decided(
            "ch18.topk_gate",
            plain > 1e-3,
            evidence,
            statement="for k = 1 the gate itself trains the router",
            structural=True,
        ),
        decided(
            "ch18.topk_gate",
            normalised > 1e-3,
            evidence,
            statement="a normalised gate trains it for every k",
            disputed="4-5:D-51",
        ),
    )


def _router_gradient(assumed: Assumed) -> tuple[Claim, ...]:
    found_E, routes, outputs_ED, u_D = _mixed(assumed, assumed.top_k, is_normalised=False)
    chosen, w = np.asarray(routes.expert_Tk[0]), np.asarray(routes.weight_Tk[0])
    outputs, u = np.asarray(outputs_ED)[chosen], np.asarray(u_D)
    book, printed, unit = gate_gradient(w, outputs, u), w * (outputs @ u), np.abs(found_E).max()
    off = [float(np.abs(found_E[chosen] - each).max() / unit) for each in (book, printed)]
    others = np.abs(np.delete(found_E, chosen)).max()
    evidence = (
        f"g(<u, E> - <u, y>) is off by {off[0]:.1e} of the largest, g <u, E> by {off[1]:.2f}; experts that were "
        f"not chosen get {others:.1e}"
    )
    return (
        decided("ch18.router_gradient", off[0] < CLOSE and others < CLOSE * unit, evidence),
        decided(
            "ch18.router_gradient",
            off[1] < CLOSE,
            evidence,
            statement="a gate's gradient is g <u, E>",
            disputed="4-5:D-50",
        ),
    )


def _balance(assumed: Assumed) -> tuple[Claim, ...]:
    logits_TE = assumed.logits()[0]
    expert_Tk = routers.routes(routers.softmax_gates(logits_TE), assumed.top_k).expert_Tk
    found_TE = np.asarray(jax.grad(lambda z: routers.balance_loss(routers.softmax_gates(z), expert_Tk))(logits_TE))
    f_E, gates_TE = (
        np.asarray(routers.assigned(expert_Tk, assumed.experts)),
        np.asarray(routers.softmax_gates(logits_TE)),
    )
    off = float(
        np.abs(found_TE - balance_gradient(f_E, gates_TE, tokens=assumed.tokens)).max() / np.abs(found_TE).max()
    )
    gates_52 = jnp.array([(0.51, 0.49)] * 3 + [(0.01, 0.99)] * 2)
    low = float(routers.balance_loss(gates_52, jnp.argmax(gates_52, -1, keepdims=True)))
    lower = f"loads of 3 to 2 with mean gates of 0.31 and 0.69 cost {low:.3f}, balance 1"
    return (
        decided(
            "ch18.aux_loss",
            off < CLOSE,
            f"(E/T) g (f - sum f g) is off by {off:.1e} of the largest gradient",
            statement="its gradient, shares held fixed",
        ),
        decided("ch18.aux_loss", low >= 1, lower, statement="no loss is below that of balance", disputed="4-5:D-45"),
    )


def _global_balance(assumed: Assumed) -> tuple[Claim, ...]:
    """Of ranks whose tokens differ: each has a favourite expert of its own, and together they are in balance."""
    E, T, k = assumed.experts, assumed.tokens, assumed.top_k
    logits_PTE = assumed.logits(E) + 3 * jnp.eye(E)[:, None]
    gates_PTE = routers.softmax_gates(logits_PTE)
    expert_PTk = jax.vmap(lambda g_TE: routers.routes(g_TE, k).expert_Tk)(gates_PTE)
    local = float(jnp.mean(jax.vmap(routers.balance_loss)(gates_PTE, expert_PTk)))
    means = jnp.mean(jax.vmap(partial(routers.assigned, experts=E))(expert_PTk), 0), jnp.mean(gates_PTE, (0, 1))
    from_means, whole = (
        float(E * means[0] @ means[1]),
        float(routers.balance_loss(gates_PTE.reshape(-1, E), expert_PTk.reshape(-1, k))),
    )
    evidence = (
        f"{E} ranks of {T} tokens, each with a favourite: losses of their own average to {local:.2f}, that of all "
        f"tokens is {whole:.3f}"
    )
    return (
        decided(
            "A38",
            abs(from_means - whole) < CLOSE and local > 1.5 * whole,
            f"{evidence}; 2 E = {2 * E} averaged numbers give {from_means:.3f}",
            structural=True,
        ),
    )


def _z(assumed: Assumed) -> tuple[Claim, ...]:
    logits_TE = assumed.logits()[0]
    book, found, shifted = (
        float(np.mean(np.log(np.exp(np.asarray(logits_TE, np.float64)).sum(-1)) ** 2)),
        *map(float, map(routers.z_loss, (logits_TE, logits_TE + 1))),
    )
    same = float(jnp.abs(routers.softmax_gates(logits_TE) - routers.softmax_gates(logits_TE + 1)).max())
    evidence = (
        f"{found:.4f}, in float64 {book:.4f}; logits that are 1 larger give the same gates within {same:.0e} and "
        f"cost {shifted:.4f}"
    )
    holds = abs(found - book) < CLOSE * book and shifted > found
    return (decided("ch18.z_loss", holds, evidence, structural=True),)


EXPERIMENT = Question(
    name="ch18_router_gradients",
    chapter=18,
    question="What gradient reaches a router from the loss and from its load-balancing terms?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
    is_quick=False,
)
