import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lab.meshes.axes import AXIS_ORDER, DATA, FSDP, TENSOR, Axes
from lab.meshes.backends import make_mesh
from lab.meshes.errors import UsageError
from lab.meshes.layouts import Layout
from lab.meshes.targets import parse_target

DIMS = ("batch", "length", "embed", "mlp")
DATA_PARALLEL = Layout.of(batch=DATA)
TENSOR_PARALLEL = Layout.of(heads=TENSOR, mlp=TENSOR, vocab=TENSOR)
layouts = st.frozensets(st.tuples(st.sampled_from(DIMS), st.sampled_from(AXIS_ORDER))).map(Layout)


@given(layouts, layouts, layouts)
def test_composition_is_associative_commutative_and_idempotent(a, b, c):
    assert (a | b) | c == a | (b | c)
    assert a | b == b | a
    assert a | a == a


@given(layouts)
def test_replication_is_the_identity(layout):
    assert layout | Layout() == layout == Layout() | layout
    assert Layout().spec(*DIMS) == P(None, None, None, None)


@given(layouts, layouts, st.permutations(AXIS_ORDER))
def test_specs_of_composed_layouts_do_not_depend_on_the_order_of_composition(a, b, order):
    for dim in DIMS:
        assert (a | b).spec(dim, order=order) == (b | a).spec(dim, order=order)


@given(layouts, st.permutations(AXIS_ORDER))
def test_axes_that_split_one_dim_stand_in_the_order_of_the_mesh(layout, order):
    for dim in DIMS:
        places = [order.index(axis) for axis in layout.axes_of(dim, order)]
        assert places == sorted(places)
        assert len(places) == len([rule for rule in layout.rules if rule[0] == dim])


def test_data_and_tensor_parallelism_split_batch_and_mlp():
    layout = DATA_PARALLEL | TENSOR_PARALLEL
    assert layout.spec("batch", "length", "embed") == P("data", None, None)
    assert layout.spec("embed", "mlp") == P(None, "tensor")
    assert layout.spec(None, "mlp") == P(None, "tensor")


def test_two_axes_of_one_dim_stand_in_the_lab_s_order_or_in_one_s_own():
    layout = Layout.of(batch=(FSDP, DATA))
    assert layout.spec("batch") == P(("data", "fsdp"))
    assert layout.spec("batch", order=("fsdp", "data")) == P(("fsdp", "data"))


def test_one_axis_used_twice_is_an_error_that_prints_both_uses():
    message = r"axis 'tensor' splits both 'heads' and 'mlp' of an array \('heads', 'mlp'\); drop one of the two rules"
    with pytest.raises(ValueError, match=message):
        TENSOR_PARALLEL.spec("heads", "mlp")
    with pytest.raises(ValueError, match="splits both 'heads' and 'mlp'"):
        TENSOR_PARALLEL.local_shape(("heads", "mlp"), (8, 8), Axes.parse("tensor=8"))


def test_an_axis_of_one_s_own_beside_another_needs_the_order_of_the_mesh():
    layout = Layout.of(batch=(DATA, "replica"))
    with pytest.raises(
        UsageError, match="axis 'replica' splits dim 'batch' and is not among the axes data, .* the mesh's own order"
    ):
        layout.spec("batch")
    assert layout.spec("batch", order=("replica", "data")) == P(("replica", "data"))
    assert Layout.of(batch="x").spec("batch") == P("x")


@pytest.mark.parametrize("mesh", ["data=2,fsdp=2,tensor=2", "fsdp=4,data=2,tensor=1", "tensor=2,fsdp=1,data=4"])
def test_the_local_shape_is_the_one_that_jax_gives(mesh):
    axes = Axes.parse(mesh)
    layout = Layout.of(batch=(DATA, FSDP), embed=FSDP, mlp=TENSOR)
    for dims, sizes in (
        (("batch", "length"), (16, 3)),
        (("embed", "mlp"), (8, 6)),
        (("layers", "mlp", "embed"), (5, 2, 4)),
    ):
        sharding = NamedSharding(make_mesh(parse_target("cpu:8"), axes), layout.spec(*dims, order=axes.names))
        assert layout.local_shape(dims, sizes, axes) == sharding.shard_shape(sizes)


@pytest.mark.compiles
def test_two_axes_in_the_order_of_the_mesh_give_consecutive_devices_consecutive_rows():
    axes = Axes.parse("fsdp=2,data=4")
    sharding = NamedSharding(
        make_mesh(parse_target("cpu:8"), axes), Layout.of(batch=(DATA, FSDP)).spec("batch", order=axes.names)
    )
    rows_B = jax.device_put(np.arange(8), sharding)
    assert [
        int(shard.data[0]) for shard in sorted(rows_B.addressable_shards, key=lambda shard: shard.device.id)
    ] == list(range(8))


def test_a_dim_that_does_not_split_evenly_is_refused():
    with pytest.raises(
        UsageError, match=r"dim 'batch' of size 10 is not divisible by data=2\*fsdp=2; make it a multiple of 4"
    ):
        Layout.of(batch=(DATA, FSDP)).local_shape(("batch",), (10,), Axes.parse("data=2,fsdp=2"))


def test_an_axis_that_the_mesh_lacks_is_named():
    with pytest.raises(UsageError, match="no axis 'tensor' in the mesh; known are data"):
        TENSOR_PARALLEL.local_shape(("embed", "mlp"), (8, 8), Axes.parse("data=8"))
