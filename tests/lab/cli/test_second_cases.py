"""Other people's problems, as `lab inspect` meets them: of each what an independent count or the better program of the
same file gives. The programs lie beside the repository; without them this is skipped."""

import json

import pytest

from tests.cases.compiling import ahead_of_time_gpu, ahead_of_time_tpu
from tests.long_tests import long
from tests.paths import SHARED

CASES = SHARED / "cases" / "second"
pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not beside this repository"),
]


def on(target: str):
    return {"gpu": [ahead_of_time_gpu], "tpu": [ahead_of_time_tpu], "cpu": []}[target.partition(":")[0]]


@pytest.fixture
def inspected(lab, monkeypatch):
    """What `lab inspect --json` says of a case; where it ends with another status, that and the error."""

    def run(source: str, mesh: str, target: str, *more: str):
        monkeypatch.chdir(CASES)
        place = (["--mesh", mesh] if mesh else []) + (["--target", target] if target else [])
        answer = lab("inspect", source, *place, "--json", "--no-prove", *more)
        return (answer.status, answer.err) if answer.status else json.loads(answer.out)

    return run


def waste(finding) -> int:
    return sum(finding["waste"]["wire_bytes"].values())


def wire(found, *links: str) -> float:
    each = [t for t in found["transfers"] if not links or t["link"] in links]
    return sum(t["wire_bytes"] * t["executions"] for t in each)


def row(source: str, mesh: str, target: str, *kinds: str, slow: bool = False, **numbers: int):
    marks = on(target or "cpu") + [long] * slow
    return pytest.param(source, mesh, target, list(kinds), numbers, marks=marks, id=f"{source}, {target or mesh}")


TWO, ONE, V5P = "gpu:h100:2x8", "gpu:h100:1x8", "tpu:v5p:2x2x4"
ROWS = [
    row("a23_min.py:build", "stage=2,fsdp=8", TWO, network=1_048_576),
    row("a03_min.py:build", "model=8", "cpu:8", "batch_dim_gathered"),
    row("a03_mla.py:build", "data=2,model=8", V5P, "batch_dim_gathered", flops=4_563_402_754, slow=True),
    row(
        "a16_multislice.py:build",
        "data=4,replica_dcn=2,model=1",
        "tpu:v5p:2x2x1*2",
        "on_slow_link",
        saved=7_339_776,
        slow=True,
    ),
    row("a04b_ep64.py:build", "data=1,expert=64", "gpu:h100:16x4", "out_of_memory", "held_whole", slow=True),
    row("a15_min.py:build", "fsdp=16", V5P, "not_scattered", saved=62_914_560, slow=True),
    row("a20_reorder.py:build", "context=8", ONE, "permuted_by_gather", saved=29_360_128 - 4_194_304),
    row("a26_vocab_tiles.py:build", "fsdp=16", TWO, "reduced_in_loop", "repeated_in_loop", slow=True),
    row("a07_offload_residual.py:build_hidden", "data=8", ONE, host_temporaries=2_147_483_648, slow=True),
    row("a07_offload_residual.py:build_residual", "data=8", ONE, "offload_undone", slow=True),
    row("a15_opt_offload.py:build", "fsdp=16", V5P, "not_scattered", host_arguments=16_777_216, slow=True),
    row("a12_ragged.py:build", "expert=16", TWO, at_most=2 * 67_108_864, slow=True),
    row("a29_cudnn.py:build_batch", "data=2,model=8", TWO, flops=137_438_953_472),
    row("a38c_order.py:build", "attn_dp=4,model=2", ONE, "axis_order"),
    row("a01_muon.py:build", "fsdp=16", TWO, "summed_every_round", saved=23_592_960, slow=True),
    row("a01_muon.py:build_rows", "fsdp=16", TWO, "gathered_twice", saved=78_643_200, slow=True),
    row("a40_chunk.py:build", "S=8", ONE, "gathered_for_slice", "computed_redundantly", saved=469_762_048, slow=True),
    row("a36_psum_gather.py:build", "x=8", ONE, "summed_to_gather", saved=29_360_128),
    row("a08_engine.py:build", "data=16", TWO, "summed_across_calls", saved=62_914_560, slow=True),
    row("b_own_mesh_all.py:build", "", TWO, "not_donated"),
    row("b_fail_abstract_mesh.py:build", "data=8", "cpu:8"),
    row("b_fail_abstract_mesh.py:build_swapped", "data=8", "cpu:8"),
    row("b_fail_abstract_mesh.py:build_lowered", "data=8", "cpu:8"),
    row("b_false_pipeline.py:build", "model=4", "cpu:4"),
    row("b_false_pipeline.py:build_accum", "model=4", "cpu:4", "reduced_in_loop", "not_donated"),
    row("b_false_reshape.py:build", "fsdp=4,tensor=4", TWO, "cut_for_small", "kept_whole", saved=12_582_912, slow=True),
    row("f_fp8_gather.py:build", "fsdp=16", TWO, "narrowed_after", saved=15_728_640),
    row("f_fp8_gather.py:build", "fsdp=16", V5P, "narrowed_after", saved=47_185_920, slow=True),
    row("g_conv.py:build", "x=2", "gpu:h200:1x2", flops=2_658_299_543_552, slow=True),
    row("a06_jac.py:build", "x=8", ONE),
    row("a05_partial_auto.py:build", "i=4,j=2", ONE),
    row("a27_argmax_vma.py:build", "data=4,model=2", ONE),
    row("a39_flip.py:build", "S=8", ONE),
    row("a17_ns_unroll.py:build", "layers=16", TWO, slow=True),
    row("a11_small.py:build", "fsdp=8", ONE, slow=True),
]


@pytest.mark.parametrize(("source", "mesh", "target", "kinds", "numbers"), ROWS)
def test_what_is_said_of_a_program_is_what_is_right(inspected, source, mesh, target, kinds, numbers):
    found = inspected(source, mesh, target)
    assert [finding["kind"] for finding in found["findings"]] == kinds
    measured = {
        "network": wire(found, "network", "dcn"),
        "at_most": sum(t["wire_bytes"] for t in found["transfers"] if t["kind"] == "ragged_all_to_all"),
        "flops": found["flops"],
        "saved": waste(found["findings"][0]) if kinds else 0,
        "host_temporaries": found["memory"]["host_temporaries"],
        "host_arguments": found["memory"]["host_arguments"],
    }
    assert {name: measured[name] for name in numbers} == numbers


@ahead_of_time_gpu
@pytest.mark.parametrize(
    ("source", "better", "mesh", "target"),
    [
        ("a38_order_min.py:build", "build_tokens_order", "attn_dp=4,model=2", ONE),
        ("a20_reorder.py:build", "build_permute", "context=8", ONE),
        ("a36_psum_gather.py:build", "build_gather", "x=8", ONE),
        ("f_fp8_gather.py:build", "build_pinned", "fsdp=16", TWO),
    ],
)
def test_the_better_program_of_the_same_file_sends_what_the_findings_leave(inspected, source, better, mesh, target):
    told, then = inspected(source, mesh, target), inspected(f"{source.partition(':')[0]}:{better}", mesh, target)
    assert wire(told) - sum(map(waste, told["findings"])) == wire(then) < wire(told)


@pytest.mark.parametrize(("text", "mesh"), [("h3_pfft.hlo", "x=4,y=2"), ("h4_te.hlo", "tp=8")])
def test_a_text_with_foreign_calls_has_no_complete_ledger(inspected, text, mesh):
    assert inspected(text, mesh, "")["complete"] is False
    assert inspected(text, mesh, "", "--fail-on", "any")[0] == 2


@ahead_of_time_gpu
def test_what_jax_refuses_is_said_in_its_own_last_line(inspected):
    code, said = inspected("a29_cudnn.py:build_seq", "data=2,model=8", TWO)
    assert code == 2 and "Sharding on sequence dim is not allowed" in said and "Traceback" not in said
