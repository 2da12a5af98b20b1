"""The patch in other trainers' names: nothing is lost, nothing is invented, units are theirs."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tuning.peers import FORMATS, peers
from harness.tuning.space import CHIP_SPLIT
from pipeline.config import PipelineConfig, knobs

if TYPE_CHECKING:
    from harness.tuning.space import Value

CONFIG = {name: getattr(value, "value", value) for name, value in dict(PipelineConfig()).items()}


def files(**changed: Value) -> dict[str, str]:
    paths = {f"pipeline.{name}": value for name, value in changed.items()}
    return peers(paths, CONFIG | changed)


@given(st.sets(st.sampled_from([knob.name for knob in knobs()]), min_size=1, max_size=6))
def test_every_change_is_translated_or_said_to_have_no_counterpart(names: set[str]) -> None:
    found = files(**{name: CONFIG[name] for name in names})
    assert found.keys() == FORMATS.keys()
    for text in found.values():
        for name in names:
            assert f"#   {name} = {CONFIG[name]}\n" in text
        assert all(len(line) <= 80 for line in text.splitlines())
        assert all(line.lstrip().startswith(("#", "[")) or ":" in line or "=" in line for line in text.splitlines())


def test_prime_rl_is_toml() -> None:
    text = files(max_staleness=4, pipeline_depth=2)["prime-rl"]
    assert tomllib.loads(text) == {"orchestrator": {"max_off_policy_steps": 4}}
    assert "one step, always" in text


@pytest.mark.parametrize(("depth", "k", "threshold"), [(0, 1, "0"), (1, 1, "1"), (1, 2, "0"), (4, 4, "0.25")])
def test_the_lead_of_verl_is_a_share_of_a_sync_window(depth: int, k: int, threshold: str) -> None:
    text = files(pipeline_depth=depth, steps_per_sync=k)["verl"]
    assert f"trigger_parameter_sync_step: {k}\n" in text
    assert f"staleness_threshold: {threshold} " in text
    assert ("advises below 1" in text) == (float(threshold) >= 1)


def test_a_window_of_ours_is_one_of_verl() -> None:
    assert "staleness_threshold: 0.5 " in files(admission="window", window_fraction=0.5)["verl"]


@pytest.mark.parametrize(("bound", "k", "versions"), [(0, 1, 1), (3, 1, 4), (3, 2, 2), (1, 4, 1)])
def test_the_trainer_of_verl_that_bounds_staleness_counts_versions_and_the_current_one(
    bound: int, k: int, versions: int
) -> None:
    text = files(max_staleness=bound, steps_per_sync=k)["verl"]
    assert f"trainer.v1.sampler.max_off_policy_threshold={versions}\n" in text


def test_what_a_trainer_always_does_is_said_and_what_it_cannot_do() -> None:
    found = files(sync_mode="abort_resume")
    assert "cannot be given" not in found["areal"]
    assert "sync_mode = abort_resume cannot be given" in found["tunix"]
    assert "sync_mode = abort_resume cannot be given" in found["prime-rl"]
    assert "partial_rollout: true" in found["verl"]


def test_areal_counts_groups_and_tunix_episodes() -> None:
    found = files(max_inflight=100, group_size=8)
    assert "max_concurrent_rollouts: 13 " in found["areal"]
    assert "max_concurrency: 100 " in found["tunix"]


def test_a_split_of_the_chips_is_told_to_all_and_named_where_it_has_names() -> None:
    found = peers({CHIP_SPLIT: "6x1+2"}, CONFIG)
    assert all("6 replicas of 1, and 2 that train" in text for text in found.values())
    assert "rollout.nnodes" in found["verl"]
    assert not any("no counterpart" in text for text in found.values())


def test_no_change_is_no_patch() -> None:
    assert peers({}, CONFIG) == {}
