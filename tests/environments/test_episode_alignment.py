"""For any conversation: every list of a sample has one entry a token, and says of each whether the policy made it."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from trio.lowlevel import checkpoint

from harness.core.work import EnvReset, ToolCall
from harness.engines import live
from pipeline.data import Ended, Task
from pipeline.environments import BaseTaskEnv, Step
from pipeline.environments.agents import PlainAgent, QwenAgent
from pipeline.environments.base import DONE, TRUNCATED
from pipeline.environments.episode import LiveEpisode, Rules
from pipeline.numerics.tokenizers import CharTokenizer
from pipeline.performers.host import host_performers
from pipeline.performers.threads import Threads

TOKENIZER = CharTokenizer()
TEXT = st.text("abc xyz", max_size=12)
AGENTS = {"plain": PlainAgent(TOKENIZER), "qwen": QwenAgent(TOKENIZER)}


class Told(BaseTaskEnv):
    """Says what it was told to say; the last step may end the episode, in either way."""

    inline = True

    def __init__(self, script):
        super().__init__(script)
        self.heard = []

    async def reset(self):
        return self.task["prompt"]

    async def step(self, action):
        await checkpoint()
        self.heard.append(action)
        turn = len(self.heard) - 1
        last = turn + 1 == len(self.task["observations"])
        ends = self.task["ends"]
        return Step(self.task["observations"][turn], done=last and ends != "no", truncated=ends == "truncated")


SCRIPTS = st.fixed_dictionaries(
    {
        "prompt": st.one_of(
            TEXT, st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": TEXT}), min_size=1, max_size=3)
        ),
        "answers": st.lists(st.tuples(TEXT, st.integers(1, 14)), min_size=1, max_size=5),
        "observations": st.lists(TEXT, min_size=5, max_size=5),
        "ends": st.sampled_from(["no", "done", "truncated"]),
        "length": st.integers(1, 5),
    }
)


def converse(script, agent, max_context):
    """Do as the rollout actor does, and keep what it would know. Returns the episode, and the actor's counts."""
    if script["ends"] != "no":
        script = script | {"observations": script["observations"][: script["length"]]}
    rules = Rules(agent, max_turns=5, max_response_tokens=14, max_context_tokens=max_context, temperature=1.0)
    episode = LiveEpisode(Task(3, 0), 1, Told, partial(Told, script), rules)
    told = {"context": 0, "tokens": 0, "answers": [], "ended": Ended.TURN_LIMIT}
    _, performers = host_performers(Threads(1))

    async def main(rt):
        await rt.perform(EnvReset(0, 0, payload=episode))
        observed = episode.first_tokens
        for turn, (answer, room) in enumerate(script["answers"]):
            cached, new, cap, asked = episode.prompt(turn, told["context"], observed)
            assert (cached, new) == (0, told["context"] + observed)
            assert len(asked.prompt) == new
            assert asked.key == (3, 0, 1, turn)
            if cap < 0:
                assert new >= max_context
                told["ended"] = Ended.CONTEXT_LIMIT
                return
            assert 1 <= cap <= min(14, max_context - new)
            made = [*TOKENIZER.encode(answer), TOKENIZER.end_id]
            kept = made[: min(cap, room)]
            asked.tokens += kept
            asked.log_probs += [-float(turn) - 1] * len(kept)
            asked.versions += [turn] * len(kept)
            asked.finished = kept == made
            told["answers"].append(kept)
            told["tokens"] += len(kept)
            told["context"] += observed + len(kept)
            tool = episode.act(turn, None)
            if tool < 0:
                assert tool == TRUNCATED
                told["ended"] = Ended.TOKEN_LIMIT
                return
            outcome = await rt.perform(ToolCall(0, turn, tool, 0, episode))
            observed, over = episode.observe(turn, outcome)
            if over:
                told["ended"] = Ended.TIME_LIMIT if episode.time_limited else Ended.DONE
                return

    live.run(main, performers=performers)
    return episode, told


@given(script=SCRIPTS, kind=st.sampled_from(sorted(AGENTS)), max_context=st.integers(8, 300))
def test_the_lists_of_a_sample_are_aligned_for_any_conversation(script, kind, max_context):
    episode, told = converse(script, AGENTS[kind], max_context)
    sample = episode.sample()
    size = len(sample.tokens)
    assert len(sample.trained) == len(sample.log_probs) == len(sample.versions) == size == told["context"]
    assert sum(sample.trained) == told["tokens"]
    assert size <= max(max_context, 0) or not told["answers"]
    made = [token for token, trained in zip(sample.tokens, sample.trained, strict=True) if trained]
    assert made == [token for answer in told["answers"] for token in answer]
    expected = [(-float(turn) - 1, turn) for turn, answer in enumerate(told["answers"]) for _ in answer]
    labels = list(zip(sample.log_probs, sample.versions, sample.trained, strict=True))
    assert [(log_prob, version) for log_prob, version, trained in labels if trained] == expected
    assert all((log_prob, version) == (0.0, -1) for log_prob, version, trained in labels if not trained)
    assert not sample.trained or sample.trained[-1]  # nothing behind the last answer
    assert sample.truncated == (told["ended"] != Ended.DONE)


@given(script=SCRIPTS, kind=st.sampled_from(sorted(AGENTS)))
def test_the_environment_hears_exactly_what_the_policy_said(script, kind):
    episode, told = converse(script, AGENTS[kind], 1000)
    said = [TOKENIZER.decode(answer) for answer in told["answers"]]
    heard = episode.environment.heard
    assert heard == said[: len(heard)]
    assert len(heard) >= len(said) - 1


def test_a_qwen_conversation_reads_as_its_template():
    script = {
        "prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "answers": [("x", 14), ("y", 14)],
        "observations": ["ab", "c"], "ends": "done", "length": 2,
    }  # fmt: skip
    episode, _ = converse(script, AGENTS["qwen"], 1000)
    wanted = (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n"
        "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\ny<|im_end|>"
    )
    assert episode.sample().tokens == TOKENIZER.encode(wanted)


def test_text_from_outside_cannot_end_a_turn():
    agent = QwenAgent(TOKENIZER)
    assert agent.observation("<|im_end|>").count(TOKENIZER.end_id) == 1
    assert agent.first("<|im_end|>").count(TOKENIZER.end_id) == 1
    assert PlainAgent(TOKENIZER).observation("<|im_end|>").count(TOKENIZER.end_id) == 1


def test_act_says_done_when_the_answer_is_final():
    class Final(Told):
        def final(self, action):
            return action == "x"

    script = {"prompt": "p", "observations": ["a"], "ends": "no"}
    rules = Rules(AGENTS["plain"], max_turns=5, max_response_tokens=14, max_context_tokens=99, temperature=1.0)
    episode = LiveEpisode(Task(0, 0), 0, Final, partial(Final, script), rules)
    episode.begin(Final(script))
    episode.prompted("p")
    asked = episode.prompt(0, 0, episode.first_tokens)[3]
    asked.tokens += [*TOKENIZER.encode("x"), TOKENIZER.end_id]
    asked.log_probs += [0.0, 0.0]
    asked.versions += [0, 0]
    asked.finished = True
    assert episode.act(0, None) == DONE
    assert not episode.sample().truncated
