"""Chapter 35: what does it save between nodes to route each token to few nodes and send it to each of them once?"""

from dataclasses import replace
from fractions import Fraction

from lab.book.experts import all_to_all_wire_bytes, buffer_bytes
from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Phase, Transfer
from lab.harness.claim import Claim, calculated, decided
from lab.harness.decoder.experts import (
    SHAPE,
    SMALL_SHAPE,
    expert_experiment,
    tokens_on_rank,
)
from lab.harness.evidence import along, counted
from lab.harness.experiment import on_two_axes
from lab.hlo.shapes import bits
from lab.meshes.axes import DATA, EXPERT, Axes
from lab.meshes.platforms import LinkName
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.node_limited_experts import NODE_LIMITED_EXPERTS


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    """Of one dispatch: copies of tokens, and the float32 weights of their experts there."""
    crossing = along(measured, DATA, kind=Kind.ALL_TO_ALL, phase=Phase.FORWARD)
    if 1 in axes.sizes or not crossing:
        return ()
    T, M, k = tokens_on_rank(shape, axes.size), shape.node_limit, shape.top_k
    weights = shape.micro_batch // axes.size * shape.nodes * shape.node_slots * (shape.experts // shape.nodes)
    of_weights, of_tokens = (
        [t for t in crossing if (_elements(t) == weights) is are_weights] for are_weights in (True, False)
    )
    if not of_tokens:
        return ()
    found, e = max(known(t.wire_bytes) for t in of_tokens), bits(of_tokens[0].dtype) // 8
    once, each = (
        float(all_to_all_wire_bytes(buffer_bytes(T, shape.embed, e, copies, shape.capacity_factor), axes[DATA], 1))
        for copies in (M, k)
    )
    evidence = (
        f"{counted(found)} B of tokens cross; (N-1)/N C_f M T H e is {once:,.0f} for M={M} of {shape.nodes} nodes, "
        f"for k={k} copies {each:,.0f}"
    )
    is_rounded = shape.node_slots * shape.nodes != Fraction(shape.capacity_factor) * shape.length * M
    statement = "a token crosses once for each node, M copies at most"
    beside = (
        f"{' and '.join(counted(t.payload_bytes) for t in of_weights[:1])} B of weights go with "
        f"{counted(of_tokens[0].payload_bytes)} B of tokens"
    )
    return (
        calculated("A41", f"{evidence}, slots rounded up", statement=statement)
        if is_rounded
        else decided("A41", found == once, evidence, statement=statement),
        decided("A41", bool(of_weights), beside, statement="the weights of its experts go with it"),
        *_links(measured),
    )


def _elements(t: Transfer) -> int:
    return 8 * t.payload_bytes // bits(t.dtype)


def _links(measured: Ledger) -> tuple[Claim, ...]:
    """Decided where there are two links."""
    links = {t.link for t in along(measured, DATA, kind=Kind.ALL_TO_ALL)}
    if LinkName.NETWORK not in {t.link for t in measured.transfers}:
        return ()
    return (
        decided(
            "A41",
            links == {LinkName.NETWORK},
            f"what goes once a node crosses {' and '.join(sorted(map(known, links)))} links",
            statement="nodes are hosts",
        ),
    )


EXPERIMENT = expert_experiment(
    name="ch35_node_limit",
    chapter=35,
    question="What does it save between nodes to route each token to few nodes and send it to each of them once?",
    strategy=NODE_LIMITED_EXPERTS,
    axes=on_two_axes(DATA, EXPERT),
    claims=claims,
    parameters=replace(SHAPE, top_k=4, nodes=4, node_limit=2),
    small=replace(SMALL_SHAPE, top_k=4, nodes=4, node_limit=2),
)
