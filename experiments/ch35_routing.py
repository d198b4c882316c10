"""Chapter 35: what do many small experts, node-limited routing and bias balancing do to loads and communication?

Routers of random logits, as DeepSeek-V3's: sigmoid gates, the largest chosen with a bias and weighed without it. Seeds
are fixed.
"""

from dataclasses import asdict, dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from lab.book.deepseek import elsewhere_share
from lab.book.experts import distinct_nodes
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.meshes.errors import UsageError
from lab.programs.models import routers

COARSE = (64, 2)
"""Experts, and how many of them a token visits, in the design that the chapter compares with."""
RATE = 1e-3
"""DeepSeek-V3's step of the bias."""
BATCHES = 6
STEP_TOKENS = 128


@dataclass(frozen=True)
class Assumed:
    """DeepSeek-V3: 256 experts, 8 a token, on 8 nodes of which a token visits 4; 4,096 tokens at a time.

    Raises:
      UsageError: none of something, experts that do not split over the nodes or into as many groups as the coarse
        design has experts, or choices that do not split over the nodes a token visits.
    """

    experts: int = 256
    top_k: int = 8
    nodes: int = 8
    limit: int = 4
    tokens: int = 4096
    embed: int = 7168
    steps: int = 400

    def __post_init__(self) -> None:
        if none := [name for name, count in asdict(self).items() if count < 1]:
            raise UsageError(f"{none[0]}={getattr(self, none[0])}: expected 1 or more")
        if self.experts % COARSE[0]:
            raise UsageError(
                f"experts={self.experts}: expected a multiple of {COARSE[0]}, the experts that they are compared with"
            )
        if self.experts % self.nodes or self.top_k % self.limit or not self.limit <= self.nodes:
            found = f"experts={self.experts} on nodes={self.nodes}, top_k={self.top_k} on limit={self.limit} of them"
            raise UsageError(f"{found}: expected multiples, and no limit above the nodes")

    def gates(self, seed: int, count: int | None = None) -> jax.Array:
        """[T, E] of a router that prefers no expert; of `count` experts where given."""
        return routers.sigmoid_gates(jax.random.normal(jax.random.key(seed), (self.tokens, count or self.experts)))


def _visited(expert_Tk: np.ndarray, assumed: Assumed) -> float:
    """Nodes of a token, on average."""
    node_Tk = expert_Tk // (assumed.experts // assumed.nodes)
    return float(np.mean((node_Tk[..., None] == np.arange(assumed.nodes)).any(1).sum(-1)))


@cache
def chosen(assumed: Assumed, is_limited: bool) -> np.ndarray:
    """[T, k]"""
    gates_TE = assumed.gates(1)
    open_TE = routers.within_nodes(gates_TE, assumed.nodes, assumed.limit, assumed.top_k) if is_limited else gates_TE
    return np.asarray(routers.chosen(open_TE, assumed.top_k))


@cache
def loads(assumed: Assumed, count: int, k: int) -> np.ndarray:
    """[batches, E]: assignments to each of `count` experts."""
    chosen_NTk = [np.asarray(routers.chosen(assumed.gates(100 + seed, count), k)) for seed in range(BATCHES)]
    return np.stack([np.bincount(chosen_Tk.ravel(), minlength=count) for chosen_Tk in chosen_NTk])


def peak(assumed: Assumed, count: int, k: int, together: int = 1) -> float:
    """The largest load over the mean, of experts in groups of so many, on average over batches."""
    loads_Ng = loads(assumed, count, k).reshape(BATCHES, -1, together).sum(-1)
    return float((loads_Ng.max(1) / loads_Ng.mean(1)).mean())


@cache
def balanced(assumed: Assumed) -> tuple[float, float, float]:
    """Largest load over the mean of a router that prefers some experts: before, after half of the steps and after all
    of them, each on new tokens."""
    taste_E = 0.5 * jax.random.normal(jax.random.key(2), (assumed.experts,))

    def step(bias_E: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        gates_TE = routers.sigmoid_gates(taste_E + jax.random.normal(key, (STEP_TOKENS, assumed.experts)))
        load_E = routers.assigned(routers.chosen(gates_TE, assumed.top_k, bias_E), assumed.experts)
        return routers.rebalanced(bias_E, load_E, RATE), load_E

    loads_SE = np.asarray(
        jax.jit(lambda keys: jax.lax.scan(step, jnp.zeros(assumed.experts), keys)[1])(
            jax.random.split(jax.random.key(3), assumed.steps)
        )
    )
    some = max(1, assumed.steps // 20)
    middle = assumed.steps // 2
    early, midway, late = (
        float(part.mean(0).max() / part.mean())
        for part in (loads_SE[:some], loads_SE[middle : middle + some], loads_SE[-some:])
    )
    return early, midway, late


def answer(assumed: Assumed) -> tuple[Row, ...]:
    before, middle, after = balanced(assumed)
    fine, coarse = (peak(assumed, *design) for design in ((assumed.experts, assumed.top_k), COARSE))
    return (
        Row(
            "nodes that a token visits",
            _visited(chosen(assumed, False), assumed),
            "nodes",
            distinct_nodes(assumed.experts, assumed.top_k, assumed.nodes),
        ),
        Row(f"with at most {assumed.limit}", _visited(chosen(assumed, True), assumed), "nodes"),
        Row(f"peak load of {assumed.experts} experts, {assumed.top_k} a token", fine, "of the mean"),
        Row(f"peak load of {COARSE[0]} experts, {COARSE[1]} a token", coarse, "of the mean"),
        Row("peak load of a router with preferences", before, "of the mean"),
        Row(f"after {assumed.steps // 2} steps of the bias", middle, "of the mean"),
        Row(f"after {assumed.steps} steps", after, "of the mean"),
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    return (*_nodes(assumed), *_placement(assumed), *_peaks(assumed), *_bias(assumed))


def _nodes(assumed: Assumed) -> tuple[Claim, ...]:
    found, book = (
        _visited(chosen(assumed, False), assumed),
        distinct_nodes(assumed.experts, assumed.top_k, assumed.nodes),
    )
    limited, size = _visited(chosen(assumed, True), assumed), assumed.embed * 2
    evidence = (
        f"{assumed.top_k} of {assumed.experts} experts are on {found:.3f} of {assumed.nodes} nodes per token on "
        f"average, by the formula {book:.3f}"
    )
    sent = (
        f"once a node, a token of {size:,} B costs {limited * size:,.0f} B with the limit, {found * size:,.0f} B "
        f"without; once an expert {assumed.top_k * size:,} B"
    )
    return (
        decided("A41", abs(found - book) < 0.05, evidence),
        decided(
            "A41",
            limited <= assumed.limit < found,
            sent,
            statement=f"a limit caps what crosses at {assumed.limit} copies",
        ),
    )


def _placement(assumed: Assumed) -> tuple[Claim, ...]:
    """Of assignments of tokens that start on each node equally often."""
    start_T = np.arange(assumed.tokens) % assumed.nodes
    found = float((chosen(assumed, False) // (assumed.experts // assumed.nodes) != start_T[:, None]).mean())
    book, whole = float(elsewhere_share(assumed.nodes)), float(elsewhere_share(256))
    evidence = (
        f"{found:.1%} of all copies leave their node of {assumed.nodes}, by the formula {book:.1%}; of 256 nodes "
        f"{whole:.1%}"
    )
    return (
        decided(
            "ch35.placement", abs(found - book) < 0.01, evidence, statement="(N-1)/N of the copies leave their node"
        ),
        decided("ch35.placement", found < 0.2, evidence, statement="12.5 % leave it", disputed="6-8:D-135"),
    )


def _peaks(assumed: Assumed) -> tuple[Claim, ...]:
    together = assumed.experts // COARSE[0]
    fine, grouped = (peak(assumed, assumed.experts, assumed.top_k, each) for each in (1, together))
    coarse = peak(assumed, *COARSE)
    evidence = (
        f"the fullest of {assumed.experts} experts has {fine:.3f} of the mean load, of {COARSE[0]} {coarse:.3f}; "
        f"in groups of {together} {grouped:.3f}"
    )
    return (
        decided(
            "ch35.moe_routing",
            fine < coarse,
            evidence,
            statement="the peak of 256 experts is lower",
            disputed="6-8:D-131",
        ),
        decided("ch35.moe_routing", grouped < coarse, evidence, statement="experts that share a device average out"),
    )


def _bias(assumed: Assumed) -> tuple[Claim, ...]:
    before, middle, after = balanced(assumed)
    gates_TE, bias_E = assumed.gates(4)[:256], 0.2 * jax.random.normal(jax.random.key(5), (assumed.experts,))
    routes = routers.routes(gates_TE, assumed.top_k, bias_E)
    biased_Tk = jnp.take_along_axis(gates_TE + bias_E, routes.expert_Tk, 1)
    gap = float(jnp.abs(routers.weights(biased_Tk) / routes.weight_Tk - 1).max())
    balance = (
        f"the fullest expert falls from {before:.2f} to {middle:.2f} and {after:.2f} of the mean load in "
        f"{assumed.steps} steps of {RATE:g}, without a loss"
    )
    weighed = f"weights made of biased gates differ by up to {gap:.0%} from those of the gates themselves"
    return (
        decided(
            "ch35.moe_routing",
            after < 1 + (before - 1) / 4,
            balance,
            statement="fixed steps of a bias balance the loads",
        ),
        decided(
            "ch35.moe_routing",
            gap < 0.01,
            weighed,
            statement="biased gates weigh the experts alike",
            disputed="6-8:D-134",
        ),
    )


EXPERIMENT = Question(
    name="ch35_routing",
    chapter=35,
    question="What do many small experts, node-limited routing and bias balancing do to loads and communication?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
    is_quick=False,
)
