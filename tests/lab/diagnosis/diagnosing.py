"""What the tests of the diagnosis share: programs compiled, read and diagnosed."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from lab import diagnosis
from lab.compile import inspection
from lab.diagnosis import Diagnosis, Finding
from lab.meshes.targets import parse_target
from tests.cases.compiling import compiled


def diagnosed(
    mesh: Any, function: Callable, *args: Any, out: Any = None, target: str | None = None, **options: Any
) -> Diagnosis:
    """The diagnosis of a function whose outputs have the specs `out`; None leaves them to the compiler."""
    program = compiled(mesh, function, *args, out=out, **options)
    return diagnosis.of(
        inspection.read_program(program, args, mesh, target and parse_target(target), source=function.__name__)
    )


def only(found: Diagnosis) -> Finding:
    """The one finding."""
    assert len(found.findings) == 1, [(finding.kind, finding.sentence) for finding in found.findings]
    return found.findings[0]


def kinds(found: Diagnosis) -> list[str]:
    return [finding.kind for finding in found.findings]


def wasted(finding: Finding) -> Fraction:
    """What it sends and need not, of one device in a step."""
    return sum(finding.cost.wire_bytes.values(), Fraction(0))


def line(function: Callable, below: int = 0) -> str:
    """Where a function stands, or a line below."""
    code = function.__code__
    return f"tests{code.co_filename.partition('/tests')[2]}:{code.co_firstlineno + below}"
