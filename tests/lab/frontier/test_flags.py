"""Flags that a step is compiled with: those that its compiler knows, and that could do something to it."""

from lab.compile.xla_flags import Flag
from lab.core.ledger import Kind
from lab.frontier.flags import CPU, GPU, interventions
from lab.meshes.platforms import Platform

KNOWN = {name: Flag("other", "") for one in (*GPU, *CPU) for name, _ in one.options}
GATHERS, REDUCES = "xla_gpu_all_gather_combine_threshold_bytes", "xla_gpu_all_reduce_combine_threshold_bytes"


def names(platform: Platform, kinds: set[Kind], known=KNOWN) -> set[str]:
    return {name for one in interventions(platform, kinds, known) for name in one.options}


def test_a_flag_that_the_release_does_not_know_and_one_that_is_set_so_by_default_are_left_out():
    name = "xla_gpu_enable_pipelined_all_gather"
    without = {each: flag for each, flag in KNOWN.items() if each != name}
    assert name in names(Platform.GPU, {Kind.ALL_GATHER})
    assert name not in names(Platform.GPU, {Kind.ALL_GATHER}, without)
    as_it_is = [
        dict(one.options) for one in interventions(Platform.GPU, {Kind.ALL_GATHER}, KNOWN | {name: Flag("True", "")})
    ]
    assert {name: "True"} not in as_it_is


def test_of_permutes_nothing_is_set_for_a_step_that_has_none():
    permutes = {"xla_gpu_collective_permute_decomposer_threshold", "xla_gpu_enable_pipelined_p2p"}
    assert permutes <= names(Platform.GPU, {Kind.COLLECTIVE_PERMUTE})
    # Pipelining of every kind at once sets one of them.
    assert permutes - names(Platform.GPU, {Kind.ALL_GATHER}) == {"xla_gpu_collective_permute_decomposer_threshold"}


def test_combined_transfers_of_two_kinds_have_128_mib_together_and_each():
    known = KNOWN | {GATHERS: Flag("31457287", "0"), REDUCES: Flag("31457287", "0")}
    found = [dict(one.options) for one in interventions(Platform.GPU, {Kind.ALL_GATHER, Kind.ALL_REDUCE}, known)]
    size = str(128 * 2**20)
    for some in ({GATHERS: size, REDUCES: size}, {GATHERS: size}, {REDUCES: size}):
        assert some in found


def test_no_flag_of_gpus_is_set_for_cpus():
    assert names(Platform.CPU, {Kind.ALL_REDUCE}) == {
        "xla_cpu_enable_concurrency_optimized_scheduler",
        "xla_disable_hlo_passes",
    }
