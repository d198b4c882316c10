"""The order of tries, what is compiled of them, and what counts as a fit, with peaks that are made up."""

from fractions import Fraction

from lab.harness.fit.cost import Cost
from lab.harness.fit.levers import Change, Lever
from lab.harness.fit.search import Compiled, Try, search

POOL = 100
NAMES, FULL = (Change(Lever.REMAT, (("remat", remat),)) for remat in ("names", "full"))
TWO, FOUR = (Change(Lever.MICRO_BATCHES, (("accumulation", many),)) for many in ("2", "4"))
LEVERS = {Lever.REMAT: (NAMES, FULL), Lever.MICRO_BATCHES: (TWO, FOUR), Lever.SHARDING: ()}
SECONDS = {NAMES: 1.0, FULL: 3.0, TWO: 1.5, FOUR: 2.5}
PREDICTED = {
    (): 400,
    (NAMES,): 200,
    (FULL,): 150,
    (TWO,): 220,
    (FOUR,): 130,
    (NAMES, TWO): 105,
    (NAMES, FOUR): 60,
    (FULL, TWO): 80,
    (FULL, FOUR): 40,
}


def searched(peaks=PREDICTED, price=lambda changes: sum(SECONDS[one] for one in changes), predicted=PREDICTED):
    """The tries, and which were compiled."""
    compiled = []

    def compile(changes):
        compiled.append(changes)
        return Compiled(peaks[changes])

    def cost(changes):
        return None if price(changes) is None else Cost(seconds=price(changes))

    asked = Try((), Cost(), predicted.get(()), Compiled(peaks[()]))
    return search(asked, LEVERS, cost, predicted.get, compile, POOL), compiled


def test_combinations_come_up_in_the_order_of_what_they_add():
    tries, _ = searched()
    order = [(), (NAMES,), (TWO,), (FOUR,), (NAMES, TWO), (FULL,), (NAMES, FOUR)]
    assert [one.changes for one in tries] == order
    assert [one.extra.seconds for one in tries] == [0, 1, 1.5, 2.5, 2.5, 3, 3.5]


def test_only_what_a_prediction_lets_hope_is_compiled_and_the_cheapest_that_fits_ends_it():
    tries, compiled = searched()
    assert compiled == [(NAMES, TWO), (NAMES, FOUR)]
    assert [one.changes for one in tries if one.fits(POOL)] == [(NAMES, FOUR)] == [tries[-1].changes]


def test_a_predicted_fit_is_none_until_it_is_compiled():
    tries, compiled = searched(peaks=PREDICTED | {(NAMES, FOUR): 101})
    assert compiled == [(NAMES, TWO), (NAMES, FOUR), (FULL, TWO)]
    assert not Try((), Cost(), 1).fits(POOL) and tries[-1].changes == (FULL, TWO)


def test_a_prediction_is_believed_as_far_as_earlier_ones_were_right():
    """Programs that hold half of what is predicted: what was twice too much is compiled."""
    tries, compiled = searched(peaks={changes: peak // 2 for changes, peak in PREDICTED.items()})
    assert compiled == [(NAMES,)] and tries[-1].peak == 100 and tries[-1].fits(POOL)


def test_a_change_that_lowers_no_prediction_is_not_compiled():
    """Even where its peak would be compiled otherwise."""
    predicted = PREDICTED | {(): 105, (NAMES,): 105, (TWO,): 104, (FOUR,): 90, (NAMES, TWO): 104}
    tries, compiled = searched(peaks=predicted, predicted=predicted)
    assert compiled == [(TWO,), (FOUR,)] and tries[-1].changes == (FOUR,)


def test_where_nothing_fits_the_least_predicted_peak_is_compiled_and_comes_last():
    much = {changes: 10 * peak for changes, peak in PREDICTED.items()}
    tries, compiled = searched(peaks=much, predicted=much)
    assert compiled == [(FULL, FOUR)] == [tries[-1].changes] and tries[-1].peak == 400
    assert len(tries) == len(PREDICTED) and not any(one.fits(POOL) for one in tries)


def test_without_predictions_every_combination_is_compiled_until_one_fits():
    tries, compiled = searched(predicted={})
    assert compiled == [one.changes for one in tries[1:]] and tries[-1].changes == (NAMES, FOUR)


def test_changes_that_do_not_go_together_are_left_out():
    tries, _ = searched(price=lambda changes: None if FOUR in changes else sum(SECONDS[one] for one in changes))
    assert [one.changes for one in tries] == [(), (NAMES,), (TWO,), (NAMES, TWO), (FULL,), (FULL, TWO)]


def test_a_refused_program_does_not_fit_and_the_search_goes_on():
    tries, compiled = searched(peaks=PREDICTED | {(): None, (NAMES, FOUR): None})
    assert compiled[-2:] == [(NAMES, FOUR), (FULL, TWO)] and tries[-1].peak == 80


def test_what_is_added_is_told_beyond_the_step_as_asked():
    before, after = Cost(10, Fraction(4), 0, 2.0), Cost(16, Fraction(3), 8, 2.5)
    assert after - before == Cost(6, Fraction(-1), 8, 0.5)
