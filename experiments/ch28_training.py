"""Chapter 28: does a decoder learn as well when its gradients are exchanged in fewer bits? On the standard library's
own sources, in bytes, beside curves whose first weights are off by what bfloat16 rounds."""

from functools import partial

from lab.experiments import ch14_data_parallel, ch28_step
from lab.harness.claim import Claim, calculated
from lab.harness.decoder.compressed import go_on, in_method
from lab.harness.decoder.nudged import MARGIN
from lab.harness.decoder.reference_run import NUDGED, train_nudged
from lab.harness.decoder.training import Curve, LayoutUnderTraining, Training, TrainingResult, WarmUp, trainee
from lab.harness.decoder.training_shape import SMALL

ABOUT = {
    "power_sgd": "ch28.powersgd",
    "top_k": "ch28.topk",
    "random_k": "ch28.topk",
    "qsgd": "ch28.qsgd",
    "terngrad": "ch28.terngrad",
    "one_bit_adam": "ch28.onebit_adam",
    "int8": "ch28.compressed_allreduce",
    "float8": "ch28.compressed_allreduce",
}
"""By method, the formula of the book."""
SHARE = 0.1
"""Of the numbers that sparse methods send: of a hundredth, 200 steps would send each but twice."""
IN_FULL = {"one_bit_adam": WarmUp(ch14_data_parallel.EXPERIMENT, share=0.2, go_on=go_on)}


def layout(method: str) -> LayoutUnderTraining:
    step = ch28_step.EXPERIMENT
    return trainee(method, step, sized=partial(in_method, method, SHARE), warm_up=IN_FULL.get(method))


def told(trained: TrainingResult, curve: Curve) -> Claim:
    where = "within" if trained.is_on_curve(curve) else "beyond"
    return calculated(
        ABOUT[curve.layout],
        f"{curve.layout}: over the last tenth of {trained.parameters.steps} steps its loss is "
        f"{trained.gap(curve):+.4f} nats from one device's, {trained.gap(curve) / trained.end:+.2%}; {where} {MARGIN} "
        f"times the band of {NUDGED} nudged curves, {trained.reference.tolerance:.2%}",
    )


def claims(trained: TrainingResult) -> tuple[Claim, ...]:
    return tuple(told(trained, curve) for curve in trained.curves if curve.losses.size)


EXPERIMENT = Training(
    name="ch28_training",
    chapter=28,
    question="Does a decoder learn as well when its gradients are exchanged in fewer bits?",
    parameters=SMALL,
    layouts=tuple(map(layout, ABOUT)),
    claims=claims,
    reference=train_nudged,
)
