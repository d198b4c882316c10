"""A program's page with 60 transfers or more, and what stands in one."""

from math import prod
from xml.etree import ElementTree as ET

from lab.core.ledger import Kind, Ledger, Memory, Transfer
from lab.diagnosis import Diagnosis, Finding
from lab.report.html import reports

MESH = {"data": 4, "pipe": 4, "fsdp": 16, "tensor": 8}
KINDS = (
    (Kind.ALL_GATHER, ("fsdp",)),
    (Kind.REDUCE_SCATTER, ("tensor",)),
    (Kind.ALL_REDUCE, ("data", "fsdp")),
    (Kind.COLLECTIVE_PERMUTE, ("pipe",)),
)
HOSTILE = "<script>alert(1)</script>"


def ledger(count: int = 60, **told) -> Ledger:
    rest = {"target": "gpu:h100:256x8", "devices": 2048, "mesh": MESH, "flops": 3 * 10**14} | told
    return Ledger(tuple(map(_transfer, range(count))), "step.hlo", **rest)


def _transfer(i: int) -> Transfer:
    kind, axes = KINDS[i % len(KINDS)]
    return Transfer(
        kind,
        axes,
        prod(MESH[axis] for axis in axes),
        executions=1 + i % 3,
        dtype=("bf16", "f32")[i % 2],
        payload_bytes=1000 * (i * 7919 % 10007) + 4096,
        shift=1 if kind is Kind.COLLECTIVE_PERMUTE else None,
        phase=("forward", "backward", "update")[i % 3],
        scope=f"layers_{i}/{HOSTILE if i == 3 else 'mlp'}",
        origin=f"model.py:{80 + i % 7}",
        op_name=f"jit(step)/transpose(jvp(layers_{i}))/mlp/dot_general",
        instruction=f"{kind.replace('_', '-')}.{i}",
        link="host" if axes == ("tensor",) else "network",
    )


def page(count: int = 60, **told) -> str:
    found = ledger(
        count,
        **{
            "memory": Memory(20 * 10**9, 21 * 10**9, 50 * 10**9, 20 * 10**9, 92 * 10**9),
            "notes": (f"a note on {HOSTILE}",),
        }
        | told,
    )
    finding = Finding("rebuilt_whole", f"w {HOSTILE} is rebuilt whole", "move it in two steps", found.transfers[:3])
    return reports.inspection([Diagnosis(found, (finding,))])


def read(html: str) -> ET.Element:
    """The body of a page as XML, without the script; fails where elements do not close."""
    body = html[html.index("<main") : html.index("</main>") + len("</main>")]
    for flag in ("data-sortable", "data-sum", "data-choice"):
        body = body.replace(f" {flag}", f' {flag}=""')
    return ET.fromstring(body)


def headings(html: str) -> list[str]:
    return ["".join(heading.itertext()) for heading in read(html).iter("h3")]


def tables(html: str) -> dict[str, list[list[str]]]:
    """Caption to rows of cells, the headings first; of equal captions the first."""
    found = [
        (table.find("caption").text, [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")])
        for table in read(html).iter("table")
    ]
    return dict(reversed(found))
