"""Decoding on CPU: our engine against `generate` of `transformers`, same weights, same requests.

    uv run python tests/benchmarks/decode.py [--json]

The other side runs in an environment of its own, `.venv-transformers/` as `make_transformers_env.sh` makes it, or the Python
that `HARNESS_TRANSFORMERS_PYTHON` names; without either its figures are null.

Requests: 16, with prompts of 8 to 96 tokens and answers of 32 to 160, drawn once. Tokens that were asked for count, on either
side; time runs from handing the requests over until the last answer is whole, prefill included. The sides take turns, and the
figures are medians: the clock of a shared machine says little about one run, and CPU time a token says it more steadily.
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
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Took(NamedTuple):
    """Time that serving all requests took: on the clock, and of the process's CPU."""

    wall_s: float
    cpu_s: float


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


class Transformers:
    """The other side: a process that runs `generate` once for each line it is sent."""

    def __init__(self, python: Path, params: Parameters, requests: Requests, scratch: Path) -> None:
        save_checkpoint(scratch / "model", MODEL, params)
        file = scratch / "requests.json"
        file.write_text(json.dumps({"prompts": requests.prompts, "new_tokens": requests.new_tokens}))
        command = [str(python), str(SCRIPT), str(scratch / "model"), str(file)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self._answer()

    def serve(self, *, sampled: bool) -> Took:
        assert self._process.stdin is not None
        print("sampled" if sampled else "greedy", file=self._process.stdin, flush=True)
        answer = self._answer()
        return Took(answer["took_s"], answer["cpu_s"])

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{SCRIPT.name} ended with status {self._process.wait(60)}; its stderr says why")
        return json.loads(line)


class Ours:
    """Our engine, with everything compiled."""

    def __init__(self, params: Parameters, requests: Requests) -> None:
        self._requests = requests
        self._engine = InferenceEngine(
            MODEL, params, slots=len(requests.prompts), max_context_tokens=256, chunk_steps=CHUNK_STEPS, end_ids=()
        )
        self._engine.warm_up()

    def serve(self, *, sampled: bool) -> Took:
        return serve(self._engine, self._requests, sampled=sampled)


def serve(engine: InferenceEngine, requests: Requests, *, sampled: bool) -> Took:
    """Serve all requests at once, each in a slot of its own, as the engine's performer does it."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
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
    took = Took(time.perf_counter() - begin, time.process_time() - begin_cpu)
    assert [len(answer) for answer in answers] == requests.new_tokens
    return took


def figures(rounds: int = 5) -> dict[str, dict[str, Any]]:
    """Both sides in turn, so that whatever else the machine does meets both; medians of the rounds, sampled and greedy.

    What concerns the other side is None where its environment is missing. The ratios are those of a round, side by side.
    """
    requests = ragged_requests()
    params = parameters(new_model(MODEL, SEED))
    python = transformers_python()
    taken: dict[str, list[tuple[Took, Took | None]]] = {"sampled": [], "greedy": []}
    with tempfile.TemporaryDirectory() as scratch:
        theirs = Transformers(python, params, requests, Path(scratch)) if python else None
        ours = Ours(params, requests)
        for count in range(rounds + 1):
            for name, rows in taken.items():
                row = ours.serve(sampled=name == "sampled"), theirs and theirs.serve(sampled=name == "sampled")
                if count:  # the first round warms both up
                    rows.append(row)
        if theirs:
            theirs.close()
    return {name: _summary(requests.wanted, rows) | (theirs.versions if theirs else {}) for name, rows in taken.items()}


def _summary(wanted: int, rows: list[tuple[Took, Took | None]]) -> dict[str, Any]:
    ours, theirs = [row[0] for row in rows], [row[1] for row in rows if row[1]]
    ratios = [other.wall_s / own.wall_s for own, other in rows if other]
    cpu_ratios = [other.cpu_s / own.cpu_s for own, other in rows if other]
    return {
        "decode_tokens_per_s": median(wanted / took.wall_s for took in ours),
        "decode_cpu_us_per_token": median(took.cpu_s / wanted * 1e6 for took in ours),
        "transformers_tokens_per_s": median(wanted / took.wall_s for took in theirs) if theirs else None,
        "transformers_cpu_us_per_token": median(took.cpu_s / wanted * 1e6 for took in theirs) if theirs else None,
        "decode_over_transformers": median(ratios) if ratios else None,
        "decode_over_transformers_lowest": min(ratios, default=None),
        "decode_over_transformers_highest": max(ratios, default=None),
        "decode_over_transformers_by_cpu": median(cpu_ratios) if cpu_ratios else None,
    }


def main() -> None:
    both = figures()
    if "--json" in sys.argv[1:]:
        print(json.dumps(both))
        return
    for name, found in both.items():
        print(name)
        for figure, value in found.items():
            shown = "no environment" if value is None else f"{value:,.2f}" if isinstance(value, float) else value
            print(f"  {figure:34} {shown}")


if __name__ == "__main__":
    main()
