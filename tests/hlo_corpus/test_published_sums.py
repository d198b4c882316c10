"""The ledgers of published programs carry, to the last byte, what the shapes of their models define.

Every number follows from a published configuration: weights in bf16, two matrices of the vocabulary, two norms a layer
and one at the end. What no shape defines are single numbers of 4 B (norms of gradients, the loss): their count is what
is left of the count of operations.
"""

from dataclasses import dataclass

import pytest

from lab.core.ledger import Kind, Ledger, Totals
from tests.hlo_corpus.corpus import ledger, needs_corpus

pytestmark = needs_corpus
BF16, SCALAR = 2, 4


@dataclass(frozen=True)
class Model:
    """A decoder's published shape; sizes in bytes of bf16 weights."""

    layers: int
    embed: int
    mlp: int
    heads: int
    vocab: int = 128_256
    kv_heads: int = 8
    head_dim: int = 128

    @property
    def attention_bytes(self) -> int:
        return BF16 * 2 * self.embed * self.head_dim * (self.heads + self.kv_heads)

    @property
    def mlp_bytes(self) -> int:
        """Gate, up and down: of one expert where there are several."""
        return BF16 * 3 * self.embed * self.mlp

    @property
    def layer_bytes(self) -> int:
        return self.attention_bytes + self.mlp_bytes

    @property
    def vocabulary_bytes(self) -> int:
        return BF16 * 2 * self.vocab * self.embed

    @property
    def norm_bytes(self) -> int:
        return BF16 * self.embed


LLAMA_405B = Model(layers=126, embed=16_384, mlp=53_248, heads=128)
LLAMA_70B = Model(layers=80, embed=8_192, mlp=28_672, heads=64)
LLAMA_8B = Model(layers=32, embed=4_096, mlp=14_336, heads=32)
MIXTRAL_8X7B = Model(layers=32, embed=4_096, mlp=14_336, heads=32, vocab=32_000)
QWEN3_1_7B = Model(layers=28, embed=2_048, mlp=6_144, heads=16, vocab=151_936)
PUBLISHED = "xla_benchmarks/hlo_"
OPS_OF_A_LAYER = 7  # q, k, v, out, gate, up, down


def sums(found: Ledger, kind: Kind, axes: str, executions: int | None) -> tuple[int, int]:
    """Sites, and payload bytes of one execution of all of them."""
    chosen = [t for t in found.transfers if (t.kind, "+".join(t.axes), t.executions) == (kind, axes, executions)]
    return len(chosen), sum(t.payload_bytes for t in chosen)


def test_405b_gathers_its_layer_twice_in_each_of_126_trips_over_128_devices():
    found = ledger(PUBLISHED + "llama31_405b_bf16_16x8.hlo", "fsdp=128")
    assert sums(found, Kind.ALL_GATHER, "fsdp", 126) == (2 * OPS_OF_A_LAYER, 2 * LLAMA_405B.layer_bytes)
    assert sums(found, Kind.ALL_GATHER, "fsdp", 1) == (2, LLAMA_405B.vocabulary_bytes)


def test_405b_reduces_its_gradients_whole_once():
    found = ledger(PUBLISHED + "llama31_405b_bf16_16x8.hlo", "fsdp=128")
    layer = LLAMA_405B.layer_bytes + 2 * LLAMA_405B.norm_bytes
    assert sums(found, Kind.ALL_REDUCE, "fsdp", 126) == (OPS_OF_A_LAYER + 2, layer)
    scalars = 41 - 3
    assert sums(found, Kind.ALL_REDUCE, "fsdp", 1) == (
        41,
        LLAMA_405B.vocabulary_bytes + LLAMA_405B.norm_bytes + scalars * SCALAR,
    )


def test_405b_moves_2426698367128_payload_bytes_a_step():
    """The whole: 126 trips of three layers' worth and norms, and the ends."""
    total = ledger(PUBLISHED + "llama31_405b_bf16_16x8.hlo", "fsdp=128").totals()
    loops = 126 * (3 * LLAMA_405B.layer_bytes + 2 * LLAMA_405B.norm_bytes)
    assert total.payload_bytes == loops + 2 * LLAMA_405B.vocabulary_bytes + LLAMA_405B.norm_bytes + 38 * SCALAR
    assert (total.sites, total.executions) == (66, 126 * 23 + 43)


SEVENTY = (PUBLISHED + "llama31_70b_bf16_16x8.hlo", "data=2,fsdp=64")


def test_70b_gathers_its_layer_twice_in_each_of_80_trips_in_2_groups_of_64():
    assert sums(ledger(*SEVENTY), Kind.ALL_GATHER, "fsdp", 80) == (2 * OPS_OF_A_LAYER, 2 * LLAMA_70B.layer_bytes)
    assert sums(ledger(*SEVENTY), Kind.ALL_GATHER, "fsdp", 1) == (2, LLAMA_70B.vocabulary_bytes)
    assert {(t.group_size, t.groups) for t in ledger(*SEVENTY).transfers if t.kind is Kind.ALL_GATHER} == {(64, 2)}


def test_70b_reduces_over_fsdp_and_one_64th_of_it_over_data():
    """Hybrid sharding."""
    assert sums(ledger(*SEVENTY), Kind.ALL_REDUCE, "fsdp", 80) == (OPS_OF_A_LAYER, LLAMA_70B.layer_bytes)
    assert sums(ledger(*SEVENTY), Kind.ALL_REDUCE, "data", 80) == (OPS_OF_A_LAYER, LLAMA_70B.layer_bytes // 64)
    assert sums(ledger(*SEVENTY), Kind.ALL_REDUCE, "data", 1) == (2, LLAMA_70B.vocabulary_bytes // 64)
    scalars = 38 - 2
    assert sums(ledger(*SEVENTY), Kind.ALL_REDUCE, "fsdp", 1) == (38, LLAMA_70B.vocabulary_bytes + scalars * SCALAR)


def test_70b_reduces_norms_over_both_axes():
    assert sums(ledger(*SEVENTY), Kind.ALL_REDUCE, "data+fsdp", 80) == (2, 2 * LLAMA_70B.norm_bytes)
    assert sums(ledger(*SEVENTY), Kind.ALL_REDUCE, "data+fsdp", 1) == (3, LLAMA_70B.norm_bytes + 2 * SCALAR)


def test_8b_unrolled_gathers_32_layers_twice_and_its_tables_once():
    found = ledger(PUBLISHED + "llama31_8b_bf16_1x8.hlo", "fsdp=8")
    assert sums(found, Kind.ALL_GATHER, "fsdp", 1) == (450, 64 * LLAMA_8B.layer_bytes + LLAMA_8B.vocabulary_bytes)


def test_8b_unrolled_reduces_32_layers_once_with_65_norms_and_906_scalars():
    found = ledger(PUBLISHED + "llama31_8b_bf16_1x8.hlo", "fsdp=8")
    matrices, norms = 32 * OPS_OF_A_LAYER + 2, 2 * 32 + 1
    expected = 32 * LLAMA_8B.layer_bytes + LLAMA_8B.vocabulary_bytes + norms * LLAMA_8B.norm_bytes
    assert sums(found, Kind.ALL_REDUCE, "fsdp", 1) == (1197, expected + (1197 - matrices - norms) * SCALAR)


def test_8b_with_offloaded_activations_gathers_its_layer_twice_in_each_of_32_trips():
    found = ledger(PUBLISHED + "llama3_8b_bf16_activation_offloading_1x8.hlo", "fsdp=8")
    assert sums(found, Kind.ALL_GATHER, "fsdp", 32) == (2 * OPS_OF_A_LAYER, 2 * LLAMA_8B.layer_bytes)
    assert sums(found, Kind.ALL_REDUCE, "fsdp", 32) == (
        OPS_OF_A_LAYER + 2,
        LLAMA_8B.layer_bytes + 2 * LLAMA_8B.norm_bytes,
    )


MIXTRAL = (PUBLISHED + "mixtral_8x7b_bf16_2x8.hlo", "data=2,expert=8")


def test_mixtral_sends_4096_tokens_to_2_of_8_experts_in_192_all_to_alls_on_the_expert_axis():
    """Dispatch and combine, in forward, remat and backward, of 32 layers."""
    dispatched = BF16 * 4_096 * 2 * MIXTRAL_8X7B.embed
    assert sums(ledger(*MIXTRAL), Kind.ALL_TO_ALL, "expert", 1) == (6 * 32, 192 * dispatched)
    assert {t.axes for t in ledger(*MIXTRAL).transfers if t.kind is Kind.ALL_TO_ALL} == {("expert",)}


def test_mixtral_gathers_one_expert_a_device_over_data_and_the_rest_over_both_axes():
    router = BF16 * MIXTRAL_8X7B.embed * 8
    assert sums(ledger(*MIXTRAL), Kind.ALL_GATHER, "data", 1) == (64 * 3, 64 * MIXTRAL_8X7B.mlp_bytes)
    rest = 64 * (MIXTRAL_8X7B.attention_bytes + router) + MIXTRAL_8X7B.vocabulary_bytes
    assert sums(ledger(*MIXTRAL), Kind.ALL_GATHER, "data+expert", 1) == (64 * 5 + 2, rest)


def test_mixtral_reduces_experts_over_data_and_the_rest_over_both_axes():
    router, norms = BF16 * MIXTRAL_8X7B.embed * 8, 2 * 32 + 1
    assert sums(ledger(*MIXTRAL), Kind.ALL_REDUCE, "data", 1) == (
        288,
        32 * MIXTRAL_8X7B.mlp_bytes + (288 - 32 * 3) * SCALAR,
    )
    rest = (
        32 * (MIXTRAL_8X7B.attention_bytes + router) + MIXTRAL_8X7B.vocabulary_bytes + norms * MIXTRAL_8X7B.norm_bytes
    )
    assert sums(ledger(*MIXTRAL), Kind.ALL_REDUCE, "data+expert", 1) == (
        877,
        rest + (877 - 32 * 5 - 2 - norms) * SCALAR,
    )


@pytest.mark.parametrize(("name", "model"), [("llama3_8b", LLAMA_8B), ("qwen3_1.7b", QWEN3_1_7B)])
def test_a_text_cut_in_the_middle_gives_the_seven_gathers_of_a_layer_that_it_holds(name, model):
    """How often they run stands in the part that is missing."""
    found = ledger(f"maxtext_tpu/reference_hlo_{name}.txt", "fsdp=4")
    assert sums(found, Kind.ALL_GATHER, "fsdp", None) == (OPS_OF_A_LAYER, model.layer_bytes)
    assert found.totals() == Totals(OPS_OF_A_LAYER, 0, 0, 0, 0, lower_bound=True)
    assert any("ends early" in note for note in found.notes)
    assert any("executions cannot be known" in note for note in found.notes)


def test_a_program_from_before_partitioning_has_no_transfers_and_the_note_says_why():
    found = ledger("xla_benchmarks/nv_maxtext_1n1g_jit_train_step_before_optimization.hlo")
    assert found.transfers == ()
    assert any("not partitioned yet" in note for note in found.notes)


def test_a_gather_of_4_bit_numbers_moves_half_a_byte_each():
    (gather,) = ledger("xla_benchmarks/u4_all_gather_1x8.hlo").transfers
    assert (gather.dtype, gather.payload_bytes, gather.group_size) == ("u4", 1_024 * 4_096 // 2, 8)


def test_tensor_parallel_layers_reduce_8388608_bytes_forward_and_backward_8_times():
    """Activations [2048, 2048] in bf16."""
    found = ledger("h100_jax_0.11.2/attached_1x2.hlo", "data=1,model=2")
    assert [(t.kind, t.axes, t.executions, t.payload_bytes, t.phase) for t in found.transfers] == [
        (Kind.ALL_REDUCE, ("model",), 8, BF16 * 2_048 * 2_048, phase) for phase in ("forward", "backward")
    ]


def test_sharded_layers_gather_67108864_bytes_forward_and_again_backward_and_scatter_as_many():
    """Two weights [2048, 8192] in bf16, of 8 layers."""
    found = ledger("h100_jax_0.11.2/attached_2x1.hlo", "data=2,model=1")
    assert {(t.kind, t.axes, t.executions, t.payload_bytes) for t in found.split().transfers} == {
        (kind, ("data",), 8, BF16 * 2_048 * 8_192) for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
    }
    assert [
        sum(t.kind is kind for t in found.split().transfers) for kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER)
    ] == [4, 2]
