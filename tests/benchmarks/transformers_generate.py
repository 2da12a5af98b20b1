"""`generate` of `transformers` on a checkpoint, one run a line of stdin. Run by a Python that has torch and transformers.

    echo greedy | PYTHON tests/benchmarks/transformers_generate.py CHECKPOINT REQUESTS.json

REQUESTS.json: {"prompts": [[ids], ...], "new_tokens": [count, ...]}, ragged in both. The requests go as one batch, padded on
the left, as `generate` wants it; the batch runs to its longest answer, for `generate` has no other way, and only the tokens
that were asked for count. No token ends an answer. It runs on one thread or on one a core, whichever is faster in a short
trial: more threads than free cores make it several times slower.

The first line printed says versions and threads. Each line of stdin is `greedy`, or `sampled` for temperature 1, answered
a line with the seconds that the run took, on the clock and of CPU time. All lines printed are JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
import transformers

TRIAL_STEPS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description="transformers' generate, one run a line of stdin.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("requests", type=Path)
    given = parser.parse_args()
    requests = json.loads(given.requests.read_text())
    model = transformers.AutoModelForCausalLM.from_pretrained(given.checkpoint).eval()
    tokens, mask = left_padded(requests["prompts"])
    longest = max(requests["new_tokens"])

    def once(*, sample: bool, steps: int = longest) -> tuple[float, float]:
        begin, begin_cpu = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            made = model.generate(
                tokens,
                attention_mask=mask,
                max_new_tokens=steps,
                min_new_tokens=steps,
                do_sample=sample,
                temperature=1.0 if sample else None,
                top_k=0 if sample else None,
                top_p=1.0 if sample else None,
                use_cache=True,
                eos_token_id=None,
                pad_token_id=0,
            )
        took = time.perf_counter() - begin, time.process_time() - begin_cpu
        assert made.shape == (tokens.shape[0], tokens.shape[1] + steps), made.shape
        return took

    def trial(threads: int) -> float:
        torch.set_num_threads(threads)
        once(sample=False, steps=4)
        return min(once(sample=False, steps=TRIAL_STEPS)[0] for _ in range(2))

    threads = min({1, len(os.sched_getaffinity(0))}, key=trial)
    torch.set_num_threads(threads)
    say({"torch": torch.__version__, "transformers": transformers.__version__, "threads": threads})
    for line in sys.stdin:
        took_s, cpu_s = once(sample=line.strip() == "sampled")
        say({"took_s": took_s, "cpu_s": cpu_s})


def say(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


def left_padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask, (requests, longest prompt)."""
    width = max(map(len, prompts))
    tokens = torch.zeros((len(prompts), width), dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return tokens, mask


if __name__ == "__main__":
    main()
