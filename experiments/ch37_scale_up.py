"""Chapter 37: a 7B model took a week on 64 GPUs; how long does 70B take on 640?"""

from dataclasses import dataclass

from lab.book.composition import trained_flops_per_s
from lab.book.data_parallel import training_flops
from lab.harness.claim import Claim, calculated
from lab.harness.question import Question, Row
from lab.zoo import cluster

DAY = 86400


@dataclass(frozen=True)
class Assumed:
    """Tokens in proportion to parameters; the larger run keeps `kept_utilisation` of the smaller one's FLOP/s a
    device."""

    parameters: float = 7e9
    devices: int = 64
    days: float = 7.0
    larger_parameters: float = 70e9
    larger_devices: int = 640
    tokens_per_parameter: float = 20.0
    kept_utilisation: float = 1.0
    cluster: str = "dgx-h100"


def larger_days(assumed: Assumed) -> float:
    """Days of the larger run."""
    small, large = (
        training_flops(n, assumed.tokens_per_parameter * n) for n in (assumed.parameters, assumed.larger_parameters)
    )
    return assumed.days * (large / small) * assumed.devices / assumed.larger_devices / assumed.kept_utilisation


def answer(assumed: Assumed) -> tuple[Row, ...]:
    tokens, larger_tokens = (assumed.tokens_per_parameter * n for n in (assumed.parameters, assumed.larger_parameters))
    days = larger_days(assumed)
    rate = trained_flops_per_s(assumed.parameters, tokens, assumed.devices, assumed.days * DAY)
    peak = cluster(assumed.cluster).chip.flops_per_s["bf16"].value
    return (
        Row("tokens", tokens, "tokens"),
        Row("FLOPs", training_flops(assumed.parameters, tokens), "FLOP"),
        Row("rate of a device", rate, "FLOP/s"),
        Row("MFU", 100 * rate / peak, "%"),
        Row("tokens of the larger model", larger_tokens, "tokens"),
        Row("FLOPs of the larger model", training_flops(assumed.larger_parameters, larger_tokens), "FLOP"),
        Row("days of the larger run", days, "days"),
        Row(
            "device hours of the larger run, over those of the smaller",
            days * assumed.larger_devices / (assumed.days * assumed.devices),
        ),
        Row("devices for the larger run in the days of the smaller", assumed.larger_devices * days / assumed.days),
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    days = larger_days(Assumed())
    evidence = (
        "ten times the parameters on ten times the tokens are 100 times the FLOPs, on ten times the devices "
        f"{days:g} days"
    )
    return (calculated("ch37.exercises", evidence, statement="70 days"),)


def asked(assumed: Assumed) -> str:
    small, large = (f"{count / 1e9:g}B" for count in (assumed.parameters, assumed.larger_parameters))
    return (
        f"A {small} model took {assumed.days:g} days on {assumed.devices:,} GPUs; how long does {large} take on "
        f"{assumed.larger_devices:,}?"
    )


EXPERIMENT = Question(
    name="ch37_scale_up",
    chapter=37,
    question=asked(Assumed()),
    parameters=Assumed(),
    answer=answer,
    claims=claims,
    asked=asked,
)
