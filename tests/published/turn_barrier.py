"""RollArt: what a barrier at every turn costs when environments differ, against episodes that go on by themselves.

256 environments take 30 turns each; a turn is up to a second of generation and a step of the environment, Normal(10 s, sigma)
drawn again while it is negative. Stepped together, each turn takes the longest of 256 steps; each by itself, the batch takes
the longest of 256 sums of 30. Nothing is fitted. The learner takes the whole batch and next to no time, so a step is the
batch's makespan.

Assumed: generation takes `generation_s` a turn, whatever the batch (the source says 0 to 1 s; the row is the middle); "about
30 turns" are 30.

Source: RollArt, OSDI 2026.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from published_rows import Row, learner, scenario

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario

MEAN_S = 10.0
TOKENS = 100
RESET_S = 0.01
"""Environments that start in one instant and are ready in the next stand at the barrier together from the first turn on."""

STEPS = 24


def turns(
    sigma_s: float,
    *,
    barrier: bool,
    environments: int = 256,
    turns: int = 30,
    mean_s: float = MEAN_S,
    generation_s: float = 0.5,
) -> Scenario[Any]:
    """A synchronous batch of episodes, one environment each, stepped together or not."""
    step = {"law": "normal", "mean_s": mean_s, "sd_s": sigma_s}
    return scenario(
        f"{environments} environments, Normal({mean_s:g}, {sigma_s:g}) s a turn",
        world={
            "inference": {
                "replicas": environments,  # one each: a turn's generation takes its time whatever the others do
                "decode": {"base_s": generation_s / TOKENS, "weights_s": 0.0, "per_sequence_s": 0.0},
            },
            "environments": {"reset": {"law": "constant", "value_s": RESET_S}},
        },
        workload={
            "turns": {"law": "constant", "value": turns},
            "response_tokens": {"law": "constant", "value": TOKENS},
            "max_context_tokens": 1_000_000,
            "tools": [{"name": "step", "share": 1.0, "duration": step if sigma_s else {"law": "constant", "value_s": mean_s}}],
        },
        pipeline={
            "group_size": 1,
            "groups_per_step": environments,
            "max_staleness": 0,
            "pipeline_depth": 0,
            "max_inflight": environments,
            "buffer_capacity": environments,
            "env_workers": environments,
            "tool_workers": environments,
            "reward_workers": environments,
            "slots_per_replica": 1,
            "decode_chunk_steps": TOKENS,
            "stepping": "batch" if barrier else "trajectory",
        },
    )


def speed_up(sigma_s: float, *, steps: int = STEPS, **inputs: Any) -> float:
    """Makespan of a batch with the barrier over that without, on the same draws."""
    together, alone = (
        learner(turns(sigma_s, barrier=barrier, **inputs), steps=steps, warmup_steps=1).step_s for barrier in (True, False)
    )
    return together / alone


def rows() -> list[Row]:
    """Both published speed-ups."""
    return [
        Row(f"turn barrier, sigma {sigma:g} s: speed-up", "nothing", speed_up(sigma), published, 0.05)
        for sigma, published in ((1.0, 1.23), (10.0, 2.27))
    ]
