"""The plugin as somebody's project uses it: a budget, a snapshot written, kept to, broken and written anew."""

import pytest

import lab.guard.snapshot  # noqa: F401  pytester forgets what runs import; types are looked up where they were defined.

pytestmark = pytest.mark.compiles

pytest_plugins = "pytester"

PROGRAM = """
import jax, jax.numpy as jnp, lab
from jax.sharding import NamedSharding, PartitionSpec as P

def program(rows):
    mesh = lab.mesh("cpu:8", data=2, tensor=4)
    x = jax.ShapeDtypeStruct((8, rows), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    return jax.jit(lambda x: x.sum(0), out_shardings=NamedSharding(mesh, P())), x
"""
TEST = """
from program import program

def test_sum(communication_snapshot):
    communication_snapshot(*program({rows}))
"""
SNAPSHOT = "communication/test_step/test_sum.toml"


@pytest.fixture
def project(pytester):
    pytester.makepyfile(program=PROGRAM, test_step=TEST.format(rows=16))
    return pytester


def run(project, *options):
    return project.runpytest_inprocess("-q", "-p", "no:cacheprovider", *options)


def change_program(project):
    project.makepyfile(test_step=TEST.format(rows=32))


def test_without_a_snapshot_the_test_fails_and_says_how_to_write_one(project):
    result = run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no snapshot*--update-communication*", "*all_reduce*data*64 B*"])
    assert not (project.path / SNAPSHOT).exists()


def test_a_snapshot_is_written_once_and_then_kept_to(project):
    run(project, "--update-communication").assert_outcomes(passed=1)
    written = (project.path / SNAPSHOT).read_text()
    assert (
        'kind = "all_reduce"\naxes = "data"\ngroup_size = 2\nexecutions = 1\ndtype = "f32"\npayload_bytes = 64\n'
        in written
    )
    run(project).assert_outcomes(passed=1)
    run(project, "--update-communication").assert_outcomes(passed=1)
    assert (project.path / SNAPSHOT).read_text() == written


def test_a_changed_program_fails_with_the_difference_until_it_is_written_anew(project):
    run(project, "--update-communication").assert_outcomes(passed=1)
    change_program(project)
    result = run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["grew*all_reduce*data*64 B -> 128 B*"])
    run(project, "--update-communication").assert_outcomes(passed=1)
    run(project).assert_outcomes(passed=1)


def test_a_failure_names_the_versions_that_wrote_the_snapshot(project):
    run(project, "--update-communication")
    path = project.path / SNAPSHOT
    path.write_text(
        path.read_text().replace("payload_bytes = 64", "payload_bytes = 60").replace('jax = "', 'jax = "7.')
    )
    run(project).stdout.fnmatch_lines(["*(written with jax 7.*; this is jax *)*"])


@pytest.mark.parametrize(
    "broken, said",
    [
        ("not = [toml", "not TOML *; write it again with --update-communication"),
        ("devices = 8", "not a snapshot of communication"),
    ],
)
def test_a_damaged_snapshot_is_told_in_a_line(project, broken, said):
    path = project.path / SNAPSHOT
    path.parent.mkdir(parents=True)
    path.write_text(broken)
    run(project).stdout.fnmatch_lines([f"*{said}*"])


def test_another_mesh_is_told_before_any_transfer(project):
    run(project, "--update-communication")
    path = project.path / SNAPSHOT
    path.write_text(path.read_text().replace("tensor = 4", "tensor = 2"))
    run(project).stdout.fnmatch_lines(
        ["*was written for mesh {'data': 2, 'tensor': 2}; this program has {'data': 2, 'tensor': 4}*"]
    )


def test_a_second_snapshot_in_one_test_is_refused(project):
    project.makepyfile(test_step=TEST.format(rows=16) + "    communication_snapshot(*program(16))\n")
    run(project, "--update-communication").stdout.fnmatch_lines(["*this test has checked its snapshot already*"])


THREE = """
import pytest
from program import program

@pytest.mark.parametrize("rows", [4, 8, 16])
def test_sum(communication_snapshot, rows):
    communication_snapshot(*program(rows))
"""


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["in one process", "in two"])
def test_the_summary_says_which_snapshots_were_written_and_how_many_stayed(project, options):
    project.makepyfile(test_step=THREE)
    run(project, "--update-communication").assert_outcomes(passed=3)
    folder = project.path / "communication/test_step"
    (folder / "test_sum[4].toml").unlink()
    (folder / "test_sum[8].toml").write_text("old")
    result = run(project, "--update-communication", *options)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "*= communication snapshots =*",
            "wrote 2 snapshots; 1 unchanged",
            "  changed  communication/test_step/test_sum[[]8].toml",
            "  new      communication/test_step/test_sum[[]4].toml",
        ],
        consecutive=True,
    )


def test_without_an_update_the_summary_has_no_snapshots(project):
    run(project, "--update-communication").stdout.fnmatch_lines(["wrote 1 snapshot; 0 unchanged"])
    run(project).stdout.no_fnmatch_line("*communication snapshots*")


def test_a_failure_shows_the_tables_of_lab_diff(project):
    run(project, "--update-communication")
    change_program(project)
    run(project).stdout.fnmatch_lines(
        [
            "one device sends 64 B a step more than before (+100 %)",
            "change *kind *axes *arrays *wire a step *net *",
            "grew *all_reduce *data *64 B -> 128 B *",
            "along *before *came *went *net *after",
            "data *64 B *+64 B *128 B",
        ]
    )


ALIKE = """
import pytest
from program import program

class TestForward:
    def test_sum(self, communication_snapshot):
        communication_snapshot(*program(4))

class TestBackward:
    def test_sum(self, communication_snapshot):
        communication_snapshot(*program(8))

@pytest.mark.parametrize("name", ["a/b", "a b", "a:b", "a_b", "long" * 80, "long" * 80 + "er"])
def test_sum(communication_snapshot, name):
    communication_snapshot(*program(2 * len(name)))
"""


def test_tests_of_one_name_in_two_classes_and_parameters_alike_have_a_snapshot_each(project):
    project.makepyfile(test_step=ALIKE)
    run(project, "--update-communication").assert_outcomes(passed=8)
    run(project).assert_outcomes(passed=8)
    written = {str(path.relative_to(project.path)) for path in project.path.glob("communication/**/*.toml")}
    assert len(written) == 8
    assert written > {
        "communication/test_step/TestForward/test_sum.toml",
        "communication/test_step/TestBackward/test_sum.toml",
        "communication/test_step/test_sum[a%2Fb].toml",
        "communication/test_step/test_sum[a%20b].toml",
    }


def test_a_snapshot_of_before_is_compared_and_moves_to_the_tests_own_name(project):
    project.makepyfile(
        test_step=THREE + "\ndef test_sum_8_(communication_snapshot):\n    communication_snapshot(*program(8))\n"
    )
    run(project, "--update-communication").assert_outcomes(passed=4)
    folder = project.path / "communication/test_step"
    (folder / "test_sum[4].toml").rename(folder / "test_sum_4_.toml")
    (folder / "test_sum[16].toml").rename(folder / "test_sum_16_.toml")
    (folder / "test_sum_16_.toml").write_text((folder / "test_sum_4_.toml").read_text())
    result = run(project)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*differs from *test_sum_16_.toml*"])
    result = run(project, "--update-communication")
    result.stdout.fnmatch_lines(
        [
            "wrote 2 snapshots; 2 unchanged",
            "  changed  communication/test_step/test_sum[[]16].toml",
            "  moved    communication/test_step/test_sum[[]4].toml",
        ]
    )
    # That of a test whose own name is what another's was before stays.
    assert sorted(path.name for path in folder.iterdir()) == [
        "test_sum[16].toml",
        "test_sum[4].toml",
        "test_sum[8].toml",
        "test_sum_8_.toml",
    ]
