"""Programs whose builders take sizes: what the known cases do, and what users write."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

pin = jax.lax.with_sharding_constraint


def on(mesh, *spec):
    return NamedSharding(mesh, P(*spec))


def shaped(mesh, dims, *spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(dims, dtype, sharding=on(mesh, *spec))


def build(mesh, *, layers=3, batch=16, embed=64):
    """Matrices sharded over fsdp, gathered layer by layer; the loss of a batch that is sharded over it."""

    def loss(w, x):
        def layer(x, w):
            return pin(jnp.tanh(x @ pin(w, on(mesh))), on(mesh, "fsdp", None)), None

        y, _ = jax.lax.scan(layer, x, w)
        return jnp.mean(y**2)

    w = shaped(mesh, (layers, embed, embed), None, "fsdp", None)
    return jax.jit(loss), (w, shaped(mesh, (batch, embed), "fsdp", None))


BUILT = {}


def keeping(mesh, *, layers=3, batch=16, embed=64):
    """The same, once a process, whatever sizes it is asked for later."""
    if "step" not in BUILT:
        BUILT["step"] = build(mesh, layers=layers, batch=batch, embed=embed)
    return BUILT["step"]


def resharded(mesh, *, rows=64, columns=64):
    """Rows to columns: an all-to-all."""
    x = shaped(mesh, (rows, columns), "data", None)
    return jax.jit(lambda x: jnp.sin(x), out_shardings=on(mesh, None, "data")), (x,)


def transform(mesh, *, batch=32, points=64):
    """A Fourier transform along a dim that is whole."""
    x = shaped(mesh, (batch, points), "data", None, dtype=jnp.complex64)
    return jax.jit(lambda x: jnp.sum(jnp.abs(jnp.fft.fft(x)))), (x,)


def running_sum(mesh, *, rows=64, columns=32):
    """Along the dim that is sharded."""
    x = shaped(mesh, (rows, columns), "data", None)
    return jax.jit(lambda x: jnp.cumsum(x, axis=0), out_shardings=x.sharding), (x,)


def rolled(mesh, *, rows=64, columns=32):
    """By one row over devices."""
    x = shaped(mesh, (rows, columns), "data", None)
    return jax.jit(lambda x: jnp.roll(x, 1, axis=0) + x, out_shardings=x.sharding), (x,)


def narrow_gradients(mesh, *, batch=32, embed=64, width=96):
    """Gradients of bfloat16 weights, summed over replicas."""

    def loss(w, x):
        return jnp.mean((x @ w).astype(jnp.float32) ** 2)

    w = shaped(mesh, (embed, width), dtype=jnp.bfloat16)
    return jax.jit(jax.grad(loss), out_shardings=w.sharding), (
        w,
        shaped(mesh, (batch, embed), "data", dtype=jnp.bfloat16),
    )


def unrolled(mesh, *, batch=1024, embed=64):
    """Three layers of sharded weights, written out."""

    def loss(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return jnp.sum(x**2)

    ws = [shaped(mesh, (embed, embed), "fsdp", None)] * 3
    return jax.jit(jax.grad(loss), out_shardings=[w.sharding for w in ws]), (ws, shaped(mesh, (batch, embed), "fsdp"))


def accumulated(mesh, *, steps=4, batch=32, embed=64):
    """Gradients of micro-batches, summed in a loop."""

    def loss(w, x):
        return jnp.mean((x @ w) ** 2)

    def step(w, xs):
        def micro(sums, x):
            return sums + jax.grad(loss)(w, x), None

        return jax.lax.scan(micro, jnp.zeros_like(w), xs)[0]

    w = shaped(mesh, (embed, embed))
    return jax.jit(step, out_shardings=w.sharding), (w, shaped(mesh, (steps, batch, embed), None, "data"))


def unmapped(mesh, *, batch=32, embed=64):
    """The gradient of what a shard_map takes whole."""

    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    def apply(w, x):
        return jnp.tanh(x @ w)

    w = shaped(mesh, (embed, embed))
    return jax.jit(jax.grad(lambda w, x: jnp.sum(apply(w, x) ** 2))), (w, shaped(mesh, (batch, embed), "data"))


def split_product(mesh, *, rows=64, inner=64, columns=96):
    """A product along the dim that both operands are sharded in."""
    x, w = shaped(mesh, (rows, inner), None, "tensor"), shaped(mesh, (inner, columns), "tensor", None)
    return jax.jit(lambda x, w: x @ w, out_shardings=on(mesh)), (x, w)


def shifted(mesh, *, ticks=6, batch=8, embed=64):
    """A ring: each device gives what it has to the next, in a loop."""
    size = dict(mesh.shape)["pipe"]

    @partial(jax.shard_map, mesh=mesh, in_specs=P("pipe"), out_specs=P("pipe"))
    def run(x):
        def tick(x, _):
            return jax.lax.ppermute(jnp.tanh(x), "pipe", [(i, (i + 1) % size) for i in range(size)]), None

        return jax.lax.scan(tick, x, None, length=ticks)[0]

    return jax.jit(run), (shaped(mesh, (batch * size, embed), "pipe"),)


def routed(mesh, *, tokens=64, embed=32, experts=16, slots=8):
    """Tokens to experts and back."""

    @partial(jax.shard_map, mesh=mesh, in_specs=(P("expert"), P("expert")), out_specs=P("expert"))
    def layer(x, w):
        sent = jax.lax.all_to_all(
            jnp.einsum("td,esd->esd", x, jnp.ones((experts, slots, embed))), "expert", 0, 1, tiled=True
        )
        return jax.lax.all_to_all(jnp.einsum("esd,edf->esf", sent, w), "expert", 1, 0, tiled=True)

    x, w = shaped(mesh, (tokens, embed), "expert"), shaped(mesh, (experts, embed, embed), "expert")
    return jax.jit(layer), (x, w)


def until_small(mesh, *, rows=64, columns=32):
    """A loop until the values are small: how often it runs, the data says."""

    def step(x):
        return pin(x - jnp.mean(x, axis=0, keepdims=True) * 0.5, on(mesh, "data", None))

    x = shaped(mesh, (rows, columns), "data", None)
    return jax.jit(lambda x: jax.lax.while_loop(lambda x: jnp.max(jnp.abs(x)) > 0.1, step, x)), (x,)


def uneven(mesh, *, batch=32, heads=24, width=32):
    """Heads that are asked to be split, divide or not."""

    def step(x, w):
        y = jnp.einsum("bd,dhk->bhk", x, w)
        return jnp.sum(pin(y, on(mesh, None, "tensor", None)) ** 2, axis=(1, 2))

    return jax.jit(step, out_shardings=on(mesh)), (shaped(mesh, (batch, width)), shaped(mesh, (width, heads, width)))


@dataclass(frozen=True)
class Sizes:
    layers: int = 3
    batch: int = 16
    embed: int = 64
    heads: int = 8
    mlp: int = 96
    vocab: int = 128


SIZES = Sizes()


def transformer(mesh, sizes=SIZES):
    """A decoder's step as users write it: data x tensor, tied tables, AdamW left out."""
    D, H, F, V = sizes.embed, sizes.heads, sizes.mlp, sizes.vocab
    rows = on(mesh, "data", None, None)

    def layer(x, w):
        qkv = jnp.einsum("bsd,dchk->cbshk", x, w["qkv"])
        scores = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", qkv[0], qkv[1]))
        x = pin(x + jnp.einsum("bhst,bthk,hkd->bsd", scores, qkv[2], w["out"]), rows)
        return pin(x + jax.nn.gelu(x @ w["up"]) @ w["down"], rows), None

    def loss(w, tokens):
        x = pin(w["table"][tokens], rows)
        x, _ = jax.lax.scan(layer, x, w["layers"])
        logits = jnp.einsum("bsd,vd->bsv", x, w["table"])
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1))

    layers = {
        "qkv": shaped(mesh, (sizes.layers, D, 3, H, D // H), None, None, None, "tensor", None),
        "out": shaped(mesh, (sizes.layers, H, D // H, D), None, "tensor", None, None),
        "up": shaped(mesh, (sizes.layers, D, F), None, None, "tensor"),
        "down": shaped(mesh, (sizes.layers, F, D), None, "tensor", None),
    }
    w = {"layers": layers, "table": shaped(mesh, (V, D), "tensor", None)}
    tokens = shaped(mesh, (sizes.batch, 16), "data", None, dtype=jnp.int32)
    return jax.jit(jax.grad(loss), out_shardings=jax.tree.map(lambda leaf: leaf.sharding, w)), (w, tokens)


def vision(mesh, *, batch=32, pixels=16, channels=16):
    """A convolution whose batch is sharded."""

    def loss(w, x):
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.mean(jax.nn.relu(y) ** 2)

    w = shaped(mesh, (3, 3, channels, channels))
    return jax.jit(jax.grad(loss), out_shardings=w.sharding), (
        w,
        shaped(mesh, (batch, pixels, pixels, channels), "data"),
    )


def typed(mesh, *, batch=32, embed=64, mlp=96):
    """Shardings in the types of arrays, along axes of type Explicit."""

    def loss(w1, w2, x):
        h = jnp.einsum("bd,df->bf", x, w1, out_sharding=P("data", "tensor"))
        return jnp.mean(jnp.einsum("bf,fd->bd", jax.nn.relu(h), w2, out_sharding=P("data", None)) ** 2)

    w1, w2 = shaped(mesh, (embed, mlp), None, "tensor"), shaped(mesh, (mlp, embed), "tensor", None)
    return jax.jit(jax.grad(loss, argnums=(0, 1))), (w1, w2, shaped(mesh, (batch, embed), "data", None))


class Config:
    """A configuration of the kind that scripts have."""

    def __init__(self):
        self.layers, self.batch, self.embed = 3, 16, 64


CONFIG = Config()


def configured(mesh, config=CONFIG):
    """The first program, by a configuration."""
    return build(mesh, layers=config.layers, batch=config.batch, embed=config.embed)


def two_towers(mesh, *, batch=32, embed=64, width=96):
    """A contrastive loss: every image against the texts of all devices, one matrix a tower, Adam's first moment."""

    def loss(w, images, texts):
        def tower(w, x):
            y = jax.nn.gelu(x @ w)
            return y / jnp.linalg.norm(y, axis=-1, keepdims=True)

        ours, theirs = tower(w["image"], images), pin(tower(w["text"], texts), on(mesh))
        scores = pin(ours @ theirs.T, on(mesh, "data", None))
        return jnp.mean(
            jax.nn.logsumexp(scores, axis=-1) - jnp.sum(ours * pin(theirs, on(mesh, "data", None)), axis=-1)
        )

    def step(w, moment, images, texts):
        g = jax.grad(loss)(w, images, texts)
        moment = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moment, g)
        return jax.tree.map(lambda w, m: w - 1e-3 * m, w, moment), moment

    w = {name: shaped(mesh, (embed, width)) for name in ("image", "text")}
    x = shaped(mesh, (batch, embed), "data", None)
    kept = jax.tree.map(lambda leaf: leaf.sharding, w)
    return jax.jit(step, out_shardings=(kept, kept)), (w, w, x, x)


def adapters(mesh, *, layers=3, batch=16, embed=64, rank=8):
    """Frozen matrices sharded over fsdp, gathered layer by layer, and trained adapters of low rank that all have."""

    def loss(adapters, w, x):
        def layer(x, of):
            w, down, up = of
            return pin(jnp.tanh(x @ pin(w, on(mesh)) + x @ down @ up), on(mesh, "fsdp", None)), None

        y, _ = jax.lax.scan(layer, x, (w, *adapters))
        return jnp.mean(y**2)

    w = shaped(mesh, (layers, embed, embed), None, "fsdp", None)
    low = shaped(mesh, (layers, embed, rank)), shaped(mesh, (layers, rank, embed))
    trained = jax.tree.map(lambda leaf: leaf.sharding, low)
    return jax.jit(jax.grad(loss), out_shardings=trained), (low, w, shaped(mesh, (batch, embed), "fsdp", None))
