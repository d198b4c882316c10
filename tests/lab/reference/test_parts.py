"""Parts of a sequence that choose their experts by themselves."""

from dataclasses import replace

import numpy as np

from lab.programs.models.shape import DecoderShape
from lab.reference.experts import mixture

SHAPE = DecoderShape(
    layers=2,
    batch=2,
    length=8,
    embed=6,
    kv_heads=1,
    queries=1,
    head_dim=2,
    mlp=4,
    vocab=8,
    experts=4,
    capacity_factor=1.0,
)
SIZES = {"router": (6, 4), "gate": (4, 6, 4), "up": (4, 6, 4), "down": (4, 4, 6)}


def test_each_part_is_routed_as_a_sequence_of_its_own_in_its_own_order():
    draw = np.random.default_rng(0)
    w = {name: draw.standard_normal(size) for name, size in SIZES.items()}
    x_BSD, dy_BSD = draw.standard_normal((2, 2, 8, 6))
    parts_Ps = np.array([[0, 1, 6, 7], [2, 3, 4, 5]])
    found = mixture(x_BSD, w, SHAPE, parts_Ps)
    alone = [mixture(x_BSD[:, part], w, replace(SHAPE, length=4)) for part in parts_Ps]
    dx_BSD, gradients = found.pull(dy_BSD)
    for part, own in zip(parts_Ps, alone, strict=True):
        np.testing.assert_allclose(found.y_BSD[:, part], own.y_BSD)
    # The mean of what is balanced is one of twice as many.
    np.testing.assert_allclose(found.auxiliary, np.mean([own.auxiliary for own in alone]))
    assert not np.allclose(found.y_BSD, mixture(x_BSD, w, SHAPE).y_BSD)
    without = mixture(x_BSD, w, replace(SHAPE, balance=0.0), parts_Ps).pull(dy_BSD)[1]
    own = [
        mixture(x_BSD[:, part], w, replace(SHAPE, balance=0.0, length=4)).pull(dy_BSD[:, part])[1] for part in parts_Ps
    ]
    for name, gradient in without.items():
        np.testing.assert_allclose(gradient, own[0][name] + own[1][name])
    assert dx_BSD.shape == x_BSD.shape and gradients.keys() == without.keys()
