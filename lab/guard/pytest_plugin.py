"""The pytest plugin by a name in this package, for `-p lab.guard.pytest_plugin`; it is `sharding_lab_pytest`."""

import pytest

import sharding_lab_pytest


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Registers the plugin under the name of its entry point, unless it is there already."""
    if not pluginmanager.is_registered(sharding_lab_pytest):
        is_free = not pluginmanager.has_plugin("sharding_lab")
        pluginmanager.register(sharding_lab_pytest, "sharding_lab" if is_free else "sharding_lab_pytest")
