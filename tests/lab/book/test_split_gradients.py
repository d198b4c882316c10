"""Chapter 25 in NumPy: who must sum which gradient, and blocks of attention merged one after another."""

import numpy as np
import pytest


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(25)


def test_a_gradient_needs_the_sum_over_context_as_well_as_data(random):
    """Ranks (d, c) hold the same weights and tokens of their own."""
    x_DCTE, w_E, y_DCT = random.normal(size=(2, 4, 8, 3)), random.normal(size=3), random.normal(size=(2, 4, 8))
    gradients_DCE = np.einsum("dct,dcte->dce", x_DCTE @ w_E - y_DCT, x_DCTE)
    x_NE, y_N = x_DCTE.reshape(-1, 3), y_DCT.reshape(-1)
    whole_E = x_NE.T @ (x_NE @ w_E - y_N)
    assert gradients_DCE.sum(axis=(0, 1)) == pytest.approx(whole_E)
    assert np.abs(gradients_DCE.sum(axis=0) - whole_E).max(axis=1).min() > 1


def test_expert_gradients_are_not_to_be_summed_over_ranks_with_other_experts(random):
    """Rank e holds expert e, and gets the tokens of all ranks that chose it: its own gradient is complete."""
    x_NE, w_XE, chosen_N = random.normal(size=(40, 3)), random.normal(size=(4, 3)), random.integers(0, 4, 40)
    residual_N = np.sum(x_NE * w_XE[chosen_N], axis=1)
    whole_XE = np.stack([(x_NE * residual_N[:, None])[chosen_N == x].sum(axis=0) for x in range(4)])
    on_ranks_XE = np.stack([x_NE[chosen_N == x].T @ (x_NE[chosen_N == x] @ w_XE[x]) for x in range(4)])
    assert on_ranks_XE == pytest.approx(whole_XE)
    assert np.abs(on_ranks_XE.sum(axis=0) - whole_XE).max(axis=1).min() > 1


def ring(q_RBH, k_RBH, v_RBH, guarded: bool) -> np.ndarray:
    """Causal attention of queries in blocks, keys and values arriving from one rank after another (Liu et al. 2023)."""
    ranks, block, width = q_RBH.shape
    place = np.arange(ranks * block).reshape(ranks, block)
    out = np.empty_like(q_RBH)
    for rank in range(ranks):
        total, norm, top = np.zeros((block, width)), np.zeros(block), np.full(block, -np.inf)
        for step in range(ranks):
            sender = (rank - step) % ranks
            if guarded and sender > rank:
                continue
            scores = q_RBH[rank] @ k_RBH[sender].T / np.sqrt(width)
            scores = np.where(place[rank][:, None] >= place[sender][None], scores, -np.inf)
            new_top = scores.max(axis=1)
            weights = np.exp(scores - new_top[:, None])
            joint = np.maximum(top, new_top)
            old, new = np.exp(top - joint), np.exp(new_top - joint)
            total = total * old[:, None] + (weights @ v_RBH[sender]) * new[:, None]
            norm, top = norm * old + weights.sum(axis=1) * new, joint
        out[rank] = total / norm[:, None]
    return out


def test_blocks_merged_in_a_ring_of_4_are_causal_attention_unless_hidden_blocks_are_merged_too(random):
    q_RBH, k_RBH, v_RBH = random.normal(size=(3, 4, 5, 8))
    q_SH, k_SH, v_SH = (x.reshape(20, 8) for x in (q_RBH, k_RBH, v_RBH))
    scores = np.where(np.tri(20, dtype=bool), q_SH @ k_SH.T / np.sqrt(8), -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    whole = (weights @ v_SH / weights.sum(axis=1, keepdims=True)).reshape(4, 5, 8)
    assert ring(q_RBH, k_RBH, v_RBH, guarded=True) == pytest.approx(whole)
    with np.errstate(invalid="ignore"):
        unguarded = ring(q_RBH, k_RBH, v_RBH, guarded=False)
    assert np.isnan(unguarded[:3]).all() and unguarded[3] == pytest.approx(whole[3])


def test_two_chunks_a_rank_from_both_ends_give_every_rank_the_same_causal_work():
    ranks, chunks = 4, 8
    work = np.tri(chunks) - np.eye(chunks) / 2
    contiguous = [work[2 * r : 2 * r + 2].sum() for r in range(ranks)]
    zigzag = [work[[r, chunks - 1 - r]].sum() for r in range(ranks)]
    assert contiguous == [2, 6, 10, 14] and zigzag == [8, 8, 8, 8]
