"""Buffers of XLA's fullest moment, by parts of the step, beside the terms of these."""

import pytest

from lab.hlo.buffers import LiveBuffer
from lab.programs.memory.parts import LABELS, Part, PartOff, is_off, part_of, parts_off
from lab.programs.memory.terms import MemoryTerm as Term

HELD = {Term.ARGUMENTS: 500, Term.LAYERS_GRADS: 200, Term.LAYER_ACTIVATIONS: 100, Term.HEAD_GRAD: 100, Term.LOGITS: 0}
LAYER, HEAD = "jit(step)/transpose(jvp(layers))/while/body/", "jit(step)/jvp(head)/"


@pytest.mark.parametrize(
    ("op_name", "part"),
    [
        (f"{LAYER}checkpoint/rematted_computation/mlp/gate/mul", Part.LAYER),
        (f"{LAYER}attention/core/bskgh,btkh->bkgst/dot_general", Part.LAYER),
        (f"{LAYER}dynamic_slice", Part.CARRIED),
        ("jit(step)/renew/layers/mlp/up/all_gather", Part.CARRIED),
        ("", Part.CARRIED),
        (f"{HEAD}dot_general", Part.ENDS),
        ("jit(step)/jvp(embedding)/gather", Part.ENDS),
    ],
)
def test_a_buffer_belongs_to_the_part_whose_scope_makes_it(op_name, part):
    assert part_of(op_name) == part


def test_a_head_of_180_bytes_in_place_of_100_is_off_and_gradients_of_205_for_200_in_1000_are_not():
    buffers = [(120, f"{HEAD}dot_general"), (60, f"{HEAD}mul"), (205, ""), (85, f"{LAYER}mlp/up/mul")]
    off = parts_off(HELD, [LiveBuffer(*each) for each in buffers], peak=1000)
    assert off == (
        PartOff(Part.ENDS, 100, 180, (Term.HEAD_GRAD,), (("head", 180),)),
        PartOff(Part.LAYER, 100, 85, (Term.LAYER_ACTIVATIONS,), (("layers/mlp/up", 85),)),
    )


def test_copies_of_arguments_are_named_by_these():
    name = "state.master['layers']['gate'].value"
    (off,) = parts_off({Term.ARGUMENTS: 500}, [LiveBuffer(90, name), LiveBuffer(50, "jit(step)/while")], peak=640)
    assert (off.part, off.largest) == (Part.CARRIED, ((name, 90), ("", 50)))


def test_parts_without_terms_or_buffers_are_off_by_all_they_hold():
    off = parts_off({Term.ARGUMENTS: 500, Term.LOGITS: 90}, [LiveBuffer(50, "")], peak=600)
    assert [(each.part, each.predicted, each.measured) for each in off] == [(Part.ENDS, 90, 0), (Part.CARRIED, 0, 50)]


@pytest.mark.parametrize(("peak", "is_beyond"), [(947, False), (948, True), (858, False), (857, True)])
def test_a_sum_of_900_megabytes_is_off_beyond_5_percent_of_the_peak(peak, is_beyond):
    assert is_off({Term.ARGUMENTS: 900 * 10**6}, peak * 10**6) == is_beyond


def test_padding_counts_with_the_terms_and_small_peaks_are_not_compared():
    held = {Term.ARGUMENTS: 100 * 10**6}
    assert is_off(held, 110 * 10**6) and not is_off(held, 110 * 10**6, padding=6 * 10**6)
    assert is_off(held, 10**8 + 6 * 10**6) and not is_off(held, 10**8 - 10 * 10**6)


def test_each_part_has_a_label():
    assert set(LABELS) == set(Part)
