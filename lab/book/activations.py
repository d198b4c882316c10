"""Part V: which tensors of one layer the forward pass keeps for the backward pass, and their bytes (Ch. 19 and 21)."""

from fractions import Fraction

from lab.book.checks import Exact, count, positive, ratio

_RESIDUAL = ("attention_norm_in", "attention_normed", "attention_in", "mlp_norm_in", "mlp_normed", "mlp_in")
SWIGLU = ("gate", "sigmoid", "sigmoid_slope", "silu", "up", "hidden")

LLAMA_SAVED = {
    "full_remat": ("input",),
    "names_saved": ("input", "attention_leaves"),
    "dots_saved": ("input", "q", "k", "v", "attention_out", "gate", "up"),
    "attention_recomputed": (*_RESIDUAL, "q", "k", "v", "attended", *SWIGLU),
    "no_remat": (*_RESIDUAL, "q", "k", "v", "softmax", "probabilities", "attended", *SWIGLU),
}
"""What each remat policy keeps of `llama_tensors`.

full_remat: `jax.checkpoint` of the layer. names_saved: its policy `save_only_these_names` of what each block adds to
the stream; what the last block adds is not kept, since only the sum that follows needs it. dots_saved: its policy
`dots_with_no_batch_dims_saveable`; the product of the down projection is not kept, for the same reason.
attention_recomputed: no remat, but an attention (flash, or a custom VJP) that keeps q, k, v alone.
"""


def llama_tensors(
    tokens: int, length: int, embed: int, heads: int, kv_heads: int, head_dim: int, mlp: int, bytes_per_element: int = 2
) -> dict[str, int]:
    """Bytes of every tensor of one Llama-style layer (RMSNorm, RoPE, grouped-query attention, SwiGLU, no dropout) that
    a backward pass can want.

    `tokens` is B S of one device, `length` S; `heads`, `kv_heads` and `mlp` are one device's share under tensor
    parallelism.

    - input: the residual stream that enters. attention_norm_in, mlp_norm_in: what a norm reads, in float32 whatever the
    stream is kept in.
      attention_normed, mlp_normed: its output before the weight, for the weight's gradient; attention_in, mlp_in: after
        it, for those of the matrices.
    - q, k, v: after RoPE. softmax: in float32; probabilities: rounded to the dtype of v. attended: what the output
    projection reads, attention_out what it gives,
      attention_leaves what the stream is given of that, summed over tensor-parallel ranks.
    - gate, up: products of the two first matrices. silu(gate) = gate sigmoid(gate) keeps gate, sigmoid and sigmoid (1 -
    sigmoid) (`sigmoid_slope`);
      its product with up keeps silu and up; hidden, that product, is what the down projection reads.

    Source: Ch. 19, `ch19.act_layer` as corrected (4-5:D-60), for this layer instead of GPT's.
    """
    positive(
        tokens=tokens,
        length=length,
        embed=embed,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=mlp,
        bytes_per_element=bytes_per_element,
    )
    e = bytes_per_element
    stream, norm_in = tokens * embed * e, tokens * embed * 4
    query, key, ff = tokens * heads * head_dim * e, tokens * kv_heads * head_dim * e, tokens * mlp * e
    square = tokens * heads * length
    return {
        "input": stream,
        "attention_norm_in": norm_in,
        "attention_normed": stream,
        "attention_in": stream,
        "q": query,
        "k": key,
        "v": key,
        "softmax": square * 4,
        "probabilities": square * e,
        "attended": query,
        "attention_out": stream,
        "attention_leaves": stream,
        "mlp_norm_in": norm_in,
        "mlp_normed": stream,
        "mlp_in": stream,
        **dict.fromkeys(SWIGLU, ff),
    }


def llama_saved_bytes(
    policy: str,
    tokens: int,
    length: int,
    embed: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    mlp: int,
    bytes_per_element: int = 2,
) -> int:
    """Bytes that one layer keeps under a policy of `LLAMA_SAVED`: the sum of the tensors named there.

    With two bytes an element, A h = H, K kv_heads of h and F = mlp, in units of B S H bytes: full_remat 2; names_saved
    4; dots_saved 6 + 4 K h / H + 4 F / H; attention_recomputed 20 + 4 K h / H + 12 F / H; no_remat 6 A S / H more. The
    statistics of norms and softmax (4 bytes a row) are left out. XLA's GPU compiler holds the float32 softmax of
    no_remat in two layouts: 4 A S / H more than is saved.
    """
    if policy not in LLAMA_SAVED:
        raise ValueError(f"policy={policy!r}: expected one of {', '.join(LLAMA_SAVED)}")
    tensors = llama_tensors(tokens, length, embed, heads, kv_heads, head_dim, mlp, bytes_per_element)
    return sum(tensors[name] for name in LLAMA_SAVED[policy])


def gpt_tensors(
    tokens: int, length: int, embed: int, heads: int, tensor_ranks: int = 1, sequence_ranks: int = 1
) -> dict[str, Fraction]:
    """Bytes a rank of what one GPT layer (LayerNorm, MHA, GELU with F = 4 H, dropout) saves in 16 bits, masks in one
    byte; softmax in 16 bits.

    Heads and the inside of the MLP are split over `tensor_ranks`, the rest over `sequence_ranks`: 1, or `tensor_ranks`
    with sequence parallelism. Source: Ch. 17, `ch17.megatron_sp_memory`; Ch. 19, `ch19.act_layer` as corrected
    (4-5:D-60; Korthikanti et al. 2022, section 4).
    """
    count(tensor_ranks=tensor_ranks, sequence_ranks=sequence_ranks)
    positive(tokens=tokens, length=length, embed=embed, heads=heads)
    stream, inside = (ratio(tokens * embed, ranks) for ranks in (sequence_ranks, tensor_ranks))
    square = ratio(tokens * heads * length, tensor_ranks)
    norms = {
        "attention_norm_in": 2 * stream,
        "attention_in": 2 * stream,
        "mlp_norm_in": 2 * stream,
        "mlp_in": 2 * stream,
    }
    heads_and_mlp = {
        "q": 2 * inside,
        "k": 2 * inside,
        "v": 2 * inside,
        "attended": 2 * inside,
        "up": 8 * inside,
        "hidden": 8 * inside,
    }
    masks = {"attention_mask": stream, "mlp_mask": stream}
    core = {"softmax": 2 * square, "probabilities_mask": square, "probabilities_dropped": 2 * square}
    return norms | heads_and_mlp | masks | core


def gpt_saved_bytes(
    tokens: int,
    length: int,
    embed: int,
    heads: int,
    tensor_ranks: int = 1,
    sequence_ranks: int = 1,
    dropout: bool = True,
    scores: bool = True,
) -> Exact:
    """(10 / t_s + 24 / t + 5 A S / (H t)) b S H bytes: the sum of `gpt_tensors`, for `tokens` b S.

    Without dropout there are no masks, and softmax is what multiplies values: 32 + 2 A S / H. Without `scores` (flash
    attention, or Korthikanti's selective recomputation) the tensors of S^2 are left out. Source: as `gpt_tensors`.
    """
    saved = gpt_tensors(tokens, length, embed, heads, tensor_ranks, sequence_ranks)
    square = {"softmax", "probabilities_mask", "probabilities_dropped"}
    absent = (set() if scores else square) | (
        set() if dropout else {"attention_mask", "mlp_mask", "probabilities_mask", "probabilities_dropped"}
    )
    return sum(size for name, size in saved.items() if name not in absent)
