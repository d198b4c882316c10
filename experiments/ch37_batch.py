"""Chapter 37: is it worth doubling the batch if it takes 20 % more samples?"""

from dataclasses import dataclass

from lab.harness.claim import Claim, calculated
from lab.harness.question import Question, Row


@dataclass(frozen=True)
class Assumed:
    """A run of `device_h` on some devices; a batch `times` as large on as many times the devices, for `more_samples`
    times the samples, same time a step."""

    device_h: float = 100_000.0
    devices: int = 1000
    times: float = 2.0
    more_samples: float = 1.2
    dollars_per_device_h: float = 3.0


def critical_batch(assumed: Assumed) -> float:
    """B_c in units of the old batch: samples are in proportion to B + B_c, so (k + B_c)/(1 + B_c) = s. Infinite for s =
    1, 0 for s = k."""
    extra = assumed.more_samples - 1
    return (assumed.times - assumed.more_samples) / extra if extra else float("inf")


def answer(assumed: Assumed) -> tuple[Row, ...]:
    hours = assumed.device_h / assumed.devices
    shorter = hours * assumed.more_samples / assumed.times
    dearer = assumed.device_h * (assumed.more_samples - 1) * assumed.dollars_per_device_h
    return (
        Row("device hours", assumed.device_h, "h"),
        Row("device hours with the larger batch", assumed.device_h * assumed.more_samples, "h"),
        Row("hours", hours, "h"),
        Row("hours with the larger batch", shorter, "h"),
        Row("times faster", assumed.times / assumed.more_samples),
        Row("cost", assumed.device_h * assumed.dollars_per_device_h, "USD"),
        Row("cost with the larger batch", assumed.device_h * assumed.dollars_per_device_h + dearer, "USD"),
        Row("dearer by", dearer, "USD"),
        Row(
            "worth it if an hour earlier is worth",
            dearer / (hours - shorter) if shorter < hours else "never: it is not faster",
            "USD",
        ),
        Row("critical batch, in old batches", critical_batch(assumed)),
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    book = Assumed()
    larger = book.device_h * book.more_samples
    evidence = (
        f"{larger:,.0f} device hours against {book.device_h:,.0f}, in {book.more_samples / book.times:.0%} of the time"
    )
    return (calculated("ch37.exercises", evidence, statement="120K against 100K GPU hours"),)


def asked(assumed: Assumed) -> str:
    more = f"{100 * (assumed.more_samples - 1):g} %"
    return f"Is a batch {assumed.times:g} times as large worth it if it takes {more} more samples?"


EXPERIMENT = Question(
    name="ch37_batch",
    chapter=37,
    question=asked(Assumed()),
    parameters=Assumed(),
    answer=answer,
    claims=claims,
    asked=asked,
)
