"""What fills a device's memory: arguments by their names, and the largest temporaries of the fullest moment."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from lab import diagnosis
from lab.core.ledger import Memory
from lab.diagnosis import holding
from lab.hlo.buffers import LiveBuffer
from lab.report.diagnosis import diagnosis_text
from tests.cases.compiling import array, cpu
from tests.lab.diagnosis.diagnosing import diagnosed
from tests.lab.diagnosis.test_memory import GB, program

NAMES = {
    "state.params['layers']['w']": "parameters",
    "state.opt_state[0].mu['layers']['w']": "moments",
    "state.opt_state[0].nu['layers']['w']": "moments",
    "params['v']": "parameters",
    "v": "others",
    "w_up": "parameters",
    "batch['tokens']": "batch",
    "x": "batch",
    "cache['k'][0]": "cache",
    "scale": "others",
}


def step(*names: str, space: str = "") -> str:
    """A program with an argument of 4 KiB for each name."""
    parameters = "\n".join(
        f'  %p{n} = f32[1024]{{0{space}}} parameter({n}), metadata={{op_name="{name}"}}' for n, name in enumerate(names)
    )
    return (
        f"HloModule step, num_partitions=8\n\nENTRY %main {{\n{parameters}\n"
        '  %a = f32[1024]{0} negate(%p0), metadata={op_name="jit(step)/mlp/neg" source_file="step.py" source_line=7}\n'
        "  ROOT %b = f32[1024]{0} negate(%a)\n}\n"
    )


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_an_argument_is_of_the_kind_that_its_name_says(name, kind):
    assert holding.state(program(step(name), "gpu:h100:1x8", None)) == {kind: 4096}


def test_kinds_add_up_the_largest_first_and_what_lies_on_the_host_is_no_part_of_them():
    found = program(step("params['a']", "mu", "nu"), "gpu:h100:1x8", None)
    assert list(holding.state(found).items()) == [("moments", 8192), ("parameters", 4096)]
    assert holding.state(program(step("mu", space=":S(5)"), "gpu:h100:1x8", None)) == {}
    text = diagnosis_text(diagnosis.of(found))
    assert text.endswith("arguments by kind: moments 8.192 kB, parameters 4.096 kB")


def decode(pages_LBSD, x_BD, at):
    """Layers take what they have of the tokens before one by one, and write the new token's part."""

    def layer(x_BD, pages_BSD):
        pages_BSD = jax.lax.dynamic_update_slice(pages_BSD, x_BD[:, None], (0, at, 0))
        return x_BD + pages_BSD.sum(1), pages_BSD

    return jax.lax.scan(layer, x_BD, pages_LBSD)[::-1]


def carried(pages_LBSD, x_BD, at):
    """All layers of it are carried through the loop."""

    def layer(carry, number):
        x_BD, pages_LBSD = carry
        pages_LBSD = jax.lax.dynamic_update_slice(pages_LBSD, x_BD[None, :, None], (number, 0, at, 0))
        return (x_BD + pages_LBSD[number].sum(1), pages_LBSD), None

    return jax.lax.scan(layer, (x_BD, pages_LBSD), jnp.arange(4))[0][::-1]


def paged(pages_LBSD, x_BD, at):
    """Rows of a table of pages, by a scatter."""
    return pages_LBSD.at[:, at, at].set(x_BD[0]), pages_LBSD.sum()


def read_alone(pages_LBSD, x_BD, at):
    return jax.lax.dynamic_update_slice(jnp.zeros_like(pages_LBSD), pages_LBSD[:1], (at, 0, 0, 0))


@pytest.mark.compiles
@pytest.mark.parametrize("axis", ["B", "S"])
@pytest.mark.parametrize(
    ("function", "kind"), [(decode, "cache"), (carried, "cache"), (paged, "cache"), (read_alone, "others")]
)
def test_what_a_step_gives_back_written_in_part_is_a_cache(function, kind, axis):
    mesh = cpu(data=8)
    spec = [None, *("data" if dim == axis else None for dim in "BSD")]
    args = array(mesh, (4, 8, 64, 16), *spec), array(mesh, (8, 16)), array(mesh, (), dtype=jnp.int32)
    found = diagnosed(mesh, function, *args, out=(P(*spec), None) if function is not read_alone else P(*spec))
    assert found.state[kind] == 4 * 64 * 16 * 4 + 4 * (kind == "others")


def test_m_and_v_are_moments_beside_each_other_and_values_beside_queries_and_keys():
    assert holding.state(program(step("m['w']", "v['w']", "w"), "gpu:h100:1x8", None)) == {
        "moments": 8192,
        "parameters": 4096,
    }
    assert holding.state(program(step("q", "k", "v"), "gpu:h100:1x8", None)) == {"others": 3 * 4096}


HELD = (LiveBuffer(3 * GB, "jit(step)/mlp/neg"), LiveBuffer(2 * GB, ""))


def test_temporaries_of_the_fullest_moment_have_the_scope_and_the_line_of_what_makes_them():
    found = diagnosis.of(replace(program(step("x"), "tpu:v5p:2x2x2", None), held=lambda: HELD))
    assert [(each.bytes, each.scope, each.origin) for each in found.at_peak] == [
        (3 * GB, "mlp", "step.py:7"),
        (2 * GB, "", None),
    ]
    assert diagnosis_text(found).endswith("largest temporaries at the peak: 3 GB mlp step.py:7; 2 GB unnamed")
    assert found.json_object().at_peak == found.at_peak


@pytest.mark.parametrize(("peak", "known"), [(1 * GB, 0), (70 * GB, 2)])
def test_gpus_compile_again_for_them_only_where_the_peak_has_no_room(peak, known):
    asked = []
    memory = Memory(arguments=1, outputs=1, temporaries=1, aliased=0, peak=peak)
    found = replace(program(step("x"), "gpu:h100:1x8", memory), held=lambda: asked.append(1) or HELD)
    assert (len(holding.at_peak(found)), len(asked)) == (known, known and 1)
