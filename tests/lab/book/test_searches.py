"""Chapter 27: its three searches against all configurations of GPT-3 on 1024 devices, priced by the same model."""

from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from lab.book.composition import (
    saved_activation_bytes,
    split_state_bytes,
    stage_compute_s,
)
from lab.book.configuration import layouts, modelled_step_s
from lab.book.parallelism import dp_volume_bytes, tp_volume_bytes
from lab.book.pipeline import bubble_share

DEVICES, BATCH, LENGTH, LAYERS, EMBED, PARAMETERS, MEMORY_BYTES = 1024, 1024, 2048, 96, 12288, 175 * 10**9, 72e9
REPLICAS, PIPES, TENSORS = [2**i for i in range(11)], [1, 2, 4, 8, 16, 32], [1, 2, 4, 8]
STAGES, RECOMPUTES, MICRO_BATCHES = [0, 1, 2, 3], [True, False], [1, 2, 4, 8, 16, 32]


class Setting(NamedTuple):
    replicas: int
    pipe: int
    tensor: int
    stage: int
    recompute: bool
    micro_batch: int


def all_settings() -> list[Setting]:
    return [
        Setting(*degrees, *rest)
        for degrees in layouts(DEVICES, [REPLICAS, PIPES, TENSORS])
        for rest in product(STAGES, RECOMPUTES, MICRO_BATCHES)
    ]


def divides(setting: Setting, batch: int = BATCH) -> bool:
    return LAYERS % setting.pipe == 0 and batch % (setting.replicas * setting.micro_batch) == 0


@cache
def tokens_per_s(setting: Setting, batch: int = BATCH) -> float:
    """Of all devices; 0 where it does not divide or fit."""
    if not divides(setting, batch) or memory_bytes(setting) > MEMORY_BYTES:
        return 0.0
    return batch * LENGTH / step_s(setting, batch)


def memory_bytes(s: Setting) -> float:
    state = split_state_bytes(PARAMETERS, s.pipe, s.tensor, s.replicas, s.stage)
    saved, split = (2, 1) if s.recompute else (34, s.tensor)
    return float(
        state
        + saved_activation_bytes(
            s.micro_batch * LENGTH, EMBED, LAYERS // s.pipe, split, in_flight=s.pipe, bytes_per_element_saved=saved
        )
    )


def step_s(s: Setting, batch: int) -> float:
    count, tokens = batch // (s.replicas * s.micro_batch), s.micro_batch * LENGTH
    compute = count * stage_compute_s(PARAMETERS, tokens, s.pipe, s.tensor, 989e12, 0.5, 8 if s.recompute else 6)
    passes = 1.5 if s.recompute else 1
    tensor = passes * float(tp_volume_bytes(tokens, EMBED, 2, s.tensor, 2 * count * LAYERS // s.pipe)) / 450e9
    gathers = 1.5 * count if s.stage == 3 else 1
    data = gathers * float(dp_volume_bytes(PARAMETERS // (s.pipe * s.tensor), 2, s.replicas)) / 50e9
    return float(modelled_step_s(compute, tensor, 0, data, float(bubble_share(s.pipe, count))))


@cache
def best(batch: int = BATCH) -> float:
    return max(tokens_per_s(setting, batch) for setting in all_settings())


def test_a_grid_that_rejects_early_prices_a_third_of_1152_and_finds_the_best():
    kept = [s for s in all_settings() if divides(s) and memory_bytes(s) <= MEMORY_BYTES]
    assert len(all_settings()) == 1152 and len(kept) < 1152 / 3
    assert tokens_per_s(min(kept, key=lambda s: step_s(s, BATCH))) == best()


def test_sorted_by_step_time_a_grid_over_two_batches_takes_the_smaller_at_36_percent_of_the_best_rate():
    grid = [(s, batch) for s in all_settings() for batch in (64, BATCH) if tokens_per_s(s, batch)]
    quickest, most = min(grid, key=lambda g: step_s(*g)), max(grid, key=lambda g: tokens_per_s(*g))
    assert (quickest[1], most[1]) == (64, BATCH)
    assert tokens_per_s(*quickest) / tokens_per_s(*most) == pytest.approx(0.364, abs=1e-3)


def evolved(seed: int) -> float:
    """The best rate seen in 100 generations of 50: tournaments of 3, uniform crossover, mutation of 0.1, d = N / (p
    t)."""
    random, menus = np.random.default_rng(seed), (PIPES, TENSORS, STAGES, RECOMPUTES, MICRO_BATCHES)

    def draw(menu):
        return menu[random.integers(len(menu))]

    def repaired(pipe, tensor, *rest):
        return Setting(DEVICES // (pipe * tensor), pipe, tensor, *rest)

    def child(population):
        parents = [max((draw(population) for _ in range(3)), key=tokens_per_s)[1:] for _ in range(2)]
        mixed = (parents[random.integers(2)][i] for i in range(len(menus)))
        return repaired(
            *(draw(menu) if random.random() < 0.1 else gene for gene, menu in zip(mixed, menus, strict=True))
        )

    population = [repaired(*map(draw, menus)) for _ in range(50)]
    seen = max(map(tokens_per_s, population))
    for _ in range(99):
        population = [child(population) for _ in range(50)]
        seen = max(seen, *map(tokens_per_s, population))
    return seen


@pytest.mark.slow
def test_evolution_misses_the_best_of_1152_once_in_ten_runs_of_5000_evaluations():
    reached = np.array([evolved(seed) for seed in range(10)]) / best()
    assert sum(reached == 1) == 9 and reached.min() > 0.95


def hierarchical(batch: int) -> float:
    """Degrees, then all that fits with one sequence, then the largest micro-batch that fits."""
    firsts = [s for s in all_settings() if s.micro_batch == 1 and tokens_per_s(s, batch)]
    larger = [
        [s._replace(micro_batch=b) for b in MICRO_BATCHES if tokens_per_s(s._replace(micro_batch=b), batch)]
        for s in firsts
    ]
    return max(tokens_per_s(sizes[-1], batch) for sizes in larger)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "reached"), [(1024, 1), (512, 1), (256, 0.833), (128, 0.654)])
def test_the_largest_micro_batch_that_fits_costs_a_third_of_the_rate_where_few_are_left_to_fill_a_pipeline(
    batch, reached
):
    assert hierarchical(batch) / best(batch) == pytest.approx(reached, abs=1e-3)
