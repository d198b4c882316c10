"""The smallest sets of options that do something."""

from lab.guard.causes import causes, usable


def test_each_option_that_does_it_alone_is_named():
    assert causes("abc", lambda some: bool(some & {"a", "c"})) == (("a",), ("c",))


def test_a_pair_that_does_it_together_is_found_among_five():
    assert causes("abcde", lambda some: {"b", "d"} <= some) == (("b", "d"),)


def test_nothing_is_named_where_not_even_all_do_it():
    assert causes("abc", lambda some: False) == ()


def test_an_option_alone_is_tried_once():
    tried = []
    assert causes("a", lambda some: bool(tried.append(some))) == ()
    assert tried == [frozenset("a")]


def test_what_cannot_be_tried_is_told_with_its_reason():
    assert usable("ab", lambda some: "no such option" if "b" in some else None) == (("a",), {"b": "no such option"})
