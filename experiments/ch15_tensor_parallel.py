"""Chapter 15: how often does tensor parallelism sum, where, and how much?"""

from lab.book.parallelism import TP_ALL_REDUCES_BACKWARD, TP_ALL_REDUCES_FORWARD, tp_volume_bytes
from lab.evidence import along, counted, element_bytes
from lab.experiment import Claim, Experiment, beside_tensor, decided
from lab.ledger import Ledger, Totals
from lab.models.mlp import SMALL, MlpShape
from lab.strategies.strategy import loss_and_gradients
from lab.strategies.tensor_parallel import DATA_TENSOR
from lab.strategies.terms import DOWN, UP
from meshes.axes import DATA, TENSOR, Axes


def claims(shape: MlpShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if axes[TENSOR] == 1:
        return ()
    return (_count(shape, measured), _volume(shape, axes, measured), _places(measured))


def _count(shape: MlpShape, measured: Ledger) -> Claim:
    forward, backward = (Totals.of(along(measured, TENSOR, phase=phase)).executions for phase in ("forward", "backward"))
    once = (forward, backward) == (TP_ALL_REDUCES_FORWARD * shape.layers, TP_ALL_REDUCES_BACKWARD * shape.layers)
    remat = "with" if shape.remat else "without"
    evidence = f"{forward} sums forward and {backward} backward in {shape.layers} layers of one block, {remat} recomputation"
    return decided("ch15.ar_count", once, f"{evidence}; the book has 2 and 2 a layer of two blocks")


def _volume(shape: MlpShape, axes: Axes, measured: Ledger) -> Claim:
    sums, P, tokens = along(measured, TENSOR), axes[TENSOR], shape.batch // axes[DATA]
    sent, e = Totals.of(sums).wire_bytes, element_bytes(sums)
    volume = tp_volume_bytes(tokens, shape.embed, e, ranks=P, blocks=shape.layers)
    evidence = f"a device sends {counted(sent)} B of activations a step; {shape.layers} times 4(P-1)/P b s d e is {counted(volume)} B"
    return decided("ch15.tp_allreduce_volume", sent == volume, f"{evidence} at P={P}, b s={tokens}, d={shape.embed}, e={e}")


def _places(measured: Ledger) -> Claim:
    forward, backward = ({t.scope for t in along(measured, TENSOR, phase=phase)} for phase in ("forward", "backward"))
    evidence = f"forward sums stand in {_listed(forward)}, backward sums in {_listed(backward)}"
    holds = (forward, backward) == ({DOWN}, {UP})
    return decided("ch15.tp_backward_table", holds, f"{evidence}; the book: row-parallel {DOWN}, column-parallel {UP}")


def _listed(scopes: set[str]) -> str:
    return " and ".join(sorted(scopes)) or "no scope"


EXPERIMENT = Experiment(
    name="ch15_tensor_parallel",
    chapter=15,
    question="How often does tensor parallelism sum, where, and how much?",
    parameters=MlpShape(),
    numeric_parameters=SMALL,
    axes=beside_tensor(DATA),
    build=DATA_TENSOR.build,
    predict=DATA_TENSOR.predict,
    claims=claims,
    reference=loss_and_gradients,
)
