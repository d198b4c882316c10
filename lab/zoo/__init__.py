"""Well-known models, clusters and training runs by name: the tables `models.toml`, `clusters.toml` and `runs.toml`,
read and checked. No JAX here."""

from lab.zoo.clusters import Cluster, cluster, cluster_names
from lab.zoo.models import Experts, Latent, ModelShape, Published, model, model_names
from lab.zoo.runs import PublishedRun, published_run, run_names

__all__ = [
    "Cluster",
    "Experts",
    "Latent",
    "ModelShape",
    "Published",
    "PublishedRun",
    "cluster",
    "cluster_names",
    "model",
    "model_names",
    "published_run",
    "run_names",
]
