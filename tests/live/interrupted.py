"""`harness run` several times in one process, each time with a signal at another instant. Run as a program of its own.

    python interrupted.py FOLDER INSTANT:SIGNAL:NAME[:resume] …

prints one JSON line for each: the exit code, what was said, and what is left in FOLDER/NAME. The current folder is that of the
user's module `interrupting`; what was compiled once is found in FOLDER/compiled.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

import interrupting
import jax

from harness import __main__ as front

SCENARIO = str(Path(__file__).parents[2] / "scenarios" / "cpu_live.toml")
SMALL = {
    "live.environment.name": '"interrupting:Letters"', "live.environment.options": "{}",
    "live.model.hidden_size": 16, "live.model.intermediate_size": 16, "live.model.layers": 1, "live.model.heads": 2,
    "live.model.kv_heads": 1, "live.model.head_dim": 8, "live.learner.warm_start_steps": 3, "live.learner.warm_start_batch": 4,
    "live.learner.warm_start_examples": 8, "live.learner.micro_batch_tokens": 128, "live.sampling.max_response_tokens": 6,
    "live.sampling.max_context_tokens": 32, "pipeline.slots_per_replica": 4, "pipeline.max_inflight": 4,
    "pipeline.group_size": 2, "pipeline.groups_per_step": 2, "pipeline.eval_episodes": 4, "pipeline.env_workers": 8,
    "pipeline.tool_workers": 8, "pipeline.buffer_capacity": 4, "pipeline.decode_chunk_steps": 4,
    "pipeline.checkpoint_interval": 1,
}  # fmt: skip


def run(folder, instant, name, where, resume):
    """One run."""
    out = str(folder / where)
    words = ["run", SCENARIO, "--steps", "4", "--no-record", "--logger", "interrupting:Logger", "--out", out]
    words += [word for path, value in SMALL.items() for word in ("--set", f"{path}={value}")]
    words += ["--resume", out] if resume else []
    interrupting.arm(instant, name)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = front.main(words)
    left = sorted(path.name for path in (folder / where).glob("*"))
    saved = sorted(path.name for path in (folder / where / "checkpoints").glob("*"))
    policy = sorted(path.name for path in (folder / where / "policy").glob("*"))
    return {"code": code, "said": said.getvalue(), "left": left, "saved": saved, "policy": policy}


def main():
    folder = Path(sys.argv[1])
    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    for argument in sys.argv[2:]:
        instant, name, where, *resume = argument.split(":")
        print(json.dumps({"instant": instant} | run(folder, instant, name, where, bool(resume))), flush=True)


if __name__ == "__main__":
    main()
