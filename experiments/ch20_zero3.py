"""Chapter 20: does ZeRO-3 send half again what data parallelism does, for 1/P of the state a device?"""

from lab.book.parallelism import dp_volume_bytes
from lab.book.sharding import zero3_volume_bytes
from lab.decoder_experiments.step import WITH_TYPES, decoder_experiment
from lab.decoder_experiments.zero_claims import stage_memory
from lab.evidence import along, counted, element_bytes
from lab.experiment import Claim, calculated, decided, on_one_axis
from lab.ledger import Kind, Ledger, Totals
from lab.models.shape import DecoderShape
from lab.strategies.zero3 import ZERO3
from meshes.axes import FSDP, Axes


def claims(shape: DecoderShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes[FSDP] == 1:
        return ()
    return (_communication(shape, axes[FSDP], measured), stage_memory(ZERO3, "12 Psi / P", shape, axes, measured))


def _communication(shape: DecoderShape, P: int, measured: Ledger) -> Claim:
    """Layers' matrices are gathered for each pass; embedding and head are kept once gathered, and norms are not split."""
    gathers = along(measured, FSDP, kind=Kind.ALL_GATHER)
    sums = tuple(t for t in along(measured, FSDP, phase="backward") if t.kind is not Kind.ALL_GATHER)
    sent, e = Totals.of(gathers + sums).wire_bytes, element_bytes(gathers + sums)
    rest = dp_volume_bytes(shape.parameters - shape.layer_matrices, e, P)
    book, dp = zero3_volume_bytes(shape.layer_matrices, e, P) + rest, dp_volume_bytes(shape.layer_matrices, e, P)
    evidence = f"a device sends {counted(sent)} B for weights a step, for the layers' matrices {float((sent - rest) / dp):.2f} times what data parallelism does"
    scatters = [t for t in sums if t.payload_bytes > shape.embed * e * shape.layers]
    if any(t.kind is Kind.ALL_REDUCE for t in scatters):
        return calculated("ch20.comm", f"{evidence}; this compiler sums gradients by all_reduce, with reduce_scatter it is 1.50 times")
    return decided("ch20.comm", sent == book, f"{evidence}; 3(P-1)/P Psi e of them and 2(P-1)/P Psi e of the rest is {counted(book)} B at P={P}, e={e}")


EXPERIMENT = decoder_experiment(
    name="ch20_zero3",
    chapter=20,
    question="Does ZeRO-3 send half again what data parallelism does, for 1/P of the state a device?",
    strategy=ZERO3,
    axes=on_one_axis(FSDP),
    claims=claims,
    styles=WITH_TYPES,
)
