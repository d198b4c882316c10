"""Chapter 37: how do the three case studies compare in size, memory and FLOPs?"""

from dataclasses import dataclass

from lab.book.architecture import kv_bytes_per_token, latent_bytes_per_token
from lab.book.deepseek import latent_flops_per_key
from lab.harness.claim import Claim, decided
from lab.harness.question import Question, Row
from lab.zoo import ModelShape, model

MODELS = ("llama3-405b", "deepseek-v3", "mixtral-8x22b")


@dataclass(frozen=True)
class Assumed:
    """Weights and caches of these bytes an element; sequences of `length`."""

    bytes_per_element: int = 2
    length: int = 4096


def answer(assumed: Assumed) -> tuple[Row, ...]:
    return tuple(row for name in MODELS for row in _rows(model(name), assumed))


def _rows(shape: ModelShape, assumed: Assumed) -> tuple[Row, ...]:
    e, latent = assumed.bytes_per_element, shape.latent
    cached = (
        latent_bytes_per_token(latent.kv_rank, latent.rope_dim, e)
        if latent
        else kv_bytes_per_token(shape.kv_heads, shape.head_dim, e)
    )
    attention = (
        3
        * shape.layers
        * latent_flops_per_key(shape.heads, shape.head_dim, latent.rope_dim if latent else 0)
        * assumed.length
        / 2
    )
    return (
        Row(f"{shape.name}: parameters", shape.parameters, "parameters"),
        Row(f"{shape.name}: of them active", shape.active_parameters, "parameters"),
        Row(f"{shape.name}: active share", 100 * shape.active_parameters / shape.parameters, "%"),
        Row(f"{shape.name}: weights", shape.parameters * e, "B"),
        Row(
            f"{shape.name}: training FLOPs a token, masked attention included",
            6 * shape.active_without_lookup + attention,
            "FLOP",
        ),
        Row(f"{shape.name}: cache of a sequence", cached * shape.layers * assumed.length, "B"),
    )


def claims(assumed: Assumed) -> tuple[Claim, ...]:
    mixtral, deepseek = model("mixtral-8x22b"), model("deepseek-v3")
    total, active = mixtral.parameters / 1e9, mixtral.active_parameters / 1e9
    fewer = deepseek.active_without_lookup / 1e9
    return (
        decided(
            "ch37.exercises",
            round(total) == 176 and round(active) == 44,
            f"the shapes of its files give {total:.1f}B, {active:.1f}B active and {2 * total:.0f} GB in bf16",
            statement="Mixtral 8x22B has 176B parameters, 44B active, 352 GB",
            disputed="6-8:D-145",
        ),
        decided(
            "ch37.exercises",
            active < fewer,
            f"{active:.1f}B against DeepSeek-V3's {fewer:.1f}B",
            statement="Mixtral has the fewest active parameters",
            disputed="6-8:D-145",
        ),
    )


EXPERIMENT = Question(
    name="ch37_case_studies",
    chapter=37,
    question="How do the three case studies compare in size, memory and FLOPs?",
    parameters=Assumed(),
    answer=answer,
    claims=claims,
)
