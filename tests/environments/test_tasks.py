"""Shipped tasks: demonstrations are what the environments themselves would give, splits share nothing, numbers fix tasks."""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import ConfigError, DataError
from harness.core.work import EnvClose, EnvReset, Reward, Status, ToolCall
from harness.engines import live
from pipeline.data import EVALUATION_GROUPS, Task
from pipeline.environments import resolve
from pipeline.environments.agents import PlainAgent, QwenAgent
from pipeline.environments.environment import held_out
from pipeline.environments.source import LiveSource
from pipeline.live_config import EnvironmentTable, LiveConfig, SamplingTable
from pipeline.numerics.tokenizers import PRINTABLE, CharTokenizer
from pipeline.performers.host import host_performers
from pipeline.performers.threads import Threads

SHIPPED = [
    ("tool_arithmetic", {}), ("tool_arithmetic", {"largest": 9, "terms": 3, "operators": "+"}),
    ("tool_arithmetic", {"compact": False}), ("guessing_game", {}), ("guessing_game", {"largest": 64}),
]  # fmt: skip


def source(name, options=None, *, train_tasks=100, qwen=False, **sampling):
    environment = resolve(name, options or {})
    agent = QwenAgent(CharTokenizer(PRINTABLE)) if qwen else PlainAgent(CharTokenizer(PRINTABLE))
    table = EnvironmentTable(name=name, options=options or {}, train_tasks=train_tasks, eval_tasks=10, max_turns=40)
    limits = SamplingTable(**{"max_context_tokens": 4096, "max_response_tokens": 256, **sampling})
    return LiveSource(environment, LiveConfig(environment=table, sampling=limits), agent, seed=7), environment, agent


def attempt(what, agent, task, answers, member=0):
    """Play an episode with these answers. Returns its sample and its reward."""
    pool = Threads(2)
    _, performers = host_performers(pool)
    episode = what.driver(task, member)

    async def main(rt):
        assert (await rt.perform(EnvReset(0, 0, payload=episode))).status is Status.OK
        observed = episode.first_tokens
        for turn, answer in enumerate(answers):
            asked = episode.prompt(turn, 0, observed)[3]
            made = [*agent.tokenizer.encode(answer), agent.tokenizer.end_id]
            asked.tokens += made
            asked.log_probs += [0.0] * len(made)
            asked.versions += [0] * len(made)
            asked.finished = True
            if episode.act(turn, None) < 0:
                break
            observed, over = episode.observe(turn, await rt.perform(ToolCall(0, turn, 0, 0, episode)))
            if over:
                break
        outcome = await rt.perform(Reward(0, 0, 0, episode))
        await rt.perform(EnvClose(0, payload=episode))
        return outcome.result

    try:
        reward = live.run(main, performers=performers)
    finally:
        pool.close()
    return episode.sample(), reward


@pytest.mark.parametrize(("name", "options"), SHIPPED)
@pytest.mark.parametrize("qwen", [False, True])
def test_a_demonstration_played_out_is_the_same_sample_and_earns_one(name, options, qwen):
    what, environment, agent = source(name, options, qwen=qwen)
    for number, shown in enumerate(what.demonstrations(12)):
        transcript = environment.demonstration(what.task("train", number), **options)
        sample, reward = attempt(what, agent, Task(number, 0), [text for text, trained in transcript if trained])
        assert sample == shown
        assert reward == 1.0


@pytest.mark.parametrize(("name", "options"), SHIPPED)
def test_splits_share_no_task_and_a_number_names_one(name, options):
    what, _, _ = source(name, options)
    train = [what.task("train", number) for number in range(200)]
    test = [what.task("eval", number) for number in range(50)]
    assert not {repr(task) for task in train} & {repr(task) for task in test}
    assert train == [what.task("train", number) for number in range(200)]
    assert all(held_out(task) for task in test)
    assert len({repr(task) for task in train}) > 20


@pytest.mark.parametrize(
    ("answers", "options", "reward"),
    [
        (["{right}"], {}, 0.0),  # no call
        (["{right}"], {"require_call": False}, 1.0),
        (["[calc {expression}]", "x"], {}, 0.0),
        (["[calc {expression}]", "x"], {"partial_credit": 0.25}, 0.25),
        (["[calc 1+1]", "x"], {"partial_credit": 0.25}, 0.0),
        (["[calc", "[nothing 1]", "[calc {expression}]", "{right}"], {}, 1.0),
        (["[calc", "{right}"], {}, 0.0),  # no call that was answered
        (["[calc 1+1][calc {expression}]", "{right}"], {}, 1.0),
    ],
)
def test_the_reward_of_tool_arithmetic(answers, options, reward):
    what, environment, agent = source("tool_arithmetic", options)
    task = what.task("train", 0)
    right = environment.demonstration(task, **options)[-1][0]
    said = [answer.format(expression=task["expression"], right=right) for answer in answers]
    assert attempt(what, agent, Task(0, 0), said)[1] == reward


def test_the_alphabets_hold_whole_conversations():
    for name, options in SHIPPED:
        if options.get("compact", True):
            environment = resolve(name, options)
            CharTokenizer("".join(dict.fromkeys(environment.alphabet)))
            for number in range(20):
                task = environment.tasks("train", number, 0, **options)
                text = "".join(text for text, _ in environment.demonstration(task, **options))
                assert set(text) <= set(environment.alphabet)


def test_a_guess_that_is_none_is_used_up():
    what, _, agent = source("guessing_game", {"largest": 64, "guesses": 3})
    secret = what.task("train", 0)["secret"]
    assert attempt(what, agent, Task(0, 0), ["x", "999", str(secret)])[1] == 1.0
    sample, reward = attempt(what, agent, Task(0, 0), ["x", "", "1.5", str(secret)])
    assert reward == 0.0
    assert not sample.truncated  # the guesses are the game's own


# ── the source ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(given_out=st.integers(0, 30), again=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=5))
def test_a_source_goes_on_where_its_state_was_taken(given_out, again):
    first, second = (source("guessing_game", train_tasks=5)[0] for _ in range(2))
    for _ in range(given_out):
        first.next_task()
    tasks = [Task(*task) for task in again]
    first.issue_again(tasks)
    second.restore(first.state())
    assert [second.next_task() for _ in tasks] == tasks
    assert [second.next_task() for _ in range(7)] == [Task(n % 5, n // 5) for n in range(given_out, given_out + 7)]


def test_evaluation_is_of_held_out_tasks_at_its_own_temperature():
    what, _, _ = source("guessing_game", temperature=0.7, eval_temperature=0.0)
    trained, evaluated = what.driver(Task(3, 0), 0), what.driver(Task(3, EVALUATION_GROUPS), 0)
    assert trained.prompt(0, 0, 0)[3].temperature == 0.7
    assert evaluated.prompt(0, 0, 0)[3].temperature == 0.0
    assert trained.build().task == what.task("train", 3)
    assert evaluated.build().task == what.task("eval", 3)


def test_demonstrations_that_do_not_exist_or_fit_are_refused():
    what, _, _ = source("tool_arithmetic", max_context_tokens=16)
    with pytest.raises(DataError, match="demonstration of training task 0"):
        what.demonstrations(1)


# ── reasoning-gym ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="the extra `tasks` is not installed: uv sync --extra tasks"
)
def test_reasoning_gym_is_scored_split_and_checked():
    """All in one: its import takes seconds in each process."""
    for dataset in ("chain_sum", "leg_counting", "spell_backward"):
        what, _, agent = source("reasoning_gym", {"dataset": dataset})
        for number in range(3):
            right = what.task("train", number)["answer"]
            assert attempt(what, agent, Task(number, 0), [f"so <answer> {right} </answer>"])[1] == 1.0
            assert attempt(what, agent, Task(number, 0), [right])[1] < 1.0  # untagged
            assert attempt(what, agent, Task(number, 0), ["<answer>nonsense</answer>"])[1] < 1.0
        questions = [{what.task(split, number)["question"] for number in range(20)} for split in ("train", "eval")]
        assert not questions[0] & questions[1]
    for options, words in (
        ({}, "no such dataset"),
        ({"dataset": "x"}, "chain_sum"),
        ({"dataset": "chain_sum", "min_terms": -1}, "refuses"),
        ({"dataset": "chain_sum", "terms": 2}, "refuses"),
    ):
        with pytest.raises(ConfigError) as refused:
            resolve("reasoning_gym", options)
        assert words in str(refused.value)
