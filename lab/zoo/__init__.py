"""Well-known models and clusters by name: the tables `models.toml` and `clusters.toml`, read and checked. No JAX
here."""

from lab.zoo.clusters import Cluster, cluster, cluster_names
from lab.zoo.models import Experts, Latent, ModelShape, Published, model, model_names

__all__ = [
    "Cluster",
    "Experts",
    "Latent",
    "ModelShape",
    "Published",
    "cluster",
    "cluster_names",
    "model",
    "model_names",
]
