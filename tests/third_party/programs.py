"""Programs of public code bases as the package index has them, by their own sharding rules and shrunk: `make third-party`
inspects each for three targets, in an environment of its own.

The first three findings of each were verified by hand, in the compiled text or by compiling the better program; one that
is new or gone is to be verified too.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
CPU, ONE_HOST, TWO_HOSTS, TPU = "cpu:8", "gpu:h100:1x8", "gpu:h100:2x4", "tpu:v5e:2x4"
SOURCES = {
    path.stem: f"{path}:build" if "\ndef build(" in path.read_text() else str(path)
    for path in FOLDER.glob("*.py")
    if path != Path(__file__)
}
"""Scripts as they are, and one builder."""
Finding = tuple[str, str, int]
"""Its kind, its axes, and the bytes that a device sends or holds for it and need not."""
FIRST: dict[str, dict[str, list[Finding]]] = {
    # A tied table of bfloat16. It is gathered by both of its uses, and their gradients are summed one after the other: a
    # step of one shard_map sends less by these bytes (tests/lab/diagnosis/test_causes.py). The moments that Kauldron's
    # `_init_optimizer` makes follow no sharding: run on 8 CPU devices, each holds all of them.
    "gemma_kauldron": {
        # In the text no gather stands in the backward pass.
        CPU: [
            ("gathered_twice", "devices", 29_360_128),
            ("kept_whole", "devices", 134_217_728),
            ("donation_unused", "", 134_217_728),
        ],
        ONE_HOST: [
            ("gathered_for_slice", "devices", 29_360_128),
            ("gathered_twice", "devices", 14_680_064),
            ("donation_unused", "", 134_217_728),
        ],
        TPU: [
            # The first sum is a ring's: nine permutes of 2,097,152 B, beside the gather of 14,680,064 B.
            ("gathered_for_slice", "devices", 33_554_432),
            ("gathered_twice", "devices", 14_680_064),
            ("donation_unused", "", 134_217_728),
        ],
    },
    # Gathers of one operand stand in the text, in one instruction even: the inputs of the two projections of an MLP, and
    # of queries, keys and values.
    "maxtext_pretrain": {
        CPU: [
            ("gathered_twice", "tensor", 100_663_296),
            ("gathered_twice", "tensor", 33_554_432),
            ("gathered_twice", "tensor", 33_554_432),
        ],
        TWO_HOSTS: [("gathered_twice", "tensor", 16_777_216)] * 3,
        TPU: [],
    },
    "penzai_llama": {CPU: [], ONE_HOST: [], TPU: []},
    # With its axes the other way round it sends over the network what is said: 60,739,520 B.
    "scalax_linen": {CPU: [], TWO_HOSTS: [("on_slow_link", "fsdp+tensor", 21_084_198)], TPU: []},
    # Gathers of one operand, as above. Tunix donates the optimizer and not the model.
    "tunix_llama": {
        # Tunix splits its table over fsdp as it does the batch: with the lookup constrained to P("fsdp"), and the model
        # donated, a device sends 174,726,804 B instead of 848,854,676.
        CPU: [("batch_made_whole", "fsdp", 714_564_096), ("not_donated", "", 4_985_856)],
        TWO_HOSTS: [("gathered_twice", "tp", 2_097_152)] * 3,
        # Each of a value of its own, in the same pass, axis and layout: of what is recomputed, 4, 3 and 2 times.
        TPU: [("gathered_twice", "tp", size) for size in (3_145_728, 2_097_152, 1_048_576)],
    },
}
"""By program and target."""


def inspected(source: str, target: str) -> dict:
    command = [Path(sys.executable).with_name("lab"), "inspect", source, "--target", target, "--json", "--no-prove"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def told(finding: dict) -> Finding:
    wasted = sum(finding["waste"]["wire_bytes"].values()) or finding["memory_bytes"]
    return finding["kind"], "+".join(finding["axes"] or ()), round(wasted)


@pytest.mark.parametrize("program, target", [(program, target) for program in FIRST for target in FIRST[program]])
def test_its_ledger_is_complete_and_its_first_findings_are_those_that_were_verified(program, target):
    found = inspected(SOURCES[program], target)
    assert found["complete"] and found["transfers"] and found["flops"]
    assert [told(finding) for finding in found["findings"][:3]] == FIRST[program][target]
