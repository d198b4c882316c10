"""Chapter 18: where do routers send tokens, and what happens to tokens that find no slot?

Routers of random logits, as the decoder's layers run them, against the chapter's formulas. Seeds are fixed.
"""

from dataclasses import dataclass
from functools import cache, partial
from math import ceil

import jax
import jax.numpy as jnp
import numpy as np

from lab.book.experts import (
    capacity,
    dropped_share,
    entropy_nats,
    gini,
    tokens_per_expert,
)
from lab.harness.claim import Claim, calculated, decided
from lab.harness.question import Question, Row
from lab.meshes.errors import UsageError
from lab.programs.models import experts, routers

FACTORS = (1.0, 1.25, 1.5)
DRAWS, CHOSEN_GROUPS = 20_000, 100
MOST_NUMBERS = 1 << 26
"""Of an array, 256 MiB in float32."""


@dataclass(frozen=True)
class Assumed:
    """Groups of tokens that are routed apart; the chapter's exercise has 64 tokens, 8 experts, 2 for each token.

    Raises:
      UsageError: no groups, a token that visits one expert or all, experts that take fewer than two tokens, or arrays
        that are too large.
    """

    tokens: int = 64
    experts: int = 8
    top_k: int = 2
    groups: int = 4000

    def __post_init__(self) -> None:
        if not 2 <= self.top_k < self.experts or self.groups < 1:
            raise UsageError(
                f"top_k={self.top_k} of experts={self.experts}, groups={self.groups}: expected 2 or more, fewer than "
                "there are, and 1 or more"
            )
        if self.tokens < (least := ceil(2 * self.experts / self.top_k)):
            raise UsageError(
                f"tokens={self.tokens} for experts={self.experts}, top_k={self.top_k}: expected {least} or more, two "
                "for each expert"
            )
        if (
            numbers := max(max(self.groups, CHOSEN_GROUPS) * self.tokens * self.top_k, DRAWS) * self.experts
        ) > MOST_NUMBERS:
            found = f"tokens={self.tokens}, experts={self.experts}, top_k={self.top_k}, groups={self.groups}"
            raise UsageError(f"{found}: arrays of {numbers:,} numbers; expected {MOST_NUMBERS:,} at most")

    def gates(self, groups: int) -> jax.Array:
        """[groups, T, E] of a router that prefers no expert."""
        return routers.softmax_gates(jax.random.normal(jax.random.key(18), (groups, self.tokens, self.experts)))

    def slots(self, factor: float) -> int:
        return int(capacity(self.tokens, self.experts, self.top_k, factor))

    def dropped(self, factor: float) -> float:
        """Of a uniform router, by the binomial distribution."""
        return float(dropped_share(self.tokens, self.top_k / self.experts, self.slots(factor)))


@cache
def slots_taken(assumed: Assumed) -> np.ndarray:
    """[groups, T, k]: the slot that each assignment asks for."""
    route = jax.jit(jax.vmap(lambda gates_TE: routers.routes(gates_TE, assumed.top_k).slot_Tk))
    return np.asarray(route(assumed.gates(assumed.groups)))


def dropped(assumed: Assumed, factor: float) -> float:
    return float((slots_taken(assumed) >= assumed.slots(factor)).mean())


@cache
def loads(assumed: Assumed) -> np.ndarray:
    """[E]: assignments of one group."""
    return np.bincount(
        np.asarray(routers.routes(assumed.gates(1)[0], assumed.top_k).expert_Tk).ravel(), minlength=assumed.experts
    )


def answer(assumed: Assumed) -> tuple[Row, ...]:
    shares = (
        Row(f"dropped at C_f={f:g}, {assumed.slots(f)} slots", dropped(assumed, f), "of all", assumed.dropped(f))
        for f in FACTORS
    )
    return (
        *shares,
        Row("entropy of one group's loads", float(entropy_nats(loads(assumed))), "nats"),
        Row("their Gini coefficient", float(gini(loads(assumed)))),
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    parts = _drops, _overflow, _residual, _expert_choice, _noise, _spread
    return tuple(claim for part in parts for claim in part(assumed))


def _drops(assumed: Assumed) -> tuple[Claim, ...]:
    found, book = ([share(f) for f in FACTORS] for share in (lambda f: dropped(assumed, f), assumed.dropped))
    # Five deviations of a share of so many assignments.
    is_close = all(
        abs(a - b) < 5 * (b / (assumed.groups * assumed.top_k)) ** 0.5 for a, b in zip(found, book, strict=True)
    )
    evidence = ", ".join(
        f"{share:.2%} at C_f={f:g} (binomial {p:.2%})" for f, share, p in zip(FACTORS, found, book, strict=True)
    )
    return (
        decided("ch18.drop_rate_exercise", is_close, evidence, statement="a uniform router drops E[(X - C)+]/E[X]"),
        decided(
            "ch18.drop_rate_exercise",
            found[1] > 0.09,
            evidence,
            statement="a capacity of 1.25 drops 10 %",
            disputed="4-5:D-52",
        ),
    )


def _overflow(assumed: Assumed) -> tuple[Claim, ...]:
    """All tokens want the same experts."""
    T, E, k, slots = assumed.tokens, assumed.experts, assumed.top_k, assumed.slots(1.25)
    routes = routers.routes(jnp.broadcast_to(routers.softmax_gates(jnp.arange(E, 0, -1.0)), (T, E)), k)
    sent_ECD = experts.dispatched(jnp.ones((T, 1)), routes, E, slots)
    empty, served = (
        int((np.asarray(sent_ECD) == 0).all((1, 2)).sum()),
        int((np.asarray(experts.combined(sent_ECD, routes)) > 0).sum()),
    )
    evidence = (
        f"{T} tokens with the same choice fill {slots} slots of {k} experts: {T - served} pass only through the "
        f"residual, and {empty} experts stay empty"
    )
    return (calculated("ch18.capacity", f"{evidence}, as in GShard and Switch"),)


def _residual(assumed: Assumed) -> tuple[Claim, ...]:
    """The sum of a layer with residual by its input and by the expert's scale, of one expert that doubles, with slots
    for half the tokens."""
    T, half = assumed.tokens, assumed.tokens // 2
    routes = routers.Routes(jnp.zeros((T, 1), int), jnp.arange(T)[:, None], jnp.ones((T, 1)))

    def layer(x_TD: jax.Array, scale: jax.Array) -> jax.Array:
        return jnp.sum(x_TD + experts.combined(scale * experts.dispatched(x_TD, routes, 1, half), routes))

    by_x_TD, by_scale = jax.grad(layer, (0, 1))(jnp.ones((T, 1)), jnp.float32(2))
    kept, lost = float(by_x_TD[0, 0]), float(by_x_TD[-1, 0])
    evidence = (
        f"of {T} tokens {T - half} are dropped: the expert's gradient has {by_scale:g} terms, a dropped token's "
        f"own is {lost:g}, a routed one's {kept:g}"
    )
    return (
        decided(
            "ch18.dropping",
            (float(by_scale), lost, kept) == (half, 1, 3),
            evidence,
            statement="only the experts lose the gradients of what is dropped",
            structural=True,
        ),
    )


def _expert_choice(assumed: Assumed) -> tuple[Claim, ...]:
    """In a hundred groups; then in the first half of each alone."""
    T, E, C = assumed.tokens, assumed.experts, int(tokens_per_expert(assumed.tokens, assumed.experts, assumed.top_k))
    gates_GTE = assumed.gates(CHOSEN_GROUPS)
    taken_GEC, early_GEC = (
        np.asarray(jax.vmap(partial(routers.expert_choice, slots=slots))(gates)[0])
        for slots, gates in ((C, gates_GTE), (C // 2, gates_GTE[:, : T // 2]))
    )
    visits_GT, early_GT = (
        np.stack([np.bincount(group.ravel(), minlength=T) for group in taken]) for taken in (taken_GEC, early_GEC)
    )
    loads, lost = {len(set(tokens)) for tokens in taken_GEC.reshape(-1, C)}, int((early_GT > visits_GT).sum())
    none, most = (visits_GT == 0).mean(), visits_GT.max()
    evidence = (
        f"each of {E} experts takes {' or '.join(map(str, loads))} tokens; a token visits up to {most}, and "
        f"{none:.1%} of them none"
    )
    later = f"{lost} of {early_GT[:, : T // 2].size:,} tokens lose an expert when as many tokens again come after them"
    return (
        decided(
            "ch18.expert_choice",
            loads == {C} and most > assumed.top_k,
            evidence,
            statement="c = kT/E tokens each, 0 to E experts a token",
            structural=True,
        ),
        decided("ch18.expert_choice", none == 0, evidence, statement="no token is left out", disputed="4-5:D-54"),
        decided("A37", lost > 0, later, statement="it is not causal", structural=True),
    )


def _noise(assumed: Assumed) -> tuple[Claim, ...]:
    """Of many draws of the noisy logits of one token of width 16."""
    shapes = (16,), (16, assumed.experts), (16, assumed.experts)
    x_D, gate_DE, noise_DE = (jax.random.normal(jax.random.key(seed), shape) for seed, shape in enumerate(shapes))
    draws = np.asarray(
        jax.vmap(lambda key: routers.noisy_logits(x_D, gate_DE, noise_DE, key))(
            jax.random.split(jax.random.key(3), DRAWS)
        )
    )
    x, gate, noise = (np.asarray(array, np.float64) for array in (x_D, gate_DE, noise_DE))
    book = np.log1p(np.exp(x @ noise))
    off = np.abs(draws.std(0) / book - 1).max(), (np.abs(draws.mean(0) - x @ gate) / book).max()
    evidence = (
        f"of {DRAWS:,} draws the deviations are within {off[0]:.1%} of softplus(W_noise x), the means within "
        f"{off[1]:.1%} of it of W_g x"
    )
    return (decided("ch18.noisy_topk", bool(max(off) < 5 * DRAWS**-0.5), evidence, structural=True),)


def _spread(assumed: Assumed) -> tuple[Claim, ...]:
    found = loads(assumed)
    entropy, most = float(entropy_nats(found) / np.log(assumed.experts)), found.max() / found.mean()
    evidence = (
        f"one group of a uniform router: entropy {entropy:.3f} log E, Gini {float(gini(found)):.3f}, at most "
        f"{most:.2f} times the mean"
    )
    return (calculated("ch18.monitoring", evidence),)


EXPERIMENT = Question(
    name="ch18_routing",
    chapter=18,
    question="Where do routers send tokens, and what happens to tokens that find no slot?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
    is_quick=False,
)
