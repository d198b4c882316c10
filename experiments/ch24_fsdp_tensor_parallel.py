"""Chapter 24: what does each axis of FSDP x tensor parallelism carry, on 16,384 GPUs and on 8 fake devices?"""

from lab.book.parallelism import activation_bytes, tp_volume_bytes
from lab.book.sharding import zero3_volume_bytes
from lab.evidence import along, counted, element_bytes
from lab.experiment import Claim, Experiment, beside_tensor, calculated, decided
from lab.ledger import Kind, Ledger, Totals
from lab.models.mlp import SMALL, MlpShape
from lab.strategies.fsdp_tensor import FSDP_TENSOR
from lab.strategies.strategy import one_device
from meshes.axes import FSDP, TENSOR, Axes

# The MLPs of a model of 405 billion parameters, 8,192 tokens for each of 2,048 groups.
PARAMETERS = MlpShape(layers=126, batch=2048 * 8192, embed=16384, mlp=53248)


def claims(shape: MlpShape, axes: Axes, measured: Ledger) -> tuple[Claim, ...]:
    if 1 in axes.sizes:
        return ()
    return (_volumes(shape, axes, measured), _payload(shape, axes, measured), *_links(measured))


def _volumes(shape: MlpShape, axes: Axes, measured: Ledger) -> Claim:
    weights = tuple(t for t in along(measured, FSDP) if t.kind is Kind.ALL_GATHER or t.phase == "backward")
    activations, d, t = along(measured, TENSOR), axes[FSDP], axes[TENSOR]
    e, sent = element_bytes(weights + activations), [Totals.of(transfers).wire_bytes for transfers in (weights, activations)]
    book = [zero3_volume_bytes(shape.parameters // t, e, d), tp_volume_bytes(shape.batch // d, shape.embed, e, ranks=t, blocks=shape.layers)]
    evidence = f"a device sends {counted(sent[0])} B over fsdp and {counted(sent[1])} B over tensor a step; the formulas give {' and '.join(map(counted, book))} B"
    if any(transfer.kind is Kind.ALL_REDUCE for transfer in weights):
        return calculated("ch24.comm_per_axis", f"{evidence} for reduce_scatter, where this compiler sums gradients by all_reduce")
    return decided("ch24.comm_per_axis", sent == book, f"{evidence} at d={d}, t={t}")


def _payload(shape: MlpShape, axes: Axes, measured: Ledger) -> Claim:
    sums = along(measured, TENSOR)
    sizes, book = {t.payload_bytes for t in sums}, activation_bytes(shape.batch // axes[FSDP], shape.embed, element_bytes(sums))
    evidence = f"each sum over {axes[TENSOR]} ranks has {' and '.join(map(counted, sizes))} B; b S H w is {counted(book)} B, without a t that would make it grow"
    return decided("ch24.tp_scaling_claim", sizes == {book}, evidence)


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
    reference=one_device,
    targets=("gpu:h100:2048x8",),
)
