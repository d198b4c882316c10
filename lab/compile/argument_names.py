"""Names of the arguments that `flax.nnx.jit` takes modules apart into, as a program writes them. Imports JAX."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.tree_util import DictKey, GetAttrKey, keystr

_PARTS = ".states["
"""JAX names a part of a module by its number: `model.states[0][5]`."""


def readable(names: Sequence[str], tree: Any) -> tuple[str, ...]:
    """`model.layers[0].attn.q.kernel` for `model.states[0][5]`; all others as they are.

    Args:
      names: of arguments, as JAX gives them; arrays that the function closes over may stand before those of the tree.
      tree: of the arguments.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is None or len(names) < tree.num_leaves or not any(_PARTS in name for name in names):
        return tuple(names)
    told = list(names)
    with nnx.merge_context() as context:  # Modules may share variables.
        for parts in _modules(tree, len(names) - tree.num_leaves):
            module = context.unflatten(parts.graphdef, *parts.states)
            state = module if isinstance(module, nnx.Variable) else nnx.state(module)
            for path, number in jax.tree_util.tree_leaves_with_path(state):
                whose, is_part, _ = told[number].rpartition(_PARTS)
                if is_part:
                    told[number] = whose + _written(path)
    return tuple(told)


def _modules(tree: Any, first: int) -> Iterator[Any]:
    """What flax makes of each module, with the number of an argument for its value."""
    kind = (tree.node_data() or (None,))[0]
    if kind is not None and kind.__name__ == "NodeStates" and kind.__module__.startswith("flax.nnx"):
        yield tree.unflatten(range(first, first + tree.num_leaves))
        return
    for child in tree.children():
        yield from _modules(child, first)
        first += child.num_leaves


def _written(path: Sequence[Any]) -> str:
    ends_in_value = bool(path) and isinstance(path[-1], GetAttrKey) and path[-1].name == "value"
    return "".join(map(_step, path[:-1] if ends_in_value else path))


def _step(key: Any) -> str:
    is_attribute = isinstance(key, DictKey) and isinstance(key.key, str) and key.key.isidentifier()
    return f".{key.key}" if is_attribute else keystr((key,))
