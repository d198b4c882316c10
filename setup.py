"""Packages whose folders stand at the top of the repository, and are imported as parts of `lab`; and pytest's plugin,
which stands outside of it. All else is in pyproject.toml."""

from setuptools import find_packages, setup

MAPPED = {"lab.meshes": "meshes", "lab.experiments": "experiments"}
setup(
    packages=[*find_packages(include=["lab", "lab.*"]), *MAPPED], package_dir=MAPPED, py_modules=["sharding_lab_pytest"]
)
