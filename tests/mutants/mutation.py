"""Every small change to a module that gives another program: of operators, comparisons, numbers and refusals."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}


@dataclass(frozen=True)
class Mutation:
    """One change.

    Attributes:
      module: its dotted name.
      number: of the change in the module, in the order of `mutations`.
      function: the innermost one, dotted where it is a method; "" at the top of the module.
      statement: what the function, its class or the module says of itself, in its first sentence.
      before, after: the smallest statement or expression that shows the change.
    """

    module: str
    number: int
    line: int
    function: str
    statement: str
    before: str
    after: str


@cache
def mutations(module: str, path: Path) -> tuple[Mutation, ...]:
    """Every change to a module."""
    tree = ast.parse(path.read_text())
    return tuple(
        Mutation(module, number, site.line, site.function, site.statement, site.before, site.after)
        for number, site in enumerate(_sites(tree))
    )


def mutated(path: Path, number: int) -> ast.Module:
    """The module with one change."""
    tree = ast.parse(path.read_text())
    for at, site in enumerate(_sites(tree)):
        if at == number:
            site.apply()
            return ast.fix_missing_locations(tree)
    raise IndexError(number)


@dataclass(frozen=True)
class _Site:
    owner: ast.AST
    field: str
    index: int | None
    new: ast.AST
    line: int
    function: str
    statement: str
    before: str
    after: str

    def apply(self) -> None:
        if self.index is None:
            setattr(self.owner, self.field, self.new)
        else:
            getattr(self.owner, self.field)[self.index] = self.new


def _sites(tree: ast.Module) -> Iterator[_Site]:
    yield from _in(tree, "", _sentence(tree) or "")


def _in(node: ast.AST, function: str, statement: str) -> Iterator[_Site]:
    """Changes below a node. What is only said, or only for types, is left as it is: texts, annotations, decorators and
    what a refusal says."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
        statement = _sentence(node) or statement
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params", "keywords") and not (
            field == "keywords" and isinstance(node, ast.Call)
        ):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Raise | ast.arg):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            if isinstance(child, ast.AnnAssign) and child.value is None:
                continue
            for new in _instead(child):
                yield _Site(node, field, index, new, child.lineno, function, statement, _line(child), _line(new))
            yield from _in(child, function, statement)


def _line(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0]


def _instead(node: ast.AST) -> Iterator[ast.AST]:
    """What a node is changed to."""
    changed = deepcopy(node)
    match changed:
        case ast.BinOp(left, op, right) if type(op) in OPERATORS and not _is_text(left) and not _is_text(right):
            changed.op = OPERATORS[type(op)]()
            yield changed
        case ast.Compare(_, [op]):
            changed.ops = [COMPARISONS[type(op)]()]
            yield changed
        case ast.BoolOp(op):
            changed.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield changed
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.copy_location(ast.IfExp(test, orelse, body), node)
        case ast.Constant(bool()):
            yield ast.copy_location(ast.Constant(not changed.value), node)
        case ast.Constant(int() | float()):
            yield ast.copy_location(
                ast.Constant(changed.value + 1 if changed.value in (0, 1) else 2 * changed.value), node
            )
        case ast.Call(ast.Name(name)) if name in CALLS:
            changed.func = ast.copy_location(ast.Name(CALLS[name], ast.Load()), node)
            yield changed
        case ast.If(_, [ast.Raise()], []):
            yield ast.copy_location(ast.Pass(), node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _sentence(node: ast.Module | ast.FunctionDef | ast.ClassDef) -> str | None:
    text = ast.get_docstring(node)
    return " ".join(text.partition("\n\n")[0].split()) if text else None
