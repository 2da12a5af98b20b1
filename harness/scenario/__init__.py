"""Scenarios: a world, a workload and a pipeline configuration, read from TOML."""
