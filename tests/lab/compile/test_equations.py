"""Equations are found by the names that compiled text has for them."""

import jax
import jax.numpy as jnp
import numpy as np

from lab.compile.equations import named


def test_a_lookup_in_jnp_take_is_found_by_its_name_in_compiled_text_and_no_other_is():
    def loss(table_VD, tokens_B, labels_B):
        logits_BD = jnp.take(table_VD, tokens_B, axis=0)
        return jnp.sum(jnp.take_along_axis(logits_BD, labels_B[:, None], axis=1))

    jaxpr = jax.make_jaxpr(jax.value_and_grad(loss))(np.ones((8, 4)), np.arange(4), np.arange(4)).jaxpr
    (found,) = named(jaxpr, "jit(loss)/jvp(jit(_take))/gather")
    assert found.equation.invars[0].aval.shape == (8, 4)
