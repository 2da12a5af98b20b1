"""Tunix: rewards that are computed one after another on the event loop, and on worker processes instead.

A step of 155.6 s scores 2,048 sequences in 29.6 s, one after another, on the one core that also runs the event loop
(`world.scoring.runs_on = "loop"`); with 32 workers (`"workers"`, `pipeline.reward_workers = 32`) the step was measured again,
at 129.0 s. In that system the stages of a step follow each other, so all sequences come to be scored together, and the learner
takes the whole batch. The event loop's own costs are the product's defaults.

Fitted: the time of one score, 29.6 s over 2,048; what a step holds beside the rewards, 126.0 s, so that the step before is
155.6 s. Both are the row's own. Given: what a score costs on a worker. Ideal workers would take 29.6 / 32 = 0.9 s; the
source measured "about 3.5 s", so handing sequences over costs more than scoring them: a score is given 3.5 s x 32 / 2,048 of a
worker. Predicted: the step. With ideal workers it would be 126.9 s, 1.6 % below the measured one.

Source: google/tunix pull request 1904, August 2026: Qwen3-0.6B, GRPO, 2,048 sequences a step, 3 reward functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from published_rows import Row, learner, scenario

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario

STEP_S, SERIAL_S, MEASURED_S = 155.6, 29.6, 129.0
SEQUENCES, GROUP = 2_048, 8
WORKERS, STAGE_S = 32, 3.5
TOLERANCE_S = 2.0


def reward_stage(*, workers: int | None, score_s: float, rest_s: float, sequences: int = SEQUENCES) -> Scenario[Any]:
    """A synchronous step: `sequences` are generated, scored and trained on.

    Args:
        workers: that score; None: the event loop does.
        score_s: seconds of one score, wherever it is computed.
        rest_s: seconds of a step beside the rewards.
        sequences: of a step.

    """
    return scenario(
        f"{sequences} rewards on {'the event loop' if workers is None else f'{workers} workers'}",
        world={
            "learner": {"train": {"base_s": rest_s}},
            "scoring": {
                "duration": {"law": "constant", "value_s": score_s},
                "runs_on": "loop" if workers is None else "workers",
            },
            "host": {"per_pass_s": 80e-6, "per_step_s": 20e-6},
        },
        workload={},
        pipeline={
            "group_size": GROUP,
            "groups_per_step": sequences // GROUP,
            "max_staleness": 0,
            "pipeline_depth": 0,
            "max_inflight": sequences,
            "buffer_capacity": sequences // GROUP,
            "env_workers": sequences,
            "tool_workers": sequences,
            "reward_workers": workers or sequences,
            "slots_per_replica": sequences,
        },
    )


def step_s(workers: int | None, *, score_s: float, rest_s: float = STEP_S - SERIAL_S, sequences: int = SEQUENCES) -> float:
    """Seconds of a step."""
    made = reward_stage(workers=workers, score_s=score_s, rest_s=rest_s, sequences=sequences)
    return learner(made, steps=3, warmup_steps=1).step_s


def rows() -> list[Row]:
    """The step before, and the step with workers."""
    fitted = "29.6 s over 2,048 scores, 126.0 s of a step beside them; about 3.5 s on 32 workers are the source's"
    on_loop = step_s(None, score_s=SERIAL_S / SEQUENCES)
    on_workers = step_s(WORKERS, score_s=STAGE_S * WORKERS / SEQUENCES)
    return [
        Row("reward stage on the loop: step, s (the fit)", fitted, on_loop, STEP_S, TOLERANCE_S / STEP_S),
        Row("reward stage on 32 workers: step, s", fitted, on_workers, MEASURED_S, TOLERANCE_S / MEASURED_S),
    ]
