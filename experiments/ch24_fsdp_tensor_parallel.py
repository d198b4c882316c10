"""Chapter 24: what does each axis of FSDP x tensor parallelism carry, on 16,384 GPUs and on 8 fake devices?"""

from lab.book.parallelism import activation_bytes, tp_volume_bytes
from lab.book.sharding import zero3_volume_bytes
from lab.evidence import along, counted, element_bytes
from lab.experiment import Claim, Experiment, beside_tensor, calculated, decided
from lab.ledger import Kind, Ledger, Totals
from lab.models.mlp import SMALL, MlpShape
from lab.strategies.fsdp_tensor import FSDP_TENSOR
from lab.strategies.strategy import loss_and_gradients
from meshes.axes import FSDP, TENSOR, Axes

# The MLPs of a model of 405 billion parameters, 8,192 tokens for each of 2,048 groups.
PARAMETERS = MlpShape(layers=126, batch=2048 * 8192, embed=16384, mlp=53248)


def claims(shape: MlpShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if 1 in axes.sizes:
        return ()
    return (_volumes(shape, axes, measured), _payload(shape, axes, measured), *_links(measured))


def _volumes(shape: MlpShape, axes: Axes, measured: Ledger) -> Claim:
    weights = along(measured, FSDP, phase="backward") + along(measured, FSDP, phase="forward", kind=Kind.ALL_GATHER)
    activations, d, t = along(measured, TENSOR), axes[FSDP], axes[TENSOR]
    e, sent = element_bytes(weights + activations), tuple(Totals.of(transfers).wire_bytes for transfers in (weights, activations))
    over_fsdp = zero3_volume_bytes(shape.parameters // t, e, d)
    over_tensor = tp_volume_bytes(shape.batch // d, shape.embed, e, ranks=t, blocks=shape.layers)
    found = f"a device sends {counted(sent[0])} B over fsdp and {counted(sent[1])} B over tensor a step"
    evidence = f"{found}; the formulas give {counted(over_fsdp)} and {counted(over_tensor)} B at d={d}, t={t}"
    if any(transfer.kind is Kind.ALL_REDUCE for transfer in weights):
        return calculated("ch24.comm_per_axis", f"{evidence}, but this compiler sums gradients by all_reduce, not reduce_scatter")
    return decided("ch24.comm_per_axis", sent == (over_fsdp, over_tensor), evidence)


def _payload(shape: MlpShape, axes: Axes, measured: Ledger) -> Claim:
    sums = along(measured, TENSOR)
    sizes, book = {t.payload_bytes for t in sums}, activation_bytes(shape.batch // axes[FSDP], shape.embed, element_bytes(sums))
    found = f"each sum over {axes[TENSOR]} ranks has {' or '.join(map(counted, sizes))} B"
    return decided("ch24.tp_scaling_claim", sizes == {book}, f"{found}; b S H w is {counted(book)} B, however many ranks there are")


def _links(measured: Ledger) -> tuple[Claim, ...]:
    """Decided where there are two links: between GPUs of one host, and between hosts."""
    tensor, fsdp = ({t.link for t in along(measured, axis)} for axis in (TENSOR, FSDP))
    if "network" not in tensor | fsdp:
        return ()
    evidence = f"sums over tensor cross {' and '.join(sorted(tensor))} links, weights over fsdp {' and '.join(sorted(fsdp))} links"
    return (decided("ch24.order_3d", (tensor, fsdp) == ({"host"}, {"network"}), evidence),)


EXPERIMENT = Experiment(
    name="ch24_fsdp_tensor_parallel",
    chapter=24,
    question="What does each axis of FSDP x tensor parallelism carry, on 16,384 GPUs and on 8 fake devices?",
    parameters=PARAMETERS,
    numeric_parameters=SMALL,
    axes=beside_tensor(FSDP),
    build=FSDP_TENSOR.build,
    predict=FSDP_TENSOR.predict,
    claims=claims,
    reference=loss_and_gradients,
    targets=("gpu:h100:2048x8",),
)
