"""Forty programs and more: layouts of the lab in two styles, what the known cases do, and what users write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lab.laws.question import Question
from lab.meshes.axes import TypedAxes
from lab.meshes.targets import parse_target

HERE = Path(__file__).parent / "programs.py"
TARGET = parse_target("cpu:4")


def _own(name: str, mesh: str, sizes: str) -> Question:
    axes = TypedAxes.parse(mesh)
    return Question(f"{HERE}:{name}", (*axes.axes.names, *sizes.split(",")), axes, TARGET)


CASES = (
    _own("resharded", "data=2", "rows,columns"),
    _own("transform", "data=2", "batch,points"),
    _own("running_sum", "data=2", "rows,columns"),
    _own("rolled", "data=2", "rows,columns"),
    _own("narrow_gradients", "data=2", "batch,embed,width"),
    _own("accumulated", "data=2", "steps,batch,embed"),
    _own("unmapped", "data=2", "batch,embed"),
    _own("split_product", "tensor=2", "rows,inner,columns"),
    _own("shifted", "pipe=2", "ticks,batch,embed"),
    _own("routed", "expert=2", "tokens,embed,experts,slots"),
    _own("uneven", "tensor=2", "batch,heads,width"),
    _own("vision", "data=2", "batch,pixels,channels"),
)
USERS = (
    _own("transformer", "data=2,tensor=2", "layers,batch,embed,heads,mlp,vocab"),
    _own("typed", "data=2:explicit,tensor=2:explicit", "batch,embed,mlp"),
    _own("configured", "fsdp=2", "layers,batch,embed"),
    _own("two_towers", "data=2", "batch,embed,width"),
    _own("adapters", "fsdp=2", "layers,batch,embed,rank"),
)
REFUSED = _own("until_small", "data=2", "rows,columns")
# The partitioner gathers weights or sums activations, whichever is smaller.
BY_RATIO = _own("unrolled", "fsdp=2", "batch,embed")
ON_TPUS = tuple(
    replace(asked, target=parse_target("tpu:v5e:2x2"))
    for asked in (*CASES, *USERS)
    if asked.source.rpartition(":")[2] in ("configured", "resharded", "shifted", "routed", "typed", "transformer")
)
SIZES = {"batch": 32, "length": 64, "embed": 128, "kv_heads": 8, "head_dim": 16, "mlp": 192, "vocab": 256}
SMALL = tuple((name, str(size)) for name, size in SIZES.items())
VARIED = ("layers", "batch", "length", "embed", "mlp", "vocab")
LAYOUTS = {
    "ch14_data_parallel": "data=2",
    "ch15_tensor_parallel": "data=2,tensor=2",
    "ch17_sequence_parallel": "data=2,tensor=2",
    "ch17_ulysses": "data=2,context=2",
    "ch18_expert_parallel": "data=2,expert=2",
    "ch20_zero1": "data=2",
    "ch20_zero2": "data=2",
    "ch20_zero3": "fsdp=2",
    "ch24_hybrid": "data=2,fsdp=2",
    "ch24_fsdp_tensor_parallel": "fsdp=2,tensor=2",
}
ONE_STYLE = {
    "ch17_gathered_keys": "data=2,context=2",
    "ch17_ring_attention": "data=2,context=2",
}


PIPELINES = {
    "ch16_pipeline": "data=2,pipe=2,tensor=2",
}


def _layout(name: str, mesh: str, style: str, *more: str) -> Question:
    axes = TypedAxes.parse(mesh)
    return Question(name, (*axes.axes.names, *more, *VARIED), axes, TARGET, style, SMALL)


EXPERIMENTS = (
    *(_layout(name, mesh, style) for name, mesh in LAYOUTS.items() for style in ("declared", "explicit")),
    *(_layout(name, mesh, "explicit") for name, mesh in ONE_STYLE.items()),
    *(_layout(name, mesh, "explicit", "accumulation") for name, mesh in PIPELINES.items()),
)
