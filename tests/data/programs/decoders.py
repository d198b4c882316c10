"""A training step of a published model, at its real size."""

from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from lab.programs.strategies.zero3 import ZERO3
from tests.data.program import BF16, F32, gather, kept, reduce, scatter

# Llama 3 8B: 32 layers 4,096 wide, 32 heads of 128 and 8 of keys and values, MLPs of 14,336, 128,256 words.
LAYERS, EMBED, KV_HEADS, HEADS, HEAD_DIM, MLP, VOCAB = 32, 4_096, 8, 32, 128, 14_336, 128_256
TABLE, NORM = VOCAB * EMBED * BF16, EMBED * BF16
QUERY, KEY_AND_VALUE, HIDDEN = (
    EMBED * HEADS * HEAD_DIM * BF16,
    2 * EMBED * KV_HEADS * HEAD_DIM * BF16,
    EMBED * MLP * BF16,
)
LAYER = 2 * QUERY + KEY_AND_VALUE + 3 * HIDDEN  # The output projection is as large as the query's; gate, up, down.


@kept(
    "decoder",
    "fsdp=16",
    targets={"gpu": "gpu:h100:2x8"},
    gpu=[
        2 * gather("fsdp", TABLE, "bf16"),  # Embedding and head.
        4 * gather("fsdp", QUERY, "bf16").times(LAYERS),  # Forward, and again backward.
        2 * gather("fsdp", KEY_AND_VALUE, "bf16").times(LAYERS),
        6 * gather("fsdp", HIDDEN, "bf16").times(LAYERS),
        scatter("fsdp", LAYER, "bf16").times(LAYERS),
        reduce("fsdp", 2 * NORM, "bf16").times(LAYERS),
        2 * scatter("fsdp", TABLE, "bf16"),
        reduce("fsdp", NORM, "bf16"),
        reduce("fsdp", 2 * F32),  # The loss and the norm of the gradients.
    ],
)
def llama3_8b(mesh):
    shape = DecoderShape(
        layers=LAYERS,
        batch=32,
        length=4_096,
        embed=EMBED,
        kv_heads=KV_HEADS,
        queries=HEADS // KV_HEADS,
        head_dim=HEAD_DIM,
        mlp=MLP,
        vocab=VOCAB,
    )
    jitted, arguments = program.step(ZERO3, "declared", shape, mesh)
    return jitted.lower(*arguments).compile()
