"""Clusters take their chips' figures from meshes/hardware.toml."""

import pytest

from lab.meshes.errors import UsageError
from lab.meshes.hardware import chip
from lab.zoo import cluster, cluster_names


def test_a_dgx_h100_is_eight_chips_of_the_hardware_table():
    dgx = cluster("dgx-h100")
    assert (dgx.host_chips, dgx.domain_chips, dgx.domain_hosts) == (8, 8, 1)
    assert dgx.chip == chip("h100")


def test_an_nvl72_sums_to_the_data_sheets_180_petaflops_13_4_terabytes_and_130_terabytes_a_second():
    rack = cluster("gb200-nvl72")
    assert rack.domain_hosts == 18
    assert rack.domain_chips * rack.chip.flops_per_s["bf16"].value == 180e15
    assert round(rack.domain_chips * rack.chip.memory_bytes.value / 1e12, 1) == 13.4
    assert round(2 * rack.domain_chips * rack.chip.fast.value / 1e12) == 130
    assert rack.chip.flops_per_s["tf32"] == chip("b200").flops_per_s["tf32"]


def test_a_v6e_pod_sums_to_235_0_petaflops_where_the_documentation_prints_234_9():
    pod = cluster("v6e-pod")
    assert round(pod.domain_chips * pod.chip.flops_per_s["bf16"].value / 1e15, 1) == 235.0 and pod.domain_hosts == 32


@pytest.mark.parametrize("name", cluster_names())
def test_every_cluster_has_a_source_and_whole_hosts(name):
    one = cluster(name)
    assert one.source and one.domain_chips % one.host_chips == 0


def test_an_unknown_cluster_is_refused():
    with pytest.raises(UsageError, match="no cluster 'dgx-h101'; did you mean dgx-h100"):
        cluster("dgx-h101")
