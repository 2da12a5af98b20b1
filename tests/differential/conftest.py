"""Nightly sizes run only when asked for: `-m slow`."""

from __future__ import annotations


def pytest_collection_modifyitems(config, items):
    if "slow" in config.option.markexpr:
        return
    nightly = [item for item in items if item.get_closest_marker("slow")]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
