"""Chapter 20: does ZeRO-3 send half again what data parallelism does, for 1/P of the weights a device?"""

from lab.book.collectives import reduce_scatter_wire_bytes
from lab.book.parallelism import dp_volume_bytes
from lab.book.sharding import zero3_volume_bytes, zero3_weight_bytes
from lab.evidence import along, counted, element_bytes
from lab.experiment import Claim, Experiment, calculated, decided, on_one_axis
from lab.ledger import Kind, Ledger, Totals
from lab.models.mlp import SMALL, MlpShape
from lab.strategies.strategy import loss_and_gradients
from lab.strategies.zero3 import ZERO3
from meshes.axes import FSDP, Axes


def claims(shape: MlpShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes[FSDP] == 1:
        return ()
    return (_communication(shape, axes[FSDP], measured), _memory(shape, axes[FSDP], measured))


def _communication(shape: MlpShape, P: int, measured: Ledger) -> Claim:
    gathers = along(measured, FSDP, kind=Kind.ALL_GATHER)
    sums = tuple(t for t in along(measured, FSDP, phase="backward") if t.kind is not Kind.ALL_GATHER)
    sent, e = Totals.of(gathers + sums).wire_bytes, element_bytes(gathers + sums)
    dp, zero3 = dp_volume_bytes(shape.parameters, e, P), zero3_volume_bytes(shape.parameters, e, P)
    copies = Totals.of(gathers).payload_bytes / (shape.parameters * e)
    times = f"a device sends {counted(sent)} B for weights a step, {float(sent / dp):.2f} times what data parallelism does"
    gathered = f"{times}, each gathered {copies:g} times"
    if any(t.kind is Kind.ALL_REDUCE for t in sums):
        scattered = (Totals.of(gathers).wire_bytes + reduce_scatter_wire_bytes(Totals.of(sums).payload_bytes, P)) / dp
        return calculated("ch20.comm", f"{gathered} and summed by all_reduce; with reduce_scatter it is {float(scattered):.2f} times")
    return decided("ch20.comm", sent == zero3, f"{gathered}; 3(P-1)/P Psi e is {counted(zero3)} B at P={P}, e={e}")


def _memory(shape: MlpShape, P: int, measured: Ledger) -> Claim:
    part = zero3_weight_bytes(shape.parameters, shape.bytes_per_element, P)
    if measured.memory is None:
        return calculated("ch20.stage_memory", f"Psi e / P is {counted(part)} B of weights a device")
    batch = 2 * shape.batch // P * shape.embed * shape.bytes_per_element
    held = measured.memory.arguments - batch
    evidence = f"a device holds {counted(held)} B of weights; Psi e / P is {counted(part)} B"
    if held > part and (measured.target or "").startswith("tpu"):
        return calculated("ch20.stage_memory", f"{evidence}, without the layout tiles that a TPU pads arguments to (T8)")
    return decided("ch20.stage_memory", held == part, evidence)


EXPERIMENT = Experiment(
    name="ch20_zero3",
    chapter=20,
    question="Does ZeRO-3 send half again what data parallelism does, for 1/P of the weights a device?",
    parameters=MlpShape(),
    numeric_parameters=SMALL,
    axes=on_one_axis(FSDP),
    build=ZERO3.build,
    predict=ZERO3.predict,
    claims=claims,
    reference=loss_and_gradients,
)
