"""How often to save where, for a machine."""

import pytest

from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.resilience.loss import Scale
from lab.resilience.simulation import Setting, simulated
from lab.resilience.tiers import Failures, Machine, best, parse_rate, parse_seconds, plans

LLAMA = Machine(parse_target("gpu:h100:2048x8"), Failures.parse("50000h"), 25e9, 300.0)


def test_failures_of_devices_and_racks_add_up():
    target = parse_target("gpu:h100:2048x8")
    failures = Failures.parse("device=50000h,rack=1000000h")
    assert 3600 * failures.per_s(target, *Scale) == pytest.approx(16_384 / 50_000 + 512 / 1_000_000)
    assert Failures.parse("50000h").per_s(target, Scale.RACK) == 0


def test_a_store_that_takes_long_is_written_as_often_as_it_can_and_a_neighbour_helps():
    alone, both = plans(LLAMA, 5_670_000_000_000, 5_537_000_000)
    assert alone.tiers[0].interval_s == alone.tiers[0].write_s == pytest.approx(226.8)
    near, store = both.tiers
    assert near.save_s == pytest.approx(0.11074) and near.interval_s == pytest.approx(49.33, rel=1e-3)
    assert store.interval_s >= store.write_s and store.mtbf_s > 10_000 * near.mtbf_s
    assert best((alone, both)) is both and both.goodput > alone.goodput + 0.04


def test_the_goodput_of_the_store_alone_is_that_of_simulated_trainings():
    plan, *_ = plans(LLAMA, 5_670_000_000_000, 5_537_000_000)
    (tier,) = plan.tiers
    setting = Setting(
        tier.interval_s,
        store_save_s=tier.save_s,
        write_s=tier.write_s,
        store_mtbf_s=tier.mtbf_s,
        store_restart_s=tier.restart_s,
    )
    found = simulated(setting, periods=500, runs=2000, seed=3)
    assert found.useful.mean() / found.total.mean() == pytest.approx(plan.goodput, rel=3e-3)


def test_one_host_has_no_neighbour():
    machine = Machine(parse_target("gpu:h100:1x8"), Failures.parse("50000h"), 25e9, 300.0)
    assert [len(plan.tiers) for plan in plans(machine, 10**12, 10**11)] == [1]


@pytest.mark.parametrize(
    ("read", "line"),
    [
        (lambda: parse_seconds("50000", "--mtbf"), "--mtbf 50000: expected a time such as"),
        (lambda: parse_seconds("0h", "--mtbf"), "--mtbf 0h: expected a time such as"),
        (lambda: parse_rate("25"), "--store 25: expected bytes a second"),
        (lambda: Failures.parse("hots=3h"), "no scale of failure 'hots' in --mtbf; did you mean host"),
        (
            lambda: Failures.parse("slice=3h").per_s(parse_target("gpu:h100:2x8"), Scale.SLICE),
            "--mtbf slice=...: target gpu:h100:2x8 has none",
        ),
    ],
)
def test_what_is_no_time_rate_or_part_is_refused(read, line):
    with pytest.raises(UsageError) as refusal:
        read()
    assert str(refusal.value).startswith(line)
