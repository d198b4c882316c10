"""Whether a step has room, and what lies on the host: of compiled texts with the memory that XLA planned."""

from dataclasses import replace

from lab import diagnosis
from lab.core.ledger import Memory
from lab.diagnosis import Diagnosis
from lab.diagnosis.program import Program
from lab.hlo.read import read
from lab.meshes.axes import Axes
from lab.meshes.targets import parse_target

GB = 10**9
STEP = """HloModule step, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (w: f32[1048576,16384], x: f32[16384]) -> f32[1048576,16384] {
  %w = f32[1048576,16384]{1,0} parameter(0), sharding={replicated}, metadata={op_name="state[\\'w\\']"}
  %x = f32[16384]{0} parameter(1), sharding={replicated}, metadata={op_name="x"}
  %alike = f32[16384]{0} all-reduce(%x), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=%add
  %row = f32[1048576,16384]{1,0} broadcast(%alike), dimensions={1}
  ROOT %sum = f32[1048576,16384]{1,0} add(%w, %row)
}
"""


def program(text: str, target: str, memory: Memory | None, mesh: str = "data=8") -> Program:
    axes, place = Axes.parse(mesh), parse_target(target)
    reading = read(text, source="step.hlo", axes=axes, target=place)
    return Program(replace(reading.ledger, memory=memory), reading, axes, place, platform=place.platform)


def step(peak: int | None, target: str = "gpu:h100:1x8", temporaries: int = GB) -> Diagnosis:
    memory = Memory(arguments=68 * GB, outputs=0, temporaries=temporaries, aliased=0, peak=peak)
    return diagnosis.of(program(STEP, target, memory))


def test_a_peak_above_three_quarters_of_a_gpu_is_the_first_finding_with_the_fraction_that_would_do():
    found = step(70 * GB)
    assert [finding.kind for finding in found.findings] == ["out_of_memory", "reduced_for_nothing"]
    assert "it would with XLA_PYTHON_CLIENT_MEM_FRACTION=0.83" in found.findings[0].sentence
    assert found.findings[0].memory_bytes == 70 * GB - 63_763_120_128
    room = found.json_object().room
    assert (room.fits, room.fraction, room.usable_bytes) == (False, 0.83, 63_763_120_128)


def test_what_is_more_than_all_of_a_chip_has_no_fraction_and_what_fits_is_no_finding():
    assert step(200 * GB).json_object().room.fraction is None
    fits = step(60 * GB)
    assert "out_of_memory" not in {finding.kind for finding in fits.findings}
    assert fits.json_object().room.fits


def test_advice_begins_with_what_fills_the_memory():
    assert step(70 * GB).findings[0].advice == (
        "shard over more devices what fills it: arguments, 68 GB of it (the largest are "
        "f32[1048576,16384] state['w'] whole, f32[16384] x whole); temporaries, 1 GB"
    )
    assert step(170 * GB, temporaries=100 * GB).findings[0].advice.startswith("take fewer sequences at once, or remat")


def test_without_a_peak_or_a_chip_nothing_is_said_of_room():
    for found in (step(None), step(200 * GB, target="cpu:8")):
        assert "out_of_memory" not in {finding.kind for finding in found.findings}
        assert "room" not in found.ledger.to_json()


def offloading(text: str, target: str, **memory: int) -> list[str]:
    planned = Memory(arguments=1, outputs=1, temporaries=1, aliased=0, peak=1, **memory)
    asking = replace(program(text, target, planned), offloaded={"hidden": None, "residual": None})
    return [f.sentence for f in diagnosis.of(asking).findings if f.kind == "offload_undone"]


def test_an_offload_that_leaves_nothing_on_the_host_is_a_finding_with_the_names_that_were_to_go():
    (sentence,) = offloading(STEP, "gpu:h100:1x8")
    assert sentence.startswith("a policy of jax.checkpoint offloads hidden and residual, and nothing lies in the host")


def test_an_offload_is_done_where_something_is_copied_or_held_there_and_cpus_are_the_host():
    to_host = "f32[16384]{0:S(5)} copy(%x)"
    assert not offloading(STEP.replace("  %row =", f"  %h = {to_host}\n  %row ="), "gpu:h100:1x8")
    assert not offloading(STEP, "gpu:h100:1x8", host_temporaries=1)
    assert not offloading(STEP, "cpu:8")
