"""Checks on eight devices that are one processor. Run as a program of its own, for JAX counts its devices when it starts:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python mesh_checks.py layouts|syncs

prints one JSON object; `test_mesh.py` says what must hold.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))

import harness.live_run
from harness.core.errors import ConfigError
from harness.scenario.schema import Scenario
from pipeline.config import PipelineConfig
from pipeline.live_config import LearnerTable, LiveConfig, MeshTable
from pipeline.numerics.engine import CompileCounter, InferenceEngine, programs
from pipeline.numerics.learner import Learner
from pipeline.numerics.mesh import make_layout
from pipeline.numerics.model import ModelConfig, abstract_parameters, with_parameters
from pipeline.numerics.sampling import request_key
from pipeline.numerics.weights import WeightStore

CONFIG = ModelConfig(vocab_size=40, hidden_size=32, intermediate_size=48, layers=1, heads=4, kv_heads=2, head_dim=8)
SLOTS, CONTEXT, CHUNK, END, STEPS = 8, 32, 4, 1, 3


def weights(seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) * 0.4, leaf.dtype), abstract_parameters(CONFIG))


def batch(step):
    rng = np.random.default_rng(100 + step)
    return [
        {
            "id": number,
            "tokens": rng.integers(0, 40, length).tolist(),
            "trained": [position > 2 for position in range(length)],
            "log_probs": rng.normal(-3.0, 0.3, length).tolist(),
            "advantage": float(rng.normal()),
        }
        for number, length in enumerate(rng.integers(6, 30, 7).tolist())
    ]


def generated(engine, temperature):
    """Tokens and log-probs of eight requests with their own keys, together to their end."""
    prompts = [np.random.default_rng(number).integers(2, 40, 3 + number).tolist() for number in range(SLOTS)]
    made = [([], []) for _ in prompts]
    engine.prefill(list(range(SLOTS)), [prompt[:-1] for prompt in prompts])
    running = list(range(SLOTS))
    bits = int(np.float32(temperature).view(np.int32))
    while running:
        columns = []
        for number in running:
            tokens = prompts[number] + made[number][0]
            words = request_key(7, (number, 0, 0, 0)).view(np.int32).tolist()
            own = len(made[number][0])
            columns.append([number, len(tokens) - 1, tokens[-1], own, 12 - own, *words, bits])
        chunk = engine.decode(np.array(columns, np.int32).T, CHUNK).result()
        for column, number in enumerate(running):
            own = chunk.made[column]
            made[number][0].extend(chunk.tokens[:own, column].tolist())
            made[number][1].extend(chunk.log_probs[:own, column].tolist())
        ended = {number for column, number in enumerate(running) if chunk.ended[column]}
        running = [number for number in running if number not in ended and len(made[number][0]) < 12]
    return made


def trained_and_sampled(rollout, learner_devices, replicas, devices):
    """Train a few steps, publish to every replica, sample from each: what it came to."""
    table = MeshTable(rollout_devices=rollout, learner_devices=learner_devices)
    layout = make_layout(table, CONFIG, replicas, devices)
    store = WeightStore(replicas)
    engines = [
        InferenceEngine(
            CONFIG, weights(0), slots=SLOTS, max_context_tokens=CONTEXT, chunk_steps=CHUNK, end_ids=(END,),
            shardings=layout.engines[number] if layout else None,
        )
        for number in range(replicas)
    ]  # fmt: skip
    learner = Learner(
        CONFIG, weights(0), LearnerTable(micro_batch_tokens=32, learning_rate=0.01), max_tokens=CONTEXT, store=store,
        placement=layout.learner if layout else None,
    )  # fmt: skip
    run = {**programs(engines, store), **learner.programs()}
    for engine in engines:
        engine.warm_up()
        engine.install(0, learner.weights())
    learner.warm_up()
    with CompileCounter() as counter:
        for step in range(1, STEPS + 1):
            run["learner.train"](step=step, sequences=batch(step), last=True).result()
        run["learner.snapshot"](version=STEPS)
        held = len(store)
        for number in range(replicas):
            run["engine.install"](number, STEPS)
        answers = [[generated(engine, temperature) for temperature in (0.0, 1.0)] for engine in engines]
    return {
        "params": {name: np.asarray(array) for name, array in learner.state()["params"].items()},
        "answers": answers,
        "compilations": counter.count,
        "held": (held, len(store)),
        "versions": [engine.version for engine in engines],
        "engine_devices": [
            sorted({device.id for leaf in engine._leaves for device in leaf.devices()}) for engine in engines
        ],
        "learner_devices": sorted({d.id for leaf in jax.tree.leaves(learner.weights()) for d in leaf.devices()}),
        "split": sum(not leaf.is_fully_replicated for leaf in engines[0]._leaves),
    }  # fmt: skip


def compared(one, other):
    """How far a layout is from one device."""
    tokens = [[answer[0] for answer in kind] for kind in one["answers"][0]]
    log_probs = [np.concatenate([answer[1] for answer in kind]) for kind in one["answers"][0]]
    same = all([[answer[0] for answer in kind] for kind in engine] == tokens for engine in other["answers"])
    apart = [
        float(np.abs(np.concatenate([answer[1] for answer in kind]) - log_probs[place]).max())
        for engine in other["answers"] for place, kind in enumerate(engine) if same
    ]  # fmt: skip
    params = max(float(np.abs(array - other["params"][name]).max()) for name, array in one["params"].items())
    plain = {name: value for name, value in other.items() if name not in ("params", "answers")}
    return plain | {"same_tokens": same, "log_probs": max(apart, default=None), "params_apart": params}


def layouts():
    one = trained_and_sampled(0, 0, 1, jax.devices()[:1])
    moved = max(float(np.abs(array - start).max()) for array, start in zip(
        one["params"].values(), [np.asarray(leaf) for leaf in jax.tree.leaves(weights(0))], strict=True))  # fmt: skip
    return {
        "moved": moved,
        "one": compared(one, one),
        "colocated": compared(one, trained_and_sampled(0, 0, 1, jax.devices())),
        "apart": compared(one, trained_and_sampled(4, 4, 2, jax.devices())),
        "ragged": compared(one, trained_and_sampled(6, 2, 1, jax.devices())),
    }


def refusals():
    """What is said of counts that cannot be; the last two of two processes with four devices each."""

    def said(rollout, learner_devices, replicas=1, devices=None):
        try:
            make_layout(MeshTable(rollout_devices=rollout, learner_devices=learner_devices), CONFIG, replicas, devices)
        except ConfigError as refusal:
            return str(refusal)
        return ""

    two = [SimpleNamespace(process_index=number // 4, platform="cpu") for number in range(8)]
    return {
        "too_many": said(8, 1),
        "only_one": said(4, 0),
        "not_divisible": said(5, 3, 2),
        "not_in_each_process": said(3, 4, 1, two),
        "learner_not_in_each_process": said(4, 3, 1, two),
    }


LIVE = {
    "environment": {"name": "jittery:Jittery"},
    "model": {"hidden_size": 16, "intermediate_size": 16, "layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 8},
    "sampling": {"max_response_tokens": 16, "max_context_tokens": 64},
    "learner": {"micro_batch_tokens": 64, "learning_rate": 0.01},
    "mesh": {"rollout_devices": 4, "learner_devices": 4},
}


def scenario(sync):
    """With two replicas; what a simulation of it would need comes from one that ships."""
    text = (Path(__file__).parents[2] / "scenarios" / "cpu_live.toml").read_text().replace("= 48", "= 64")
    data = tomllib.loads(text)
    data["world"]["inference"]["replicas"] = 2
    data |= {
        "live": LIVE,
        "pipeline": {
            "group_size": 3, "groups_per_step": 2, "max_staleness": 2, "pipeline_depth": 2, "slots_per_replica": 8,
            "decode_chunk_steps": 2, "max_inflight": 16, "buffer_capacity": 6, "deadlines": {"sync_s": 7200.0}, **sync,
        },
    }  # fmt: skip
    return Scenario[PipelineConfig, LiveConfig].model_validate(data)


class Watched:
    """Looks over a live world's shoulder: the weights of each version, and every sample that is trained on."""

    def __init__(self, world):
        self.versions, self.samples = {}, []
        self.model = world.model
        learner = world._learner
        snapshot = learner.snapshot

        def kept(*, version):
            self.versions[version] = jax.tree.map(np.asarray, learner.weights())
            snapshot(version=version)

        world.dispatcher.register("learner.snapshot", kept)
        sequences = world.learner._sequences

        def seen(groups):
            self.samples += [member.payload for group in groups for member in group.members]
            return sequences(groups)

        world.learner._sequences = seen

    def scored(self, count, *, kept):
        """Sampled log-probs against the network's own, under the weights of each token's version and under those of another.

        Where a cache outlives a swap (`kept`), tokens behind it stand on older keys and values: then the oldest version alone.
        """
        score = jax.jit(
            lambda params, tokens: jax.nn.log_softmax(
                with_parameters(self.model, params)(tokens, jnp.arange(64)[None], jnp.ones((1, 64), jnp.int32))[0]
            )
        )
        apart, apart_of_others, looked = 0.0, 0.0, 0
        for sample in sorted(self.samples, key=lambda sample: -len(set(sample.versions)))[:count]:
            padded = np.zeros((1, 64), np.int32)
            padded[0, : len(sample.tokens)] = sample.tokens
            scores = {version: np.asarray(score(params, padded)) for version, params in self.versions.items()}
            oldest = min(version for version in sample.versions if version >= 0)
            for place, (token, version) in enumerate(zip(sample.tokens, sample.versions, strict=True)):
                if version < 0 or (kept and version != oldest):
                    continue
                off = {number: abs(float(each[place - 1, token]) - sample.log_probs[place]) for number, each in scores.items()}
                apart = max(apart, off.pop(version))
                apart_of_others = max(apart_of_others, *off.values())
                looked += 1
        return {"apart": apart, "apart_of_others": apart_of_others, "looked": looked}


def syncs():
    """Real runs with every way of weight sync, on four devices for two replicas and four for the learner."""
    ways = [
        {"sync_mode": mode, "sync_rollout": rollout}
        for mode in ("drain", "drain_episodes", "abort_resume", "keep") for rollout in ("all_at_once", "rolling")
        if (mode, rollout) != ("drain_episodes", "rolling")
    ]  # fmt: skip
    watched = []
    made = harness.live_run._world

    def world(*arguments):
        watched.append(Watched(new := made(*arguments)))
        return new

    harness.live_run._world = world
    return {f"{way['sync_mode']} {way['sync_rollout']}": sync_run(way, watched) for way in ways}


def sync_run(way, watched):
    run = harness.live_run.run_live(scenario(way), steps=4, record=False)
    watch = watched.pop()
    trained = [[version for version in sample.versions if version >= 0] for sample in watch.samples]
    answers = [answer for sample in watch.samples for answer in answers_of(sample)]
    return watch.scored(24, kept=way["sync_mode"] == "keep") | {
        "steps": run.step,
        "samples": len(watch.samples),
        "published": max(watch.versions),
        "newest": max(max(versions) for versions in trained),
        "versions": len({version for versions in trained for version in versions}),
        "backwards": sum(versions != sorted(versions) for versions in trained),
        "answers_of_several": sum(len(set(answer)) > 1 for answer in answers),
        "samples_of_several": sum(len(set(versions)) > 1 for versions in trained),
    }


def answers_of(sample):
    """Versions of each answer: a stretch of trained tokens."""
    answer = []
    for version in [*sample.versions, -1]:
        if version >= 0:
            answer.append(version)
        elif answer:
            yield answer
            answer = []


if __name__ == "__main__":
    print(json.dumps({"layouts": layouts(), "refusals": refusals()} if sys.argv[1] == "layouts" else syncs()))
