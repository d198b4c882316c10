"""The register: every formula of the book with what it prints, what is right, and what decides it.

One table a part (`part1.toml` to `part8.toml`, `second.toml` for the second source), one entry a formula; `Formula` says what an entry holds.
"""

from __future__ import annotations

import inspect
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache, cached_property
from importlib import import_module
from importlib.resources import files
from typing import Any

CHAPTERS = {
    "1": "scale",
    "2": "extended roofline",
    "3": "memory hierarchy of a cluster",
    "3a": "data pipeline",
    "4": "alpha-beta model",
    "5": "economics of compute",
    "6": "estimation",
    "7": "compute and loss",
    "8": "compute-optimal training",
    "9": "phase transitions",
    "10": "batch size",
    "11": "collective primitives",
    "12": "rings and trees",
    "13": "cost of collectives",
    "13a": "topology",
    "14": "data parallelism",
    "15": "tensor parallelism",
    "16": "pipeline parallelism",
    "17": "sequence and context parallelism",
    "18": "expert parallelism",
    "19": "memory",
    "20": "ZeRO",
    "21": "recomputation",
    "22": "offloading",
    "23": "device mesh",
    "24": "3D parallelism",
    "25": "4D and 5D parallelism",
    "26": "failures and checkpoints",
    "27": "configuration search",
    "28": "gradient compression",
    "29": "asynchrony and local SGD",
    "30": "reduced precision",
    "31": "overlap",
    "31a": "architecture and efficiency",
    "32": "profiling",
    "33": "investigation",
    "34": "Llama 3",
    "35": "DeepSeek-V3",
    "36": "Mistral and Mixtral",
    "37": "conclusion",
    "A": "appendix: quick reference",
    "B": "appendix: hardware and units",
    "C": "appendix: notation",
    "D": "appendix: glossary",
    "ml": "second source: Machine Learning Systems",
}
"""What each chapter is about, in the book's order."""

VERDICTS = ("right", "wrong", "depends")
KINDS = ("compiled", "numerics", "measured", "calculated", "open")
_WITHOUT_EVIDENCE = ("calculated", "open")


@dataclass(frozen=True)
class Worked:
    """A worked number: the arguments, the right value, and what the book prints where it differs.

    `times` scales the function's result before it is compared; `says` tells what the number is.
    """

    arguments: Mapping[str, Any]
    gives: Any
    rel: float = 1e-3
    prints: Any = None
    times: float = 1
    says: str = ""


@dataclass(frozen=True)
class Formula:
    """An entry. `function` is `module:name`, or "" for a statement; `symbols` maps the book's letters to its arguments.

    `severity` is how many times a wrong printed value is off; `evidence` names files of the project that decide the entry, or is
    ("calculated",) or ("open",). `sweeps` is false for a schedule or a search, which take numbers only. `catalogue` is what the
    catalogue says where it is wrong too.
    """

    id: str
    chapter: str
    title: str
    prints: str
    verdict: str
    kind: str
    evidence: tuple[str, ...]
    right: str = ""
    reason: str = ""
    disputed: tuple[str, ...] = ()
    function: str = ""
    symbols: Mapping[str, str] = field(default_factory=dict)
    unit: str = ""
    worked: tuple[Worked, ...] = ()
    severity: float | None = None
    catalogue: str = ""
    sweeps: bool = True

    @cached_property
    def call(self) -> Callable[..., Any]:
        """Raises ValueError where there is no such function."""
        module, _, name = self.function.partition(":")
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"{self.id}: no function {self.function!r}: {error}") from error

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the function and their defaults; `inspect.Parameter.empty` where one must be given."""
        return {name: parameter.default for name, parameter in inspect.signature(self.call).parameters.items()} if self.function else {}


@dataclass(frozen=True)
class LeftOut:
    """An entry of the catalogue that the register does not hold, and why."""

    id: str
    reason: str


@dataclass(frozen=True)
class Part:
    """One table."""

    name: str
    formulas: tuple[Formula, ...]
    left_out: tuple[LeftOut, ...]


def part_names() -> list[str]:
    """Every table that there is, in the book's order, the second source last."""
    return sorted(path.name.removesuffix(".toml") for path in files(__name__).iterdir() if path.name.endswith(".toml"))


def load() -> tuple[Part, ...]:
    """All tables.

    Raises:
      ValueError: an unknown key, a missing one, a verdict or kind that there is not, an id twice, a function that does not exist, a
        symbol or a worked argument that its function does not take.
    """
    parts = tuple(load_part(name) for name in part_names())
    if doubled := _twice([entry.id for part in parts for entry in (*part.formulas, *part.left_out)]):
        raise ValueError(f"{', '.join(doubled)}: in the register twice")
    return parts


@cache
def load_part(name: str) -> Part:
    """One table, validated."""
    try:
        table = tomllib.loads((files(__name__) / f"{name}.toml").read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{name}.toml: {error}") from error
    formulas = tuple(read_entry(entry) for entry in table.pop("formula", ()))
    left_out = tuple(_record(LeftOut, entry, entry.get("id", "?")) for entry in table.pop("left_out", ()))
    if table:
        raise ValueError(f"{name}.toml: unknown {', '.join(table)}; expected [[formula]] and [[left_out]]")
    return Part(name, formulas, left_out)


def evaluate(formula: Formula, settings: Mapping[str, Any]) -> Any:
    """The formula's value for arguments by their own names or by the book's letters.

    Raises:
      ValueError: as `named`, or an argument that is not given, or a value that the function refuses.
    """
    arguments = named(formula, settings)
    if absent := [name for name, default in formula.arguments.items() if default is inspect.Parameter.empty and name not in arguments]:
        raise ValueError(f"{formula.id}: {', '.join(absent)} not given; it takes {', '.join(argument_names(formula))}")
    try:
        return formula.call(**arguments)
    except (ArithmeticError, TypeError) as error:
        words = ", ".join(f"{name}={value}" for name, value in arguments.items() if isinstance(value, str))
        raise ValueError(f"{formula.id}: {f'{words}: expected a number' if words else error}") from error


def named(formula: Formula, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by the names of arguments.

    Raises:
      ValueError: no function, a name that is neither an argument nor a letter of the book, an argument set twice.
    """
    if not formula.function:
        raise ValueError(f"{formula.id} is a statement without a function; there is nothing to set")
    names = [formula.symbols.get(given, given) for given in settings]
    if unknown := [name for name in names if name not in formula.arguments]:
        close = get_close_matches(unknown[0], [*formula.arguments, *formula.symbols], 3)
        raise ValueError(f"{formula.id}: no argument {unknown[0]!r}; expected {', '.join(close or argument_names(formula))}")
    if doubled := _twice(names):
        raise ValueError(f"{formula.id}: {doubled[0]} set twice")
    return dict(zip(names, settings.values(), strict=True))


def argument_names(formula: Formula) -> list[str]:
    """`ranks (p)`: each argument with the book's letters for it."""
    letters = {name: [letter for letter, argument in formula.symbols.items() if argument == name] for name in formula.arguments}
    return [f"{name} ({', '.join(of)})" if of else name for name, of in letters.items()]


def read_entry(entry: Mapping[str, Any]) -> Formula:
    """One entry of a table; raises ValueError as `load` does."""
    told = entry.get("id", "an entry without id")
    worked = tuple(_worked(number, told) for number in entry.get("worked", ()))
    lists = {key: tuple(entry.get(key, ())) for key in ("evidence", "disputed")}
    formula = _record(Formula, {**entry, **lists, "worked": worked, "symbols": entry.get("symbols", {})}, told)
    if problem := _problem(formula):
        raise ValueError(f"{told}: {problem}")
    return formula


def _worked(number: Mapping[str, Any], entry: str) -> Worked:
    renamed = {{"set": "arguments", "is": "says"}.get(key, key): value for key, value in number.items()}
    return _record(Worked, renamed, f"{entry}, worked")


def _record(kind: type, entry: Mapping[str, Any], told: str) -> Any:
    known = {field.name for field in fields(kind)}
    if unknown := set(entry) - known:
        raise ValueError(f"{told}: unknown {', '.join(sorted(unknown))}; expected {', '.join(sorted(known))}")
    try:
        return kind(**entry)
    except TypeError as error:
        raise ValueError(f"{told}: {error}") from error


def _problem(formula: Formula) -> str | None:
    """What is wrong with an entry, in a few words."""
    strangers = {name for number in formula.worked for name in number.arguments} | set(formula.symbols.values())
    strangers -= set(formula.arguments)
    if formula.verdict not in VERDICTS or formula.kind not in KINDS:
        return f"verdict {formula.verdict!r} and kind {formula.kind!r}; expected one of {VERDICTS} and one of {KINDS}"
    if formula.chapter not in CHAPTERS:
        return f"chapter {formula.chapter!r}; expected one of {', '.join(CHAPTERS)}"
    undecided = not formula.evidence or {formula.kind, *formula.evidence} & set(_WITHOUT_EVIDENCE)
    if undecided and formula.evidence != (formula.kind,):
        return f"kind {formula.kind!r} with evidence {formula.evidence}; expected files of the project, or one of {_WITHOUT_EVIDENCE} as both"
    if formula.verdict == "wrong" and not (formula.reason and formula.right):
        return "wrong, but without reason or without what is right"
    if formula.severity is not None and (formula.verdict == "right" or formula.severity < 1):
        return f"severity {formula.severity} with verdict {formula.verdict!r}; expected 1 or more, and a printed value that is off"
    if strangers:
        return f"{', '.join(sorted(strangers))} is no argument of {formula.function or 'a statement'}; expected {', '.join(formula.arguments)}"
    return None


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]
