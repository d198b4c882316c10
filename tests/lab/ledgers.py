"""Ledgers written by hand."""

from lab.core.ledger import Kind, Ledger, Transfer


def transfer(
    kind: Kind,
    axes: tuple[str, ...] | None,
    payload_bytes: int,
    executions: int | None = 1,
    group_size: int = 8,
    **told,
) -> Transfer:
    return Transfer(kind, axes, group_size, executions, told.pop("dtype", "f32"), payload_bytes, **told)


def ledger(*transfers: Transfer, **told) -> Ledger:
    return Ledger(transfers, devices=8, mesh=told.pop("mesh", {"data": 8}), **told)
