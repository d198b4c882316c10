"""The kept texts give the ledgers that the shapes of their programs define, whatever is installed."""

import re
from collections import Counter
from math import prod

import pytest

from lab.book import collectives as formulas
from lab.core.ledger import axes_label
from tests.cases.compiling import ahead_of_time_gpu, ahead_of_time_tpu, mesh_on, rows
from tests.data import kept
from tests.data.catalogue import PROGRAMS
from tests.data.forms import FORMS, forms_in

every_text = pytest.mark.parametrize("name", PROGRAMS)
WIRE_BYTES_OF_THE_BOOK = {
    "all_gather": formulas.all_gather_wire_bytes,
    "reduce_scatter": formulas.reduce_scatter_wire_bytes,
    "all_reduce": formulas.all_reduce_wire_bytes,
}


@every_text
def test_a_text_sends_what_the_shapes_of_its_program_define(name):
    expected = Counter()
    for s in PROGRAMS[name].sends:
        expected[s.kind, s.axes, s.executions, s.payload_bytes, s.dtype] += s.sites
    ledger = kept.ledger(name)
    assert (
        Counter((t.kind, axes_label(t), t.executions, t.payload_bytes, t.dtype) for t in ledger.transfers) == expected
    )
    assert ledger.is_complete


@every_text
def test_a_text_sends_the_wire_bytes_of_the_book_over_all_groups_of_its_axes(name):
    axes = PROGRAMS[name].axes
    for t in kept.ledger(name).transfers:
        if t.kind in WIRE_BYTES_OF_THE_BOOK and t.axes is not None:
            ranks = prod(axes[axis] for axis in t.axes)
            assert t.wire_bytes == WIRE_BYTES_OF_THE_BOOK[t.kind](t.payload_bytes, ranks)
            assert t.groups * ranks == axes.size


@pytest.mark.parametrize("name", [n for n, entry in kept.index().items() if "loop with a trip count" in entry["forms"]])
def test_executions_are_the_same_without_the_printed_trip_counts(name):
    bare = re.sub(r'"known_trip_count":\{"n":"\d+"\},?', "", kept.text(name))
    assert "known_trip_count" not in bare and kept.read(name, bare) == kept.ledger(name)


def links(name):
    return {str(t.kind): t.link for t in kept.ledger(name).transfers}


def test_gradients_of_replicas_on_two_slices_cross_the_data_centre_network():
    assert links("replica_on_each.slices") == {"all_reduce": "ici", "send_recv": "dcn"}


def test_gradients_of_replicas_on_two_hosts_cross_the_network():
    found = {t.axes: t.link for t in kept.ledger("replica_on_each.hosts").transfers}
    assert found == {("model",): "host", ("data",): "network"}


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_a_reduction_in_a_branch_may_not_run(platform):
    assert [t.conditional for t in kept.ledger(f"psum_in_a_branch.{platform}").transfers] == [True]


@pytest.mark.parametrize(
    "name", ["fsdp.tpu", "permutes_as_messages.gpu", "layers_on_sparse_cores.tpu7x", "ppermute_x.tpu"]
)
def test_what_is_started_and_awaited_later_is_async(name):
    assert "async" in {t.overlap for t in kept.ledger(name).transfers}


def test_every_form_stands_in_a_kept_text():
    assert {form for entry in kept.index().values() for form in entry["forms"]} == set(FORMS)


def test_the_index_tells_each_program_with_the_forms_of_its_text():
    assert {name: (e["case"], e["target"], e["mesh"], e["forms"]) for name, e in kept.index().items()} == {
        name: (p.case, p.target, str(p.axes), forms_in(kept.text(name))) for name, p in PROGRAMS.items()
    }
    assert {path.name for path in kept.FOLDER.iterdir()} == {kept.INDEX.name, *(kept.path(n).name for n in PROGRAMS)}


def test_no_text_names_a_folder_of_the_machine_that_compiled_it():
    assert {name for name in PROGRAMS if re.search(r'^\d+ "[^"]*(?<!\w)/', kept.text(name), re.M)} == set()


@pytest.mark.compiles
@pytest.mark.parametrize(
    "name",
    [
        "fsdp_accumulated.cpu",
        pytest.param("fsdp_accumulated.gpu", marks=ahead_of_time_gpu),
        pytest.param("fsdp_accumulated.tpu", marks=ahead_of_time_tpu),
    ],
)
def test_compiled_again_a_program_sends_what_its_kept_text_says(name):
    program = PROGRAMS[name]
    text = program.build(mesh_on(program.target, **program.axes.shape)).as_text()
    assert rows(kept.read(name, text)) == rows(kept.ledger(name))
