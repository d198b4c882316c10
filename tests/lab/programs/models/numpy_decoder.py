"""The decoder's loss as loops over tokens and heads, in float64: written from the papers, without a line of `lab`.

Weights are a dict of float64 arrays, layers first: "query" [L, D, K, G, H], "key", "value" [L, D, K, H], "out" [L, K,
G, H, D], "gate", "up" [L, D, F], "down" [L, F, D], "attention_norm", "mlp_norm" [L, D], "norm" [D], "embedding" [V, D],
"head" [D, V].
"""

import numpy as np

EPSILON = 1e-5
ROTARY_BASE = 500_000.0


def mean_loss(weights: dict[str, np.ndarray], tokens_BS: np.ndarray, targets_BS: np.ndarray) -> float:
    losses = [
        loss
        for tokens_S, targets_S in zip(tokens_BS, targets_BS, strict=True)
        for loss in sequence_losses(weights, tokens_S, targets_S)
    ]
    return sum(losses) / len(losses)


def sequence_losses(weights: dict[str, np.ndarray], tokens_S: np.ndarray, targets_S: np.ndarray) -> list[float]:
    x_SD = [weights["embedding"][token] for token in tokens_S]
    for layer in range(len(weights["gate"])):
        w = {name: stack[layer] for name, stack in weights.items() if name not in ("embedding", "head", "norm")}
        x_SD = [
            x_D + y_D
            for x_D, y_D in zip(x_SD, attention([rms_norm(x_D, w["attention_norm"]) for x_D in x_SD], w), strict=True)
        ]
        x_SD = [x_D + mlp(rms_norm(x_D, w["mlp_norm"]), w) for x_D in x_SD]
    head_DV = weights.get("head", weights["embedding"].T)
    return [
        -log_probability(rms_norm(x_D, weights["norm"]) @ head_DV, target)
        for x_D, target in zip(x_SD, targets_S, strict=True)
    ]


def rms_norm(x_D: np.ndarray, scale_D: np.ndarray) -> np.ndarray:
    return x_D / np.sqrt(sum(x**2 for x in x_D) / len(x_D) + EPSILON) * scale_D


def attention(x_SD: list[np.ndarray], w: dict[str, np.ndarray]) -> list[np.ndarray]:
    _, K, G, _ = w["query"].shape
    return [sum(head(x_SD, w, s, k, g) @ w["out"][k, g] for k in range(K) for g in range(G)) for s in range(len(x_SD))]


def head(x_SD: list[np.ndarray], w: dict[str, np.ndarray], s: int, k: int, g: int) -> np.ndarray:
    """One query head's mixture of the values of token `s` and of those before it; the G queries of group `k` share keys
    and values."""
    q_H = rotated(x_SD[s] @ w["query"][:, k, g], s)
    scores_T = np.array([q_H @ rotated(x_SD[t] @ w["key"][:, k], t) for t in range(s + 1)]) / np.sqrt(len(q_H))
    shares_T = np.exp(scores_T) / np.exp(scores_T).sum()
    return sum(share * (x_D @ w["value"][:, k]) for share, x_D in zip(shares_T, x_SD, strict=False))


def rotated(x_H: np.ndarray, position: int) -> np.ndarray:
    """Entries i and i + H / 2 as a complex number, times e to the i angle."""
    half = len(x_H) // 2
    turned = [
        complex(x_H[i], x_H[i + half]) * np.exp(1j * position * ROTARY_BASE ** (-2 * i / len(x_H))) for i in range(half)
    ]
    return np.array([z.real for z in turned] + [z.imag for z in turned])


def mlp(x_D: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    gate_F = x_D @ w["gate"]
    return (gate_F / (1 + np.exp(-gate_F)) * (x_D @ w["up"])) @ w["down"]


def log_probability(logits_V: np.ndarray, target: int) -> float:
    return logits_V[target] - np.log(np.exp(logits_V).sum())
