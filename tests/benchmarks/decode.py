"""Decoding on CPU: our engine against `generate` of `transformers`, same weights, same requests.

    uv run python tests/benchmarks/decode.py [--json]

The other side runs in an environment of its own, `.venv-transformers/` as `make_transformers_env.sh` makes it, or the Python
that `HARNESS_TRANSFORMERS_PYTHON` names; without either its figures are null.

Requests: 16, with prompts of 8 to 96 tokens and answers of 32 to 160, drawn once. Tokens that were asked for count, on either
side; time runs from handing the requests over until the last answer is whole, prefill included.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.numerics.checkpoints import save_checkpoint
from pipeline.numerics.model import ModelConfig, new_model, parameters

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("transformers_generate.py")
ENVIRONMENT = "HARNESS_TRANSFORMERS_PYTHON"
MODEL = ModelConfig(
    vocab_size=4096, hidden_size=384, intermediate_size=1152, layers=6, heads=6, kv_heads=2, head_dim=64, rope_theta=1e4
)
SEED = 20


@dataclass(frozen=True)
class Requests:
    """What both sides are asked for: ragged prompts, and the tokens wanted after each."""

    prompts: list[list[int]]
    new_tokens: list[int]

    @property
    def wanted(self) -> int:
        return sum(self.new_tokens)


def ragged_requests(count: int = 16, seed: int = SEED) -> Requests:
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, MODEL.vocab_size, length).tolist() for length in rng.integers(8, 97, count)]
    return Requests(prompts, rng.integers(32, 161, count).tolist())


def write_model(folder: Path) -> None:
    """The model that both sides load, with random weights."""
    save_checkpoint(folder, MODEL, parameters(new_model(MODEL, SEED)))


def transformers_python() -> Path | None:
    """A Python that has torch and transformers, if this machine has one."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return Path(named)
    python = ROOT / ".venv-transformers" / "bin" / "python"
    return python if python.exists() else None


def transformers_figures(checkpoint: Path, requests: Requests, folder: Path, repeats: int = 3) -> dict[str, Any] | None:
    """What the other side prints; None where its environment is missing. `folder` takes the file of requests."""
    python = transformers_python()
    if python is None:
        return None
    file = folder / "requests.json"
    file.write_text(json.dumps({"prompts": requests.prompts, "new_tokens": requests.new_tokens}))
    command = [str(python), str(SCRIPT), str(checkpoint), str(file), "--repeats", str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def transformers_tokens_per_s(checkpoint: Path, requests: Requests, folder: Path, *, sampled: bool = True) -> float | None:
    """Tokens per second of `generate`; None where its environment is missing."""
    figures = transformers_figures(checkpoint, requests, folder)
    return figures and figures["sampled_tokens_per_s" if sampled else "greedy_tokens_per_s"]
