"""What `jax.checkpoint` keeps, decided from outside of the program that calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, cast

POLICIES = ("dots_saveable", "dots_with_no_batch_dims_saveable", "nothing_saveable")
"""Names in `jax.checkpoint_policies`: each keeps less than the one before."""


@contextmanager
def forced(policy: str) -> Iterator[None]:
    """Every `jax.checkpoint` that is traced within it has this policy in place of its own."""
    import jax

    found = getattr(jax.checkpoint_policies, policy)
    with _instead(lambda bind, args, params: bind(*args, **params | {"policy": found})):
        yield


@contextmanager
def removed() -> Iterator[None]:
    """What is traced within it has no `jax.checkpoint`, which may keep all, but also stops the compiler from joining
    what both passes compute."""
    from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

    with _instead(lambda bind, args, params: jaxpr_as_fun(ClosedJaxpr(params["jaxpr"], ()))(*args)):
        yield


@contextmanager
def _instead(of: Callable[[Callable[..., Any], Sequence[Any], dict[str, Any]], Any]) -> Iterator[None]:
    """For what binds each `jax.checkpoint`."""
    from jax.extend.core.primitives import remat_p

    primitive = cast(Any, remat_p)
    bind = primitive.bind

    def bound(*args: Any, **params: Any) -> Any:
        # What was differentiated has made its choice.
        return bind(*args, **params) if params["differentiated"] else of(bind, args, params)

    primitive.bind = bound
    try:
        yield
    finally:
        primitive.bind = bind


@contextmanager
def around_scans() -> Iterator[None]:
    """`jax.checkpoint` stands around the body of each `jax.lax.scan` that is traced within it and inside no other."""
    import jax

    scan = jax.lax.scan
    inside: list[Any] = []

    def checkpointed(f: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if inside:
            return scan(f, *args, **named)

        @wraps(f)
        def body(*given: Any) -> Any:
            inside.append(f)
            try:
                return f(*given)
            finally:
                inside.pop()

        return scan(jax.checkpoint(body, prevent_cse=False), *args, **named)

    jax.lax.scan = checkpointed
    try:
        yield
    finally:
        jax.lax.scan = scan
