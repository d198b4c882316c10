"""The compiled texts of the reported cases give the sums, sites, groups and loops that a second reader worked out for
them."""

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from lab.core.codec import to_json
from lab.core.ledger import Ledger
from lab.hlo import read_text
from lab.hlo.collectives import OPCODES
from lab.hlo.loops import Scope, derived_trip_count, trip_count
from lab.hlo.text import parse
from lab.meshes.axes import Axes
from tests.paths import SHARED

COMPILED = SHARED / "cases" / "compiled"
EXPECTED = COMPILED / "expected.json"


def entries() -> dict[str, dict]:
    if not EXPECTED.exists():
        return {}
    cases = json.loads(EXPECTED.read_text())
    return {entry["file"]: entry for name, programs in cases.items() if name != "_about" for entry in programs.values()}


ENTRIES = entries()
MESSAGES = ("collective_permute", "send_recv")


def texts_with(is_wanted: Callable[[dict], bool]) -> pytest.MarkDecorator:
    """Runs a test on the texts whose entry is wanted; skips it where the texts are absent."""
    absent = pytest.param(
        None, marks=pytest.mark.skip(reason="the compiled texts of the cases, ../shared/cases/compiled, are absent")
    )
    return pytest.mark.parametrize("file", [file for file, entry in ENTRIES.items() if is_wanted(entry)] or [absent])


def grouped_ops(entry: dict) -> list[dict]:
    return [op for op in entry["ops"] if op["kind"] not in MESSAGES]


every_text = texts_with(lambda entry: True)


def binary_mesh(partitions: int | None) -> Axes | None:
    """A mesh of axes of two, in which every regular grouping of the cases lies on some set of axes."""
    names = "abcd"[: (partitions or 1).bit_length() - 1]
    return Axes(tuple(names), (2,) * len(names)) if names else None


@cache
def ledger_of(file: str) -> Ledger:
    return read_text((COMPILED / file).read_text(), source=file, axes=binary_mesh(ENTRIES[file]["num_partitions"]))


def as_in_the_ledger(total: dict[str, int]) -> dict[str, int | bool]:
    """Where some executions are unknown, a ledger's sums are a lower bound."""
    sums = {name: total[name] for name in ("sites", "executions", "payload_bytes", "wire_bytes")}
    return sums | {"lower_bound": True} if total.get("unknown_executions") else sums


def axes_that_give(groups: list[list[int]], axes: Axes) -> tuple[str, ...] | None:
    """By brute force: the axes along which the members of every group differ, if they fill them."""
    wanted = {frozenset(group) for group in groups}
    coordinates = {position: np.unravel_index(position, axes.sizes) for position in range(axes.size)}
    for count in range(len(axes.names) + 1):
        for chosen in combinations(range(len(axes.names)), count):
            kept = {p: tuple(c for i, c in enumerate(at) if i not in chosen) for p, at in coordinates.items()}
            if {frozenset(p for p in kept if kept[p] == one) for one in kept.values()} == wanted:
                return tuple(axes.names[i] for i in chosen)
    return None


@every_text
def test_totals_by_kind_are_the_expected_ones(file):
    totals = {kind: to_json(total) for kind, total in ledger_of(file).totals_by(lambda t: str(t.kind)).items()}
    assert {kind: {name: n for name, n in total.items() if name != "arrays"} for kind, total in totals.items()} == {
        kind: as_in_the_ledger(total) for kind, total in ENTRIES[file]["totals"].items()
    }


@every_text
def test_every_site_has_the_expected_size_type_and_groups(file):
    sites = Counter()
    for op in ENTRIES[file]["ops"]:
        groups = len(op["groups"])
        sites[op["kind"], op["executions_each"], op["payload_bytes"], op["group_size"], groups, op["dtypes"]] += op[
            "sites"
        ]
    transfers = ledger_of(file).transfers
    assert (
        Counter((str(t.kind), t.executions, t.payload_bytes, t.group_size, t.groups, t.dtype) for t in transfers)
        == sites
    )


@texts_with(lambda entry: entry["num_partitions"] and grouped_ops(entry))
def test_groups_lie_on_the_axes_that_brute_force_finds(file):
    axes, expected = binary_mesh(ENTRIES[file]["num_partitions"]), Counter()
    for op in grouped_ops(ENTRIES[file]):
        expected[op["kind"], op["payload_bytes"], axes_that_give(op["groups"], axes)] += op["sites"]
    assert (
        Counter((str(t.kind), t.payload_bytes, t.axes) for t in ledger_of(file).transfers if t.kind not in MESSAGES)
        == expected
    )


@texts_with(lambda entry: any(op["kind"] == "collective_permute" for op in entry["ops"]))
def test_permutes_lie_on_the_axes_along_which_their_pairs_differ(file):
    text, axes = (COMPILED / file).read_text(), binary_mesh(ENTRIES[file]["num_partitions"])
    for transfer in ledger_of(file).transfers:
        if transfer.kind == "collective_permute":
            pairs = re.search(rf"%{re.escape(transfer.instruction)} = .*source_target_pairs=\{{(.*?)\}}\}}", text)[1]
            ends = [
                [np.unravel_index(int(end), axes.sizes) for end in pair] for pair in re.findall(r"(\d+),(\d+)", pairs)
            ]
            assert transfer.axes == tuple(
                n for i, n in enumerate(axes.names) if any(source[i] != target[i] for source, target in ends)
            )


@texts_with(lambda entry: entry["loops"])
def test_loops_run_as_often_as_expected_with_and_without_the_printed_trip_count(file):
    module = parse((COMPILED / file).read_text())
    for loop in ENTRIES[file]["loops"]:
        scope = Scope(module, module.computations[loop["computation"]])
        instruction = scope.computation.by_name[loop["name"]]
        assert trip_count(instruction, scope) == loop["trips"]
        assert derived_trip_count(instruction, scope) == loop["trips"]


@every_text
def test_text_copies_of_one_collective_are_counted_once(file):
    module = parse((COMPILED / file).read_text())
    printed = sum(i.opcode in OPCODES for c in module.computations.values() for i in c.instructions)
    assert printed - len(ledger_of(file).transfers) == ENTRIES[file]["text_copies_not_counted"]
