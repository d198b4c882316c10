"""Files of JSON and TOML that a person gives, damaged in every way: each is read, or refused in one line."""

import json
import tomllib
from copy import deepcopy

import hypothesis.strategies as st
import pytest
import tomli_w
from hypothesis import HealthCheck, example, given, settings

from lab.cli import options, refusals
from lab.compile.sources import saved_ledger
from lab.core.ledger import Kind, Ledger, Memory, SubAxis, Transfer
from lab.guard import snapshot
from lab.guard.budget import allow, failure
from lab.harness.settings import with_settings
from lab.measure.bench.sizes import parse_sizes
from lab.measure.tour import ahead
from lab.meshes import hardware
from lab.meshes.axes import Axes
from lab.meshes.errors import UsageError
from lab.meshes.targets import parse_target
from lab.programs.models.shape import DecoderShape
from lab.report import plots
from lab.report.changes import changes_text
from lab.report.settings import parse
from tests.paths import ROOT

pytestmark = pytest.mark.slow
LEDGER = Ledger(
    (
        Transfer(
            Kind.ALL_GATHER, ("fsdp",), 4, 3, "bf16", 4096, groups=2, phase="forward", scope="mlp", link="network"
        ),
        Transfer(Kind.ALL_REDUCE, None, 2, None, "f32", 64, sub_axes=(SubAxis("fsdp", 4, 1, 2),), origin="m.py:3"),
    ),
    source="step.hlo",
    target="gpu:h100:2x4",
    devices=8,
    mesh={"data": 2, "fsdp": 4},
    flops=1000,
    memory=Memory(1, 2, 3, 0, 6),
    notes=("one",),
)
BENCH = {
    "schema": "sharding-lab/bench/1",
    "platform": "gpu",
    "chip": "h100",
    "card": "NVIDIA H100 80GB HBM3",
    "devices": 8,
    "fits": [
        {
            "primitive": "permute",
            "algorithm": "lax",
            "alpha_s": 1e-5,
            "alpha_error_s": 1e-7,
            "bytes_per_s": 3e11,
            "bytes_per_s_error": 1e9,
        }
    ],
    "points": [{"primitive": "permute", "algorithm": "lax", "wire_bytes": 1024, "seconds": 1e-5}],
}
TRAINING = {
    "results": [
        {
            "target": "cpu:8",
            "guessing_by_frequency": 3.1,
            "one_device": {"losses": [4.0, 2.0], "tolerances": [1e-6, 1e-5]},
            "curves": [{"layout": "ZeRO-1", "style": "declared", "losses": [4.0, None]}],
        }
    ]
}
TOUR = json.loads((ROOT / "results/tour_1xh200_jax0.11.2_times.json").read_text())
TOUR["times"] = TOUR["times"][:1]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["fsdp", "data+fsdp", "bf16", "all_gather", "1/0", "sharding-lab/ledger/9", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def damaged(draw, document):
    """The document with up to three of its values replaced, dropped, doubled or joined by others."""
    found = deepcopy(document)
    for _ in range(draw(st.integers(0, 3))):
        holder, place = found, None
        while isinstance(holder, dict | list) and holder:
            place = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
            if not isinstance(holder[place], dict | list) or draw(st.integers(0, 3)) == 0:
                break
            holder = holder[place]
        if place is None or not holder:
            return draw(VALUES)
        what = draw(st.sampled_from(["other", "gone", "more"]))
        if what == "gone":
            del holder[place]
        elif what == "other" or isinstance(holder, list):
            holder[place] = draw(VALUES)
        else:
            holder[draw(st.text(max_size=5))] = draw(VALUES)
    return found


@st.composite
def texts(draw, document, write=json.dumps):
    """What stands in the file: as bytes, for a file may hold any."""
    text = write(draw(damaged(document)))
    cut = draw(st.integers(0, len(text)))
    text = draw(st.sampled_from([text, text, text, text[:cut], text[:cut] + draw(st.text(max_size=3)) + text[cut:]]))
    return text.encode("utf-8", "surrogatepass") if draw(st.integers(0, 30)) else draw(st.binary(max_size=20))


def read_or_refused(read, *given) -> object:
    """What is read; of what is refused, that it is one printable line."""
    try:
        return read(*given)
    except UsageError as error:
        refusal = refusals.said(error)
    assert refusal and len(refusal.splitlines()) == 1
    return None


EVERY_WAY = settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
DEEP = b"[" * 100_000


@EVERY_WAY
@given(content=texts(LEDGER.to_json()))
@example(content=DEEP)
@example(content=json.dumps(LEDGER.to_json() | {"totals": {"by_kind": {}, "by_axes": {}, "all": 3}}).encode())
def test_a_saved_ledger_is_read_or_refused_in_a_line(tmp_path, content):
    path = tmp_path / "saved.json"
    path.write_bytes(content)
    if found := read_or_refused(saved_ledger, str(path)):
        changes_text(LEDGER, found)
        read_or_refused(failure, found, [allow("all_gather", "fsdp", executions=2)])
        assert str(found)


def toml(document) -> str:
    try:
        return tomli_w.dumps(document)
    except (AttributeError, TypeError):  # TOML has no null, and is a table.
        return repr(document)


@EVERY_WAY
@given(data=st.data())
def test_a_snapshot_is_compared_or_refused_in_a_line(tmp_path, data):
    path = tmp_path / "snapshot.toml"
    path.unlink(missing_ok=True)
    snapshot.write(LEDGER, path)
    path.write_bytes(data.draw(texts(tomllib.loads(path.read_text()), toml)))
    read_or_refused(snapshot.compared, LEDGER, path)


@EVERY_WAY
@given(content=texts(BENCH))
@example(content=DEEP)
def test_a_link_profile_is_read_or_refused_in_a_line(tmp_path, content):
    path = tmp_path / "bench.json"
    path.write_bytes(content)
    read_or_refused(hardware.measured_link, path)
    read_or_refused(hardware.measured_points, path, "permute", "lax", hardware.chip("h100"))


@EVERY_WAY
@given(content=texts(TRAINING))
def test_a_training_to_draw_is_read_or_refused_in_a_line(tmp_path, content):
    path = tmp_path / "training.json"
    path.write_bytes(content)
    read_or_refused(plots.Curves(str(path)).drawing)


@EVERY_WAY
@given(content=texts(TOUR))
def test_a_tour_to_predict_again_is_read_or_refused_in_a_line(tmp_path, content):
    path = tmp_path / "tour.json"
    path.write_bytes(content)
    if record := read_or_refused(ahead._read, path):
        assert ahead.rates(record)


@EVERY_WAY
@given(kind=VALUES, axes=VALUES, limits=st.lists(VALUES, min_size=3, max_size=3))
@example(kind="all_gather", axes="my-axis", limits=[1, 2, 3])
@example(kind=None, axes=None, limits=[float("nan")] * 3)
@example(kind=None, axes=3, limits=[-1, None, None])
@example(kind=["all_gather"], axes=None, limits=["2", None, None])
def test_a_line_of_a_budget_is_kept_to_or_refused_in_a_line(kind, axes, limits):
    executions, payload_bytes, wire_bytes = limits
    words = {"executions": executions, "payload_bytes": payload_bytes, "wire_bytes": wire_bytes}
    line = read_or_refused(lambda: allow(kind, axes, **words))
    if line:
        read_or_refused(failure, LEDGER, [line])


@settings(max_examples=300)
@given(text=st.text(max_size=12) | st.from_regex(r"[a-z-]{1,6}=-?[0-9]{1,25}(,[a-z]=[0-9]+)?", fullmatch=True))
@example("my-axis=4")
@example("data=1e9")
@example("n=²")
@example("cpu:²")
@example("gpu:h100:2x" + "9" * 5000)
@example("9" * 5000)
@example("1e999999999")
@example("[" * 5000)
@example("1e-99999KiB..1KiB")
def test_what_stands_after_an_option_is_read_or_refused_in_a_line(text):
    for read in (Axes.parse, parse_target, parse_sizes, options._setting, options._share):
        read_or_refused(read, text)
    for argument in ("n", "payload_bytes", "parameters", "flops_per_s", "p"):
        read_or_refused(parse, argument, text)
    for name in vars(DecoderShape()):
        read_or_refused(with_settings, DecoderShape(), {name: text})
