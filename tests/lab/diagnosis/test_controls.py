"""What is right, or cannot be done better by the user, is told in one line: programs of the cases that need nothing,
and the lab's own strategies."""

import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from lab import diagnosis
from lab.compile import inspection
from lab.core.ledger import Kind, Ledger, Transfer
from lab.core.note import NoteKind
from lab.diagnosis import KINDS, Finding, Findings
from lab.meshes.axes import Axes
from lab.meshes.backends import make_mesh
from lab.meshes.targets import parse_target
from lab.programs.models.shape import DecoderShape
from lab.programs.strategies import program
from lab.report.diagnosis import SHOWN, diagnosis_text, evidence, findings_text
from tests.cases.compiling import array, compiled, cpu, pinned
from tests.lab.diagnosis.diagnosing import diagnosed, kinds
from tests.lab.programs.strategies.layouts import LAYOUTS, SHAPE
from tests.long_tests import one_in

pytestmark = pytest.mark.compiles

D = P("d")
INDICES = jnp.array([0, 1, 2])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, u, i: jnp.roll(x, 1, axis=0),
        lambda x, u, i: jnp.roll(x, 20, axis=0),
        lambda x, u, i: jnp.pad(x, ((1, 0), (0, 0)))[:-1],
        lambda x, u, i: x.at[INDICES].set(u),
        lambda x, u, i: x.at[i].add(u),
        lambda x, u, i: x[::2],
        lambda x, u, i: x[::-1],
        lambda x, u, i: jnp.linalg.cholesky(jnp.einsum("ab,ac->abc", x, x)),
        lambda x, u, i: jnp.sort(x, axis=1),
        lambda x, u, i: x @ x.T,
    ],
    ids=[
        "roll 1",
        "roll 20",
        "shift",
        "at[array]",
        "at[i].add",
        "x[::2]",
        "x[::-1]",
        "cholesky",
        "sort of whole rows",
        "product",
    ],
)
def test_halos_index_arrays_and_split_batches_need_no_word(function):
    """c06, c18, c41."""
    mesh = cpu(d=8)
    assert (
        kinds(
            diagnosed(
                mesh,
                function,
                array(mesh, (64, 128), "d"),
                array(mesh, (3, 128)),
                array(mesh, (3,), dtype=jnp.int32),
                out=D,
            )
        )
        == []
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[0],
        lambda x: x[0:8],
        lambda x: x[INDICES],
        lambda x: jnp.argmax(x, axis=1),
        lambda x: x.sum(0),
        lambda x: 2 * x,
    ],
)
def test_results_that_everybody_asked_for_are_theirs(function):
    """c05, c41: what is replicated at the end is gathered or summed."""
    mesh = cpu(d=8)
    assert kinds(diagnosed(mesh, function, array(mesh, (64, 128), "d"), out=P())) == []


@pytest.mark.parametrize(
    ("x_spec", "k_spec", "stride"),
    [(P("d"), P("d"), 1), (P(None, None, "d"), P(), 1), (P(None, None, "d"), P(), 2), (P(None, "d"), P(None, "d"), 2)],
)
def test_convolutions_exchange_halos_gather_kernels_or_reduce_outputs(x_spec, k_spec, stride):
    """c48."""
    mesh = cpu(d=8)
    x, k = array(mesh, (8, 16, 32, 8), *x_spec), array(mesh, (16, 16, 3, 3), *k_spec)
    assert (
        kinds(
            diagnosed(mesh, lambda x, k: jax.lax.conv_general_dilated(x, k, (stride, stride), ((1, 1), (1, 1))), x, k)
        )
        == []
    )


@pytest.mark.parametrize("draw", [jax.random.normal, jax.random.uniform, jax.random.gumbel])
def test_partitionable_random_numbers_move_nothing(draw):
    """c12."""
    assert (
        kinds(
            diagnosed(
                cpu(x=4, y=2),
                lambda key: draw(key, (512, 256)),
                jax.ShapeDtypeStruct((2,), jnp.uint32),
                out=P("x", "y"),
            )
        )
        == []
    )


def test_a_psum_over_an_axis_of_one_device_sends_0_bytes():
    """c55."""
    mesh = cpu(d=8, one=1)
    psum = jax.shard_map(lambda b: jax.lax.psum(b, "one"), mesh=mesh, in_specs=P("d", "one"), out_specs=P("d"))
    assert kinds(diagnosed(mesh, psum, array(mesh, (64, 64), "d", "one"))) == []


@pytest.mark.parametrize("axes", [("data",), ("data", "model")])
def test_two_sums_of_two_values_and_a_sum_of_what_varies_are_no_fault(axes):
    """c16."""
    mesh = cpu(data=4, model=2)

    def both(a, b):
        return jax.lax.psum(a, axes), jax.lax.psum(a * b, axes)

    function = jax.shard_map(
        both,
        mesh=mesh,
        in_specs=(P("data", "model"), P("data", "model")),
        out_specs=P(None, None if "model" in axes else "model"),
    )
    assert kinds(diagnosed(mesh, function, *2 * [array(mesh, (64, 64), "data", "model")])) == []


def test_a_residual_stream_that_layers_add_reductions_to_is_no_accumulation():
    """Tensor parallelism: the next layer reads the sum, so that it cannot wait for the loop's end."""
    mesh = cpu(tensor=8)

    def forward(w_LDF, v_LFD, x_BD):
        return jax.lax.scan(lambda x_BD, wv: (x_BD + jnp.tanh(x_BD @ wv[0]) @ wv[1], None), x_BD, (w_LDF, v_LFD))[0]

    found = diagnosed(
        mesh,
        forward,
        array(mesh, (4, 64, 256), None, None, "tensor"),
        array(mesh, (4, 256, 64), None, "tensor"),
        array(mesh, (32, 64)),
        out=P(),
    )
    assert [t.executions for t in found.ledger.transfers] == [4]
    assert kinds(found) == []


def diagnosed_step(layout: str, style: str, target: str, shape: DecoderShape = SHAPE):
    (strategy, axes), place = LAYOUTS[layout], parse_target(target)
    mesh = make_mesh(place, Axes.parse(axes))
    step, args = program.step(strategy, style, shape, mesh)
    return diagnosis.of(inspection.read_program(step.lower(*args), args, mesh, place, source=f"{layout}, {style}"))


# Every layout in one of its styles; `every_layout.py` has all of them.
@pytest.mark.parametrize(
    ("layout", "style"),
    one_in(2, [(layout, ("declared", "explicit")[at // 2 % 2]) for at, layout in enumerate(LAYOUTS)]),
)
def test_the_labs_own_layouts_need_no_word(layout, style):
    found = diagnosed_step(layout, style, "cpu:8")
    assert kinds(found) == []
    assert diagnosis_text(found).partition("\n")[0].endswith(found.least or "kinds of waste were looked for)")
    # Compilers for CPUs scatter no sums but those that are written so.
    assert bool(found.least) == (layout == "data" or (layout in ("zero1", "zero2", "zero3") and style == "explicit"))


def test_what_could_not_be_looked_at_stands_beside_that_nothing_was_found():
    def said(*transfers: Transfer, **told) -> str:
        return findings_text(Findings(diagnosis.Diagnosis(Ledger(transfers, "step.hlo", **told), ())))

    clean, mesh = f"step.hlo: no finding ({len(KINDS)} kinds of waste were looked for)", {"x": 8}
    part = Transfer(Kind.ALL_REDUCE, None, 4, 1, "f32", 8)
    assert said(mesh=mesh) == said(devices=1) == clean
    assert said(mesh=mesh, is_complete=False) == f"{clean}; not all of the program could be read (see the notes)"
    assert said(part, mesh=mesh) == (
        f"{clean}; 1 transfer is not over whole axes of this mesh: most kinds of waste were not looked for in it"
    )
    assert said(part, devices=8) == (
        "step.hlo: not diagnosed: no mesh was given, so axes are unknown; add --mesh (in Python, mesh=)"
    )


def test_of_many_findings_the_worst_are_shown_and_the_others_counted():
    many = tuple(
        Finding("padded", f"array {number} is padded", "choose a multiple of 4") for number in range(SHOWN + 2)
    )
    found = Findings(diagnosis.Diagnosis(Ledger((), "step.hlo", devices=1), many))
    for said in (str(found), str(found._repr_html_())):
        assert f"array {SHOWN - 1} is" in said and f"array {SHOWN} is" not in said
        assert "2 more findings, none of them worse; lab inspect --json lists all" in said
    assert "more findings" not in str(Findings(replace(found.diagnosis, findings=many[:SHOWN])))


def test_findings_are_a_tuple_that_shows_itself():
    finding = Finding("padded", "9 rows are padded to 12", "choose a multiple of 4", origin="/project/train/step.py:9")
    elsewhere = Transfer(Kind.ALL_REDUCE, None, 4, 1, "f32", 8, origin="/project/model.py:3")
    found = Findings(diagnosis.Diagnosis(Ledger((elsewhere,), "step.hlo", devices=8), (finding,)))
    assert found == (finding,) and found[0] is finding and isinstance(found, tuple)
    assert pickle.loads(pickle.dumps(found)).diagnosis == found.diagnosis
    assert (
        repr(found)
        == str(found)
        == "\n".join(
            [
                "step.hlo: 1 finding",
                "",
                "1. padded: 9 rows are padded to 12",
                "   train/step.py:9",
                "   try: choose a multiple of 4",
                "",
                "most kinds of waste were not looked for: no mesh was given, so axes are unknown; add --mesh (in Python, mesh=)",
                "",
                "paths are relative to /project/",
            ]
        )
    )
    html = found._repr_html_()
    assert "1. padded: 9 rows are padded to 12" in html and "train/step.py:9" in html and "/project/work" not in html


def test_the_evidence_tells_executions_from_arrays_and_axes_that_one_transfer_spans_from_those_of_two():
    def sent(instruction: str, *axes: str) -> Transfer:
        return Transfer(Kind.ALL_REDUCE, axes, 8, 4, "f32", 1_000, instruction=instruction)

    transfers = sent("one", "fsdp"), sent("one", "fsdp"), sent("two", "fsdp", "tensor")
    finding = Finding("padded", "a dim", "another", transfers, origin="step.py:9", memory_bytes=1_000)
    assert evidence(finding) == (
        "step.py:9, over fsdp and fsdp+tensor, 8 executions a step that move 12 arrays in all, 12,000 B of payload, "
        "21,000 B sent by each device, 1 kB of memory on every device"
    )


def test_a_sum_that_the_cpu_compiler_does_not_scatter_is_a_note():
    mesh = cpu(fsdp=8)

    def gradient(w_DF, x_BD):
        return jax.grad(lambda w_DF: jnp.sum((x_BD @ w_DF) ** 2))(w_DF)

    args = array(mesh, (512, 256), "fsdp"), array(mesh, (1024, 512), "fsdp")

    def said(out):
        found = diagnosed(mesh, gradient, *args, out=out, target="cpu:8").ledger.notes
        return [note for note in found if note.kind == NoteKind.NOT_SCATTERED_BY_CPU]

    (note,) = said(P("fsdp"))
    assert note.startswith("of 1 all-reduced array each device keeps only its shard, 524,288 B of payload a step")
    assert said(P()) == []


def test_a_text_without_a_target_is_not_blamed_for_what_compilers_for_cpus_widen(tmp_path):
    mesh = cpu(fsdp=8)

    def gradient(w_DF, x_BD):
        def loss(w_DF):
            return jnp.sum(jnp.square(x_BD @ pinned(mesh, pinned(mesh, w_DF.astype(jnp.bfloat16), "fsdp"))))

        return jax.grad(loss)(w_DF)

    args = array(mesh, (512, 256), "fsdp"), array(mesh, (1024, 512), "fsdp", dtype=jnp.bfloat16)
    (tmp_path / "step.hlo").write_text(compiled(mesh, gradient, *args, out=P("fsdp")).as_text())
    (read,) = inspection.read_texts(tmp_path / "step.hlo", Axes.parse("fsdp=8"), None)
    found = diagnosis.of(read)
    assert {t.dtype for t in found.ledger.transfers} == {"f32"} and kinds(found) == []
    (note,) = [note for note in found.ledger.notes if note.kind == NoteKind.WIDENED_BY_CPU]
    assert "2 arrays of 16-bit floats are sent as f32" in note and "compilers for CPUs widen them" in note
    assert not any(note.kind == NoteKind.PROMOTED_REDUCTIONS for note in found.ledger.notes)
