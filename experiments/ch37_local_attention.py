"""Chapter 37: attention sees 256 tokens instead of all; what changes for memory, FLOPs and communication?"""

from dataclasses import dataclass

from lab.book.activations import llama_saved_bytes
from lab.book.architecture import kv_bytes_per_token, window_hops, window_kv_bytes
from lab.book.parallelism import activation_bytes, tp_volume_bytes
from lab.book.profiling import training_flops_per_token
from lab.harness.claim import Claim, calculated
from lab.harness.question import Question, Row
from lab.zoo import ModelShape, model


@dataclass(frozen=True)
class Assumed:
    """One sequence of `length` a replica; heads over `tensor` ranks, or the sequence over `context` ranks. All in bf16,
    causality not counted."""

    model: str = "llama3-8b"
    length: int = 131072
    window: int = 256
    tensor: int = 8
    context: int = 8


def answer(assumed: Assumed) -> tuple[Row, ...]:
    shape = model(assumed.model)
    return (
        *_of("", assumed.length, shape, assumed),
        *_of("local: ", min(assumed.window, assumed.length), shape, assumed),
    )


def _of(whose: str, window: int, shape: ModelShape, assumed: Assumed) -> tuple[Row, ...]:
    length = assumed.length
    from_others = min(window, length - length // assumed.context)
    flops = training_flops_per_token(
        shape.layers, shape.embed, shape.mlp, shape.vocab, window, shape.kv_heads / shape.heads, shape.is_gated
    )
    saved = {
        policy: llama_saved_bytes(
            policy, length, window, shape.embed, shape.heads, shape.kv_heads, shape.head_dim, shape.mlp
        )
        for policy in ("no_remat", "attention_recomputed")
    }
    return (
        Row(f"{whose}activations saved a layer, scores of attention among them", saved["no_remat"], "B"),
        Row(f"{whose}of them scores", saved["no_remat"] - saved["attention_recomputed"], "B"),
        Row(f"{whose}activations saved a layer by flash attention", saved["attention_recomputed"], "B"),
        Row(f"{whose}training FLOPs a token", float(flops), "FLOP"),
        Row(
            f"{whose}tensor parallelism sends a rank and step",
            float(tp_volume_bytes(length, shape.embed, 2, assumed.tensor, 2 * shape.layers)),
            "B",
        ),
        Row(f"{whose}a pipeline boundary sends", activation_bytes(length, shape.embed, 2), "B"),
        Row(f"{whose}context parallelism: hops a layer", int(window_hops(window, length, assumed.context))),
        Row(
            f"{whose}context parallelism sends a rank and layer forward",
            from_others * kv_bytes_per_token(shape.kv_heads, shape.head_dim, 2),
            "B",
        ),
        Row(
            f"{whose}keys and values cached when serving, all layers",
            shape.layers * float(window_kv_bytes(length, window, shape.kv_heads, shape.head_dim, 2)),
            "B",
        ),
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    evidence = "b S H e has no window in it: an all-reduce carries the stream, whatever attention looked at"
    return (
        calculated(
            "ch37.exercises", evidence, statement="tensor parallelism and pipeline boundaries send as much as before"
        ),
    )


def asked(assumed: Assumed) -> str:
    return f"If attention sees only {assumed.window:,} tokens, what changes in memory, FLOPs and communication?"


EXPERIMENT = Question(
    name="ch37_local_attention",
    chapter=37,
    question=asked(Assumed()),
    parameters=Assumed(),
    answer=answer,
    claims=claims,
    asked=asked,
)
