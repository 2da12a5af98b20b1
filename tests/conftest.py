"""What holds for every test: one Hypothesis profile, and nightly sizes only when asked for with `-m slow`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The same examples in every run and on every machine, however busy it is.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(config, items):
    if "slow" in config.option.markexpr:
        return
    nightly = [item for item in items if item.get_closest_marker("slow")]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
