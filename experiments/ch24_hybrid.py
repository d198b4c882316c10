"""Chapter 24: what does hybrid sharding keep off the link between groups?"""

from lab.book.collectives import all_reduce_wire_bytes
from lab.decoder_experiments.step import decoder_experiment
from lab.evidence import along, counted, element_bytes
from lab.experiment import TARGETS, Claim, calculated, decided, device_count
from lab.ledger import Kind, Ledger, Totals
from lab.models.shape import DecoderShape
from lab.strategies.hybrid import HYBRID
from meshes.axes import DATA, FSDP, Axes
from meshes.targets import Target


def axes(target: Target) -> Axes:
    """Shards inside a host of GPUs, over 4 devices elsewhere; replicas across."""
    shards = target.per_host if target.platform == "gpu" else min(4, device_count(target))
    return Axes.of({DATA: device_count(target) // shards, FSDP: shards})


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if 1 in axes.sizes:
        return ()
    across = tuple(t for t in along(measured, DATA) if t.payload_bytes > 4)
    both = tuple(t for t in measured.split().transfers if t.kind is Kind.ALL_REDUCE and t.axes == (DATA, FSDP) and t.payload_bytes > 4)
    matrices = shape.parameters - (2 * shape.layers + 1) * shape.embed
    e = element_bytes(across or both)
    book = all_reduce_wire_bytes(matrices * e // axes[FSDP], axes[DATA])
    sent, whole = Totals.of(across).wire_bytes, Totals.of(both).wire_bytes
    evidence = f"a device sends {counted(sent)} B of gradients between groups; 2(R-1)/R Psi e / S is {counted(book)} B at R={axes[DATA]}, S={axes[FSDP]}, e={e}"
    if Totals.of(both).payload_bytes > (2 * shape.layers + 1) * shape.embed * e:
        return (calculated("ch24.hsdp", f"{evidence}; {counted(whole)} B go over both axes at once, gradients whole (X3)"),)
    return (decided("ch24.hsdp", sent == book, evidence),)


EXPERIMENT = decoder_experiment(
    name="ch24_hybrid",
    chapter=24,
    question="What does hybrid sharding keep off the link between groups?",
    strategy=HYBRID,
    axes=axes,
    claims=claims,
    targets=TARGETS[:2],
)
