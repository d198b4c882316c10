"""The dump of a TPU program beside a whole compilation of it."""

from dataclasses import replace
from functools import partial
from math import prod
from operator import attrgetter

import jax
import pytest

from lab import diagnosis
from lab.compile import xla_dump
from lab.compile.inspection import inspect_program, read_program, read_texts
from lab.compile.sources import buffers_beside
from lab.compile.xla_dump import CompilerDump, CompileRequest, Refused, dump, held_at_peak, lower
from lab.experiments.ch20_zero3 import EXPERIMENT
from lab.harness import registry
from lab.harness.run import run
from lab.hlo.buffers import read_buffers
from lab.measure.prediction import predicted
from lab.meshes import plugins
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.memory.parts import Part, is_off
from lab.programs.models.shape import DecoderShape
from tests.lab.compilers import compilers_end
from tests.long_tests import long

SMALL = DecoderShape().shrunk()
TARGET, H100S = parse_target("tpu:v5p:2x2x2"), parse_target("gpu:h100:1x2")

needs_libtpu = pytest.mark.skipif(
    not plugins.installed("tpu"), reason="the compile-only plugin for TPUs is not installed"
)


def request(name: str = EXPERIMENT.name, **sizes: int) -> CompileRequest:
    return CompileRequest(
        partial(registry.build_of, name), "explicit", DecoderShape().shrunk(**sizes), TARGET, EXPERIMENT.axes(TARGET)
    )


@pytest.fixture(scope="module")
def dumped() -> CompilerDump:
    return dump(request())


@pytest.mark.compiles
@needs_libtpu
def test_a_dump_has_the_ledger_and_the_peak_of_the_whole_compilation(dumped):
    measured = run(EXPERIMENT, target=TARGET, style="explicit", parameters=SMALL).measured
    figures = attrgetter("arguments", "outputs", "aliased", "peak", "padding")
    mesh = make_mesh(TARGET, EXPERIMENT.axes(TARGET))
    whole = inspect_program(
        lower(EXPERIMENT.build, "explicit", SMALL, mesh).compile(), (), mesh, TARGET, source=EXPERIMENT.name
    )
    assert (measured.transfers, measured.flops, measured.notes) == (whole.transfers, whole.flops, whole.notes)
    assert figures(dumped.memory) == figures(measured.memory) == figures(whole.memory)


@pytest.mark.compiles
@needs_libtpu
def test_a_dump_tells_what_a_device_takes_and_gives_back(dumped):
    """Master, two moments, and a step's count; then tokens and targets, or loss and norm."""
    weights = EXPERIMENT.state(SMALL, make_mesh(TARGET, EXPERIMENT.axes(TARGET)))
    held = [prod(w.sharding.shard_shape(w.shape)) for w in jax.tree.leaves(weights)]
    assert list(dumped.taken) == [*held, 2 * 32, 2 * 32]
    assert list(dumped.given_back) == [*held, 1, 1]


@pytest.mark.compiles
@needs_libtpu
def test_a_program_too_large_for_the_chip_is_refused_in_the_compilers_words():
    with pytest.raises(Refused, match="Ran out of memory on HBM"):
        dump(request(vocab=2**24, embed=1024))


@pytest.mark.compiles
def test_an_unknown_experiment_is_told_as_it_is_also_beside_a_module_lab_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "lab.py").write_text("raise ImportError('not the package')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no experiment 'none'"):
        dump(request("none"))


def test_a_compiler_that_dies_is_told(monkeypatch):
    monkeypatch.setattr(xla_dump.sys, "executable", "/bin/false")
    with pytest.raises(Refused, match="the compiler exited without a dump"):
        dump(request())


def test_another_process_finds_registered_experiments_alone():
    assert registry.is_registered(EXPERIMENT)
    assert not registry.is_registered(replace(EXPERIMENT, build=lower))


@pytest.mark.parametrize("freed_first", [False, True])
def test_two_temporaries_in_one_place_of_5_bytes_and_one_of_7_hold_12_at_most(freed_first):
    """Beside an argument of 3 and a constant of 1; whether the first is freed before the second takes its place or
    after."""
    allocate, free, share = range(3)
    handed_over = [(free, 0), (share, 1)] if freed_first else [(share, 1), (free, 0)]
    sizes = b"".join(_field(1, _number(1, i) + _number(2, size)) for i, size in enumerate((5, 5, 7)))
    events = [(allocate, 0), *handed_over, (allocate, 2), (free, 1), (free, 2)]
    trace = b"".join(_field(1, _number(1, kind) + _number(2, buffer)) for kind, buffer in events)
    argument = _field(3, _number(1, 0) + _number(2, 3) + _number(5, 1) + _number(7, 1))
    constant, block = (
        _field(3, _number(1, 1) + _number(2, 1) + _number(12, 1)),
        _field(3, _number(1, 2) + _number(2, 20)),
    )
    elsewhere = _field(3, _number(1, 3) + _number(2, 300) + _number(8, 1))
    on_host = _field(3, _number(1, 4) + _number(2, 900) + _number(5, 1) + _number(8, 5))
    stack = _field(3, _number(1, 5) + _number(2, 700) + _number(8, 5)) + _field(
        1, _number(1, 3) + _number(2, 700) + _number(4, 5)
    )
    of_the_host = _field(4, _field(1, _number(2, 3)) + _number(3, 60))
    allocations = argument + constant + block + elsewhere + on_host + stack
    held = read_buffers(_field(3, sizes + allocations + _field(4, trace) + of_the_host))
    assert [(each.size, each.is_argument) for each in held.on_host] == [(900, True), (700, False)]
    assert (held.arguments, held.outputs, held.aliased, held.temporaries, held.peak) == (3, 3, 3, 20, 3 + 1 + 12)
    assert held.on_chip == 0


def test_temporaries_on_the_chip_that_are_more_than_those_in_main_memory_are_named():
    buffers = _field(1, _number(1, 0) + _number(2, 5)) + _field(1, _number(1, 1) + _number(2, 8) + _number(4, 1))
    argument = _field(3, _number(1, 0) + _number(2, 3) + _number(5, 1))
    traces = b"".join(_field(4, _field(1, _number(2, number))) for number in (0, 1))
    held = read_buffers(_field(3, buffers + argument + traces))
    assert (held.peak, held.on_chip, held.memory(0).on_chip) == (3 + 8, 8, 8)


@pytest.mark.parametrize("proto", [True, False])
def test_a_dumped_text_has_the_memory_that_xla_planned_where_the_dump_has_it_too(tmp_path, proto):
    text = "HloModule step, num_partitions=8\n\nENTRY %main {\n  ROOT %x = f32[8]{0} parameter(0)\n}\n"
    (tmp_path / "module_0001.step.gpu_after_optimizations.txt").write_text(text)
    argument = _field(3, _number(1, 0) + _number(2, 70 * 10**9) + _number(5, 1))
    if proto:
        (tmp_path / "module_0001.step.gpu_after_optimizations.hlo.pb").write_bytes(_field(3, argument))
    (found,) = read_texts(tmp_path, Axes.parse("data=8"), parse_target("gpu:h100:1x8"))
    assert (found.ledger.memory and found.ledger.memory.peak) == (70 * 10**9 if proto else None)
    assert [each.kind for each in diagnosis.of(found).findings] == ["out_of_memory"] * proto


def test_a_damaged_buffer_assignment_is_none(tmp_path):
    dumped = tmp_path / "step.gpu_after_optimizations.hlo.pb"
    whole = _field(3, _field(3, _number(1, 0) + _number(2, 3) + _number(5, 1)))
    assert read_buffers(whole).arguments == 3
    for content in (b"", b"\xff\xff", _field(1, b"module"), whole[:-2]):
        dumped.write_bytes(content)
        assert buffers_beside(tmp_path / "step.gpu_after_optimizations.txt") is None


needs_cuda = pytest.mark.skipif(
    not plugins.installed("gpu"), reason="the compile-only plugin for GPUs is not installed"
)


@pytest.mark.compiles
@needs_cuda
def test_what_a_step_on_gpus_holds_at_its_peak_is_its_peak_without_what_stays():
    lowered = lower(EXPERIMENT.build, "explicit", SMALL, make_mesh(H100S, EXPERIMENT.axes(H100S)))
    memory = lowered.compile().memory_analysis()
    stays = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    sizes = [each.size for each in held_at_peak(lowered)]
    assert sizes == sorted(sizes, reverse=True)
    # Constants stay, too.
    assert sum(sizes) == pytest.approx(memory.peak_memory_in_bytes - stays, abs=1000)


@pytest.mark.compiles
@needs_cuda
def test_a_dump_for_gpus_has_the_ledger_the_memory_and_the_seconds_of_the_whole_compilation(tmp_path, monkeypatch):
    """And is read again where it was kept."""
    monkeypatch.setenv("LAB_CACHE", str(tmp_path))
    mesh = make_mesh(H100S, EXPERIMENT.axes(H100S))
    lowered = lower(EXPERIMENT.build, "declared", SMALL, mesh)
    whole = read_program(lowered.compile(), (), mesh, H100S, source="step")
    with xla_dump.without_machine_code():
        dumped, again = (read_program(lowered, (), mesh, H100S, source="step", until_dumped=True) for _ in range(2))
    compilers_end()
    assert len(list((tmp_path / "dumps").iterdir())) == 1
    for one in (dumped, again):
        assert (one.ledger.transfers, one.ledger.memory) == (whole.ledger.transfers, whole.ledger.memory)
        assert one.ledger.flops == whole.ledger.flops and predicted(one).time == predicted(whole).time


@pytest.mark.compiles
@needs_cuda
@long
def test_a_run_names_embedding_head_and_loss_where_the_heads_gradient_is_made_later_than_predicted():
    found = run(registry.experiment("ch15_tensor_parallel"), target=parse_target("gpu:h100:2x8"), style="declared")
    assert is_off(found.held, found.measured.memory.peak)
    assert found.off[0].part == Part.ENDS and found.off[0].measured > 2 * found.off[0].predicted


def test_at_the_peak_are_the_temporaries_that_are_held_then_with_the_names_of_what_makes_them():
    """One of 9 that is freed before, then two of 5 and 7 at once; the one of 5 alone has a name."""
    allocate, free = range(2)
    named = _field(2, _field(7, _field(2, b"jit(step)/head/dot")) + _number(35, 70))
    sizes = b"".join(
        _field(1, _number(1, i) + _number(2, size) + _field(3, _number(4, 70 + i))) for i, size in enumerate((5, 7, 9))
    )
    events = [(allocate, 2), (free, 2), (allocate, 0), (allocate, 1), (free, 0)]
    trace = b"".join(_field(1, _number(1, kind) + _number(2, buffer)) for kind, buffer in events)
    held = read_buffers(_field(1, _field(3, named)) + _field(3, sizes + _field(4, trace)))
    assert held.temporaries_peak == 12
    assert [(each.size, each.op_name) for each in held.at_peak] == [(7, ""), (5, "jit(step)/head/dot")]


def test_a_module_without_buffers_is_refused():
    with pytest.raises(ValueError, match="no buffer assignment"):
        read_buffers(_field(1, b"module"))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + _varint(value >> 7) if value > 127 else bytes([value])
