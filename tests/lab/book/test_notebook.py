"""docs/book.ipynb runs, and says what is stored in it."""

import ast
import io
import json
from contextlib import redirect_stdout

import pytest

from tests.paths import ROOT

pytest.importorskip("matplotlib", reason="matplotlib is not installed; it comes with the extra plots")
NOTEBOOK = ROOT / "docs/book.ipynb"


def run(source: str, names: dict) -> tuple[str, str]:
    """What a cell prints, and the representation of its last expression."""
    tree, last = ast.parse("\n".join(line for line in source.splitlines() if not line.startswith("%"))), None
    if isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, str(NOTEBOOK), "exec"), names)
        value = eval(compile(last, str(NOTEBOOK), "eval"), names) if last else None
    return printed.getvalue(), "" if value is None else repr(value)


def stored(outputs: list[dict]) -> tuple[str, str]:
    printed = "".join(line for output in outputs for line in output.get("text", ()))
    values = ["".join(output["data"]["text/plain"]) for output in outputs if "data" in output]
    return printed, "".join(values)


@pytest.mark.compiles
def test_every_cell_of_the_notebook_of_the_book_gives_what_is_stored():
    names, cells = {}, json.loads(NOTEBOOK.read_text())["cells"]
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        assert run("".join(cell["source"]), names) == stored(cell["outputs"])
