"""Which process of which program this is, from variables as schedulers set them."""

import sys
from types import SimpleNamespace

import pytest

from lab.meshes import processes
from lab.meshes.errors import UsageError
from lab.meshes.processes import Processes, found, is_first

SLURM = {
    "SLURM_JOB_ID": "1048603", "SLURM_STEP_NODELIST": "gpu[007-009,012]", "SLURM_NTASKS": "8", "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1", "SLURM_STEP_NUM_NODES": "4",
}  # fmt: skip
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911", "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}  # fmt: skip
PLAIN = {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "JOB_COMPLETION_INDEX": "2", "HOSTNAME": "train-2-x7k"}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in {*SLURM, *OPEN_MPI, *PLAIN, *KUBERNETES}:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "environ, expected",
    [
        (SLURM, Processes(f"gpu007:{1048603 % 4096 + 61440}", 8, 5)),
        (OPEN_MPI, Processes(f"10.96.0.1:{1531576320 // 4096 % 4096 + 61440}", 4, 3)),
        (PLAIN, Processes("10.0.0.1:1234", 2, 0)),
        (SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, None),
        ({}, None),
    ],
)
def test_variables_of_schedulers_name_the_process(monkeypatch, environ, expected):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert found() == expected
    assert is_first() == (expected is None or expected.index == 0)


@pytest.mark.parametrize("hosts, is_pod", [("localhost", False), ("t1k-w-0,t1k-w-1", True)])
def test_one_worker_of_tpus_is_no_pod_and_starts_no_jax(monkeypatch, hosts, is_pod):
    asked = []
    cluster = SimpleNamespace(
        auto_detect_unset_distributed_params=lambda *_: asked.append(hosts) or ("t1k-w-0:8476", 2, 1, None)
    )
    monkeypatch.setitem(sys.modules, "jax._src.clusters", SimpleNamespace(ClusterEnv=cluster))
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", hosts)
    assert found() == (Processes("t1k-w-0:8476", 2, 1) if is_pod else None)
    assert bool(asked) is is_pod


@pytest.mark.parametrize(
    "labels, host", [({}, "train-0.pods"), ({"jobset.sigs.k8s.io/jobset-name": "set"}, "train-0.set")]
)
def test_indexed_jobs_of_kubernetes_name_the_process(monkeypatch, labels, host):
    from jax._src.clusters import K8sCluster

    for name, value in KUBERNETES.items():
        monkeypatch.setenv(name, value)
    client = SimpleNamespace(CoreV1Api=object, BatchV1Api=object, exceptions=SimpleNamespace(ApiException=OSError))
    config = SimpleNamespace(load_incluster_config=lambda: None)
    monkeypatch.setitem(sys.modules, "kubernetes", SimpleNamespace(client=client, config=config))
    metadata = SimpleNamespace(name="train", labels=labels)
    job = SimpleNamespace(metadata=metadata, spec=SimpleNamespace(parallelism=4))
    pod = SimpleNamespace(spec=SimpleNamespace(subdomain="pods"))
    for name, answer in (("_job", job), ("_pod", pod), ("_controller", SimpleNamespace(kind="Job"))):
        monkeypatch.setattr(K8sCluster, name, lambda answer=answer: answer)
    monkeypatch.setattr("socket.gethostbyname", lambda _: "10.0.0.9")
    assert found() == Processes(f"{host}:55527", 4, 2)


def test_number_that_is_none_is_refused(monkeypatch):
    for name, value in (PLAIN | {processes.INDEX: "2"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="found process 2 of 2, expected 0 to 1"):
        found()
