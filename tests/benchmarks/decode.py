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
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.numerics.checkpoints import save_checkpoint
from pipeline.numerics.engine import InferenceEngine
from pipeline.numerics.model import ModelConfig, new_model, parameters
from pipeline.numerics.sampling import request_key

if TYPE_CHECKING:
    from pipeline.numerics.model import Parameters

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("transformers_generate.py")
ENVIRONMENT = "HARNESS_TRANSFORMERS_PYTHON"
MODEL = ModelConfig(
    vocab_size=4096, hidden_size=384, intermediate_size=1152, layers=6, heads=6, kv_heads=2, head_dim=64, rope_theta=1e4
)
SEED = 20
CHUNK_STEPS = 16


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


def our_tokens_per_s(params: Parameters, requests: Requests, *, sampled: bool = True, repeats: int = 3) -> float:
    """Tokens per second of our engine: the best of the repeats, after everything is compiled."""
    engine = InferenceEngine(
        MODEL, params, slots=len(requests.prompts), max_context_tokens=256, chunk_steps=CHUNK_STEPS, end_ids=()
    )
    engine.warm_up()
    serve(engine, requests, sampled=sampled)
    return requests.wanted / min(serve(engine, requests, sampled=sampled) for _ in range(repeats))


def serve(engine: InferenceEngine, requests: Requests, *, sampled: bool) -> float:
    """Serve all requests at once, each in a slot of its own, as the engine's performer does it. Seconds."""
    begin = time.perf_counter()
    bits = int(np.float32(1.0 if sampled else 0.0).view(np.int32))
    keys = [request_key(SEED, (slot, 0, 0, 0)).view(np.int32).tolist() for slot in range(len(requests.prompts))]
    answers: list[list[int]] = [[] for _ in requests.prompts]
    engine.prefill(range(len(answers)), [prompt[:-1] for prompt in requests.prompts])
    running = list(range(len(answers)))
    while running:
        table = []
        for slot in running:
            prompt, answer = requests.prompts[slot], answers[slot]
            length = len(prompt) + len(answer)
            left = requests.new_tokens[slot] - len(answer)
            table.append([slot, length - 1, answer[-1] if answer else prompt[-1], len(answer), left, *keys[slot], bits])
        made = engine.decode(np.array(table, np.int32).T, CHUNK_STEPS).result()
        for column, slot in enumerate(running):
            answers[slot].extend(made.tokens[: made.made[column], column].tolist())
        running = [slot for slot in running if len(answers[slot]) < requests.new_tokens[slot]]
    took = time.perf_counter() - begin
    assert [len(answer) for answer in answers] == requests.new_tokens
    return took


def figures(*, sampled: bool = True) -> dict[str, Any]:
    """Both sides and their ratio, in tokens per second; the other side is None where its environment is missing."""
    requests = ragged_requests()
    params = parameters(new_model(MODEL, SEED))
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(scratch) / "model"
        save_checkpoint(checkpoint, MODEL, params)
        theirs = transformers_tokens_per_s(checkpoint, requests, Path(scratch), sampled=sampled)
    ours = our_tokens_per_s(params, requests, sampled=sampled)
    return {
        "decode_tokens_per_s": ours,
        "transformers_tokens_per_s": theirs,
        "decode_over_transformers": ours / theirs if theirs else None,
    }


def main() -> None:
    both = {name: figures(sampled=sampled) for name, sampled in (("sampled", True), ("greedy", False))}
    if "--json" in sys.argv[1:]:
        print(json.dumps(both))
        return
    for name, found in both.items():
        print(name)
        for figure, value in found.items():
            print(f"  {figure:28} {'no environment' if value is None else f'{value:,.1f}'}")


if __name__ == "__main__":
    main()
