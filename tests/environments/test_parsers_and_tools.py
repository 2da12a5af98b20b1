"""Calls are found, run at once, and what goes wrong in one is a text that the agent reads."""

from __future__ import annotations

import json

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from pipeline.environments import CompactParser, InfraFailure, QwenParser, Tool, ToolEnvironment
from pipeline.environments.parsers import Call
from pipeline.environments.tool_environment import MAX_OUTPUT_CHARACTERS
from pipeline.performers.host import EpisodeHost
from pipeline.performers.threads import Threads

QWEN, COMPACT = QwenParser(), CompactParser()
SCALAR = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
JSON = SCALAR | st.lists(SCALAR, max_size=3) | st.dictionaries(st.text(max_size=4), SCALAR, max_size=2)


@given(
    calls=st.lists(
        st.tuples(st.text(min_size=1, max_size=8), st.dictionaries(st.text(max_size=8), JSON, max_size=3)), max_size=4
    ),
    prose=st.text("ab \n"),
)
def test_qwen_calls_are_read_as_they_were_written(calls, prose):
    blocks = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    if any("tool_call>" in block or "think>" in block for block in blocks):
        return
    text = prose + prose.join(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)
    assert QWEN.parse(text) == [Call(name, arguments) for name, arguments in calls]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "7",
        '{"name": 3}',
        '{"name": "", "arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        "[" * 100_000,
        "{'name': 'f'}",
    ],
)
def test_a_malformed_qwen_call_is_an_error_in_words(body):
    [call] = QWEN.parse(f"<tool_call>{body}</tool_call>")
    assert call.error
    assert not call.name


def test_an_open_qwen_call_is_an_error_and_thoughts_are_no_calls():
    assert QWEN.parse('<tool_call>{"name": "f"}')[0].error
    assert QWEN.parse('<think><tool_call>{"name": "f"}</tool_call></think>yes') == []
    assert QWEN.answer("<think>hm</think> yes ") == "yes"


@given(st.text())
def test_no_text_breaks_a_parser(text):
    for parser in (QWEN, COMPACT):
        calls = parser.parse(text)
        assert all(call.error or call.name for call in calls)
        assert isinstance(parser.answer(text), str)


@pytest.mark.parametrize(
    ("text", "names", "errors"),
    [
        ("[calc 1+2]", ["calc"], 0), ("[calc]", ["calc"], 0), ("12", [], 0), ("[calc 1", [""], 1), ("[", [""], 1),
        ("[]", [""], 1),
        ("[a 1][b 2]", ["a", "b"], 0), ("x[calc 1]y", ["calc"], 0), ("[9 a]", [""], 1), ("1]", [], 0),
    ],
)  # fmt: skip
def test_compact_calls(text, names, errors):
    calls = COMPACT.parse(text)
    assert [call.name for call in calls] == names
    assert sum(bool(call.error) for call in calls) == errors


class Tools(ToolEnvironment):
    """Tools of every kind."""

    def prompt(self):
        return "p"

    def tools(self):
        return [self.add, self.slow, self.broken, self.gone, self.exits, Tool(len, name="size", inline=True), self.much]

    def add(self, left: int, right: int = 1) -> int:
        """Adds."""
        return left + right

    async def slow(self) -> str:
        await self.host.sleep(5)
        return "slept"

    def broken(self):
        raise KeyError("nothing here")

    def gone(self):
        raise InfraFailure("no host")

    def exits(self):
        raise SystemExit(3)

    def much(self):
        return "x" * (MAX_OUTPUT_CHARACTERS + 1)

    def verify(self, answer):
        return 1.0


def step(*blocks):
    """The observation for these calls, and the time it took on a mock clock."""
    pool = Threads(4)

    async def main():
        environment = Tools({})
        environment.host = EpisodeHost(pool, 0, "Tools")
        await environment.reset()
        action = "".join(
            f"<tool_call>{json.dumps(block) if isinstance(block, dict) else block}</tool_call>" for block in blocks
        )
        assert not environment.final(action)
        began = trio.current_time()
        answer = await environment.step(action)
        return answer.observation, trio.current_time() - began, environment.calls

    try:
        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.05))
    finally:
        pool.close()


def call(name, **arguments):
    return {"name": name, "arguments": arguments}


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (call("add", left=2), "3"),
        (call("add"), "missing"),
        (call("add", left=1, up=2), "unexpected"),
        (call("add", left="a"), "TypeError"),
        (call("nothing"), "there is no tool 'nothing'"),
        (call("broken"), "KeyError"),
        (call("exits"), "SystemExit"),
        (call("much"), "[output cut off]"),
        ("{", "no JSON"),
    ],
)
def test_what_goes_wrong_in_a_call_is_an_observation(block, words):
    observation, _, calls = step(block)
    assert words in observation
    assert observation.startswith("<tool_response>\n")
    assert calls == (words in ("3", "[output cut off]"))


def test_calls_of_one_turn_run_at_once_and_answer_in_order():
    observation, took_s, calls = step(call("slow"), call("add", left=1), call("slow"), call("broken"))
    assert took_s == pytest.approx(5.0)
    assert [line for line in observation.splitlines() if "tool_response" not in line][:3] == ["slept", "2", "slept"]
    assert calls == 3


def test_a_failure_of_the_infrastructure_comes_out_to_be_tried_again():
    for blocks in ([call("gone")], [call("slow"), call("gone"), call("add", left=1)]):
        with pytest.raises(InfraFailure, match="no host"):
            step(*blocks)


def test_the_schema_of_a_tool_comes_from_its_signature():
    schema = Tool(Tools({}).add).schema
    assert schema == {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"left": {"type": "integer"}, "right": {"type": "integer"}},
            "required": ["left"],
        },
    }
