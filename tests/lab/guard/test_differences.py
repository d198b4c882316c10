"""What differs between two compilations, and where."""

from lab.core.ledger import Kind, Memory, Overlap
from lab.guard.differences import About, Difference, Site, Sites, differences
from tests.lab.ledgers import ledger, transfer


def gather(payload_bytes=800, instruction="all-gather.1", origin="step.py:7", **told):
    return transfer(
        Kind.ALL_GATHER, ("data",), payload_bytes, scope="mlp", instruction=instruction, origin=origin, **told
    )


def test_two_compilations_alike_do_not_differ_by_the_names_of_instructions():
    old, new = Sites(ledger(gather())), Sites(ledger(gather(instruction="all-gather.9")))
    assert differences(old, new) == ()


def test_a_gather_that_grew_has_its_line_and_both_instructions():
    old, new = Sites(ledger(gather())), Sites(ledger(gather(1600, "all-gather.9", "step.py:8")))
    (found,) = differences(old, new)
    assert (found.about, found.what, found.places) == (About.TRANSFERS, "grew", ("all_gather over data, mlp",))
    assert (found.before, found.after) == ("1 x f32, 700 B", "1 x f32, 1,400 B")
    assert found.lines == ("step.py:7", "step.py:8")
    assert found.instructions == (("all-gather.1",), ("all-gather.9",))


def test_a_gather_that_blocks_where_it_was_hidden_is_rescheduled():
    old = Sites(ledger(gather(overlap=Overlap.ASYNC, is_over_products=True)))
    new = Sites(ledger(gather(overlap=Overlap.SYNC, is_over_products=False)))
    (found,) = differences(old, new)
    assert (found.about, found.before, found.after) == (About.SCHEDULE, "1 hidden", "1 blocking")
    assert (old.schedule, new.schedule) == ({"hidden": 1}, {"blocking": 1})


def test_flops_are_told_by_place_where_their_sum_differs():
    products = Site(10, "forward, mlp", "step.py:3", "dot.1"), Site(6, "forward, head", "step.py:9", "dot.2")
    more = Site(20, "forward, mlp", "step.py:3", "dot.4"), products[1]
    (found,) = differences(Sites(ledger(flops=16), products), Sites(ledger(flops=26), more))
    assert (found.places, found.before, found.after) == (("forward, mlp",), "10 FLOPs", "20 FLOPs")
    assert found.instructions == (("dot.1",), ("dot.4",))
    assert differences(Sites(ledger(flops=16), products), Sites(ledger(flops=16), more)) == ()


def test_a_grown_peak_names_what_came_and_what_went():
    kept, went, came = (Site(amount, place, None, place) for amount, place in ((9, "h"), (4, "scores"), (40, "copy")))
    old = Sites(ledger(memory=Memory(100, 0, 50, 0, 150)), held=(kept, went))
    new = Sites(ledger(memory=Memory(100, 0, 50, 0, 165)), held=(came, kept))
    (found,) = differences(old, new)
    assert (found.places, found.what, found.after) == (("peak",), "grew", "165 B")
    assert found.instructions == (("scores",), ("copy",))


def test_a_difference_is_undone_where_nothing_is_left_at_its_places():
    one = Difference(About.TRANSFERS, "grew", ("all_gather over data, mlp",), "1", "2")
    less = Difference(About.SCHEDULE, "rescheduled", ("all_gather over data, mlp",), "1 hidden", "1 blocking")
    elsewhere = Difference(About.MEMORY, "grew", ("peak",), "1", "2")
    assert one.is_undone([elsewhere])
    assert not one.is_undone([elsewhere, less])
