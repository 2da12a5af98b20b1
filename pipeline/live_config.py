"""The `[live]` table of a scenario: what a live run needs beside the pipeline's knobs. A simulated run ignores it.

Plain data: nothing here imports JAX, so that a scenario is checked whole by every command.
"""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)


class _Table(BaseModel):
    model_config = _STRICT


class EnvironmentTable(_Table):
    """Tasks, environment and agent."""

    name: str = Field(
        default="tool_arithmetic",
        description="A shipped one (tool_arithmetic, guessing_game, reasoning_gym) or your own class, as module:Class.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Handed to its constructor by name.")
    train_tasks: int = Field(default=4096, ge=1, le=1 << 40, description="Tasks to train on; then from the first again.")
    eval_tasks: int = Field(default=64, ge=1, le=1 << 20, description="Held-out tasks; evaluations take them in order.")
    max_turns: int = Field(default=8, ge=1, le=10_000, description="Turns after which an episode is truncated.")
    threads: int = Field(default=64, ge=1, le=4096, description="Threads for environments, tools and rewards that block.")
    spare_threads: int = Field(default=64, ge=0, le=4096, description="More of them, in the place of those that hang.")


class ModelTable(_Table):
    """The policy network: a checkpoint, or the shape of a new one."""

    checkpoint: str = Field(default="", description="Folder of a Hugging Face checkpoint (Qwen3). Empty: a new model.")
    hidden_size: int = Field(default=128, ge=8, le=65_536, description="Width of the residual stream.")
    intermediate_size: int = Field(default=256, ge=8, le=1 << 20, description="Width of the feed-forward.")
    layers: int = Field(default=2, ge=1, le=1024, description="Blocks.")
    heads: int = Field(default=4, ge=1, le=1024, description="Heads of queries.")
    kv_heads: int = Field(default=2, ge=1, le=1024, description="Heads of keys and values; divides heads.")
    head_dim: int = Field(default=32, ge=2, le=1024, description="Width of a head; even.")
    rope_theta: float = Field(default=10_000.0, gt=1.0, description="Base of the rotary frequencies.")
    tied: bool = Field(default=True, description="Whether the output projection is the embedding.")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="Of weights and activations.")


class SamplingTable(_Table):
    """How the policy samples."""

    temperature: float = Field(default=1.0, ge=0.0, le=10.0, description="Of training episodes. 0 is greedy.")
    eval_temperature: float = Field(default=0.0, ge=0.0, le=10.0, description="Of evaluation episodes. 0 is greedy.")
    max_response_tokens: int = Field(default=64, ge=1, le=1 << 20, description="Cap on one turn's answer.")
    max_context_tokens: int = Field(default=256, ge=8, le=1 << 22, description="Cap on a whole episode's sequence.")


class LearnerTable(_Table):
    """Loss and optimizer."""

    loss: Literal["grpo", "decoupled_ppo", "tis_token", "tis_sequence"] = Field(default="grpo", description="Policy loss.")
    learning_rate: float = Field(default=1e-3, gt=0.0, le=1.0, description="Peak of the schedule.")
    warmup_steps: int = Field(default=0, ge=0, le=1_000_000, description="Optimizer steps of linear warm-up.")
    decay_steps: int = Field(default=0, ge=0, le=100_000_000, description="Steps of cosine decay after it; 0 keeps the peak.")
    final_fraction: float = Field(default=0.1, ge=0.0, le=1.0, description="Of the peak, at the end of the decay.")
    weight_decay: float = Field(default=0.0, ge=0.0, le=1.0, description="AdamW's.")
    max_grad_norm: float = Field(default=1.0, gt=0.0, le=1e6, description="Gradients are clipped to this global norm.")
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0, description="PPO clip below 1.")
    clip_high: float = Field(default=0.2, gt=0.0, le=10.0, description="PPO clip above 1.")
    importance_cap: float = Field(default=2.0, ge=1.0, le=1e6, description="Largest importance weight.")
    kl_coefficient: float = Field(default=0.0, ge=0.0, le=100.0, description="Of the KL term against the starting weights.")
    normalise_std: bool = Field(default=True, description="Divide advantages by the group's standard deviation.")
    mask_truncated: bool = Field(
        default=False, description="Leave truncated samples out of the loss; their rewards still count."
    )
    loss_mean: Literal["token", "sequence"] = Field(default="token", description="What the loss is a mean over.")
    max_skipped_steps: int = Field(
        default=5, ge=1, le=1_000_000, description="Steps in a row whose gradients are not finite, before the run is given up."
    )
    micro_batch_tokens: int = Field(default=4096, ge=8, le=1 << 24, description="Tokens of one packed micro-batch.")
    warm_start_steps: int = Field(default=0, ge=0, le=1_000_000, description="Supervised steps before the run.")
    warm_start_stop_loss: float = Field(
        default=0.0, ge=0.0, le=100.0, description="The supervised steps end early below this loss. Nats a token; 0: never."
    )
    warm_start_examples: int = Field(default=256, ge=1, le=1 << 24, description="Solved tasks that they are taken from.")
    warm_start_batch: int = Field(default=64, ge=1, le=65_536, description="Examples of a supervised step.")
    warm_start_learning_rate: float = Field(default=1e-3, gt=0.0, le=1.0, description="Of the supervised steps.")


class MeshTable(_Table):
    """Devices. Learner and engines share all of them (colocated) unless both counts are given."""

    rollout_devices: int = Field(default=0, ge=0, le=1 << 16, description="Devices of all replicas together; 0: shared.")
    learner_devices: int = Field(default=0, ge=0, le=1 << 16, description="Devices of the learner; 0: shared.")


class ServerTable(_Table):
    """Engines outside: OpenAI-compatible servers that generate instead of ours."""

    urls: list[str] = Field(default_factory=list, description="Base URLs, one a replica. Empty: our own engine.")
    dialect: Literal["vllm", "sglang"] = Field(default="vllm", description="What the servers are.")
    model: str = Field(default="", description="Name of the model, as the servers know it.")
    api_key_env: str = Field(default="", description="Environment variable that holds the key; none by default.")
    max_retries: int = Field(
        default=5, ge=0, le=100, description="Tries again, without any progress, after overload or a lost connection."
    )
    backoff_s: float = Field(
        default=0.5, gt=0.0, le=60.0, description="Wait before the first of them; then twice as long each time. Seconds."
    )
    backoff_max_s: float = Field(
        default=30.0, gt=0.0, le=3600.0, description="Longest such wait; a server that asks for a longer one gets it. Seconds."
    )
    connect_timeout_s: float = Field(default=10.0, gt=0.0, le=600.0, description="Wait for a connection. Seconds.")
    silence_timeout_s: float = Field(
        default=600.0, gt=0.0, le=86_400.0,
        description="Longest silence of a server that is to answer, its queue included. Seconds.",
    )  # fmt: skip
    control_timeout_s: float = Field(
        default=30.0, gt=0.0, le=3600.0, description="Wait for a pause, a resumption or an abort. Seconds."
    )
    update_timeout_s: float = Field(default=600.0, gt=0.0, le=86_400.0, description="Wait for new weights. Seconds.")

    @field_validator("urls")
    @classmethod
    def _check_urls(cls, urls: list[str]) -> list[str]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
                raise ValueError(
                    f"{_bare(url)!r} is no base URL; allowed: http://host:port or https://host:port, with a path or not"
                )
            if parts.username or parts.password:
                raise ValueError(f"{_bare(url)!r} holds credentials; put the key into the variable that api_key_env names")
        return urls


def _bare(url: str) -> str:
    """A URL without what may be secret in it."""
    scheme, mark, rest = url.partition("://")
    return scheme + mark + rest.rpartition("@")[2].split("?")[0]


class CheckpointTable(_Table):
    """Saves of the run. `pipeline.checkpoint_interval` says how often."""

    keep: int = Field(default=3, ge=1, le=1000, description="Checkpoints that are kept.")


class LiveConfig(_Table):
    """Everything that a live run needs beside the pipeline's knobs."""

    environment: EnvironmentTable = EnvironmentTable()
    model: ModelTable = ModelTable()
    sampling: SamplingTable = SamplingTable()
    learner: LearnerTable = LearnerTable()
    mesh: MeshTable = MeshTable()
    server: ServerTable = ServerTable()
    checkpoint: CheckpointTable = CheckpointTable()
