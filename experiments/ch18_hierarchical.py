"""Chapter 18: what does an all-to-all over two levels of links save, and what does it cost?"""

from lab.book.experts import all_to_all_wire_bytes, two_level_messages
from lab.core.known import known
from lab.core.ledger import Kind, Ledger, Phase, Totals
from lab.harness.claim import Claim, decided
from lab.harness.decoder.experts import expert_experiment
from lab.harness.evidence import along, counted
from lab.harness.experiment import on_two_axes
from lab.meshes.axes import DATA, EXPERT, Axes
from lab.meshes.platforms import LinkName
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies.hierarchical_experts import HIERARCHICAL_EXPERTS, LEVELS


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    """Of one dispatch, against one all-to-all over all ranks."""
    inside, across = (along(measured, axis, kind=Kind.ALL_TO_ALL, phase=Phase.FORWARD) for axis in LEVELS)
    if 1 in axes.sizes or not inside or not across:
        return ()
    N, G, P = axes[DATA], axes[EXPERT], axes.size
    n = inside[0].payload_bytes
    messages, flat_messages = sum(known(some[0].group_size) - 1 for some in (inside, across)), P - 1
    sent, crossing = (float(known(some[0].wire_bytes)) for some in (inside, across))
    flat, flat_crossing = float(all_to_all_wire_bytes(n, P, 1)), n * (P - G) / P
    equal = Totals.of(inside).executions == Totals.of(across).executions
    return (
        decided(
            "A40",
            equal and messages == two_level_messages(G, N),
            f"{messages} messages a rank inside groups of {G} and across {N}, not {flat_messages}; those that cross "
            f"have {counted(n // N)} B, not {counted(n // P)}",
        ),
        decided(
            "A40",
            crossing == flat_crossing == all_to_all_wire_bytes(n, N, 1),
            f"{counted(int(crossing))} B of {counted(n)} cross between groups, as many as in one all-to-all over {P}",
            statement="as many bytes cross between nodes",
        ),
        decided(
            "A40",
            sent + crossing == all_to_all_wire_bytes(n, G, 1) + all_to_all_wire_bytes(n, N, 1),
            f"a rank sends {counted(int(sent + crossing))} B, {(sent + crossing) / flat:.2f} times the "
            f"{counted(int(flat))} of one all-to-all",
            statement="(G-1)/G n + (N-1)/N n are sent",
        ),
        *_links(measured),
    )


def _links(measured: Ledger) -> tuple[Claim, ...]:
    """Decided where there are two links."""
    inside, across = ({t.link for t in along(measured, axis, kind=Kind.ALL_TO_ALL)} for axis in LEVELS)
    if LinkName.NETWORK not in inside | across:
        return ()
    evidence = (
        f"the first all-to-all crosses {' and '.join(sorted(map(known, inside)))} links, the second "
        f"{' and '.join(sorted(map(known, across)))} links"
    )
    return (
        decided(
            "A40",
            (inside, across) == ({LinkName.HOST}, {LinkName.NETWORK}),
            evidence,
            statement="only the second level crosses the network",
        ),
    )


EXPERIMENT = expert_experiment(
    name="ch18_hierarchical",
    chapter=18,
    question="What does an all-to-all over two levels of links save, and what does it cost?",
    strategy=HIERARCHICAL_EXPERTS,
    axes=on_two_axes(DATA, EXPERT),
    claims=claims,
)
