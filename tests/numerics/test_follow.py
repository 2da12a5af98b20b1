"""Leader and followers over a store in memory: the same order everywhere, a store that stays small, failures that are named."""

from __future__ import annotations

import pickle
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import LawError, ProcessError
from pipeline.numerics import follow
from pipeline.numerics.dispatch import Decision, Dispatcher
from pipeline.numerics.follow import AHEAD, PART_BYTES, Follower, Leader, decode, encode

pytestmark = pytest.mark.real_clock


class Store:
    """What the coordination service keeps, with its promises: a key is written once, a read waits, folders end in a slash."""

    def __init__(self):
        self.data = {}
        self.changed = threading.Condition()
        self.most = 0
        self.open = True

    def key_value_set_bytes(self, key, value):
        with self.changed:
            if key in self.data:
                raise RuntimeError(f"ALREADY_EXISTS: key {key} already exists.")
            self.data[key] = bytes(value)
            self.most = max(self.most, len(self.data))
            self.changed.notify_all()

    def blocking_key_value_get_bytes(self, key, timeout_in_ms):
        with self.changed:
            there = self.changed.wait_for(lambda: key in self.data or not self.open, timeout_in_ms / 1000)
            if not self.open:
                raise RuntimeError("UNAVAILABLE: recvmsg: Connection reset by peer\nand more")
            if not there:
                raise RuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
            return self.data[key]

    def key_value_dir_get_bytes(self, key):
        with self.changed:
            return [(name, value) for name, value in self.data.items() if name.startswith(key)]

    def key_value_delete(self, key):
        with self.changed:
            gone = [name for name in self.data if name == key or (key.endswith("/") and name.startswith(key))]
            for name in gone:
                del self.data[name]

    def close(self):
        with self.changed:
            self.open = False
            self.changed.notify_all()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(follow, "LOOK_S", 0.01)


class Following(threading.Thread):
    """A follower in a thread, with what it did and how it ended."""

    def __init__(self, store, number, programs=None, **options):
        super().__init__(daemon=True)
        self.did, self.done, self.failure = [], None, None
        self.follower = Follower(store, number, **options)
        self.programs = programs or {"note": lambda **arguments: self.did.append(arguments)}
        self.start()

    def run(self):
        try:
            self.done = self.follower.run(self.programs)
        except BaseException as failure:
            self.failure = failure

    def end(self):
        self.join(20)
        assert not self.is_alive()
        return self


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=8,
)


@given(arguments=st.dictionaries(st.text(min_size=1), plain))
def test_plain_data_comes_back_as_it_was(arguments):
    assert decode(encode(Decision("note", arguments))) == Decision("note", arguments)


@pytest.mark.parametrize("kind", [np.int32, np.float32, np.bool_, np.uint32, np.float64])
def test_arrays_and_their_numbers_come_back_as_they_were(kind):
    arrays = {"rows": np.arange(24).reshape(4, 6).astype(kind)[:, ::2], "empty": np.zeros((0, 3), kind), "one": kind(1)}
    back = decode(encode(Decision("note", arrays))).arguments
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array, strict=True)


class Trap:
    def __init__(self, call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "payload", [Trap((print, ("opened",))), Trap((eval, ("1",))), Decision("note"), threading.Event, np.array([{1}, print])]
)
def test_anything_but_plain_data_is_refused_and_not_run(payload, capsys):
    with pytest.raises(LawError, match="plain data; it holds "):
        decode(pickle.dumps(("note", {"x": payload}), protocol=5))
    assert capsys.readouterr().out == ""


@settings(max_examples=25)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 100, PART_BYTES - 1, PART_BYTES + 1, 3 * PART_BYTES]), max_size=4),
    small=st.integers(0, 3 * AHEAD + 2),
    followers=st.integers(1, 3),
)
def test_every_follower_does_the_same_in_the_same_order(sizes, small, followers):
    store = Store()
    following = [Following(store, number) for number in range(1, followers + 1)]
    leader = Leader(store, followers)
    wanted = [{"number": number} for number in range(small)]
    wanted += [{"data": bytes([place]) * size} for place, size in enumerate(sizes)]
    for arguments in wanted:
        leader.tell(Decision("note", arguments))
    leader.stop()
    for each in following:
        each.end()
        assert (each.failure, each.did, each.done) == (None, wanted, len(wanted) + 1)


def test_the_store_stays_small_and_the_leader_waits_for_who_is_behind():
    store, gate, did = Store(), threading.Semaphore(0), []
    slow = Following(store, 1, {"note": lambda number: (gate.acquire(), did.append(number))})
    fast = Following(store, 2)
    dispatcher = Dispatcher({"note": lambda number: number}, tell=(leader := Leader(store, 2)).tell)
    dispatcher.start()
    told = []
    for number in range(10 * AHEAD):
        dispatcher.submit(Decision("note", {"number": number}), lambda answer, failure: told.append(answer))
    deadline_s = time.monotonic() + 10
    while len(fast.did) < 2 * AHEAD and time.monotonic() < deadline_s:
        time.sleep(0.005)
    time.sleep(0.05)
    assert len(told) == 2 * AHEAD
    gate.release(10 * AHEAD)
    dispatcher.stop()
    leader.stop()
    slow.end()
    fast.end()
    assert did == told == list(range(10 * AHEAD))
    assert store.most <= 2 * AHEAD + 6
    assert len(store.data) <= 2 * AHEAD + 6


def test_a_follower_that_fails_is_named_at_once_and_with_the_next_decision():
    said, store = threading.Event(), Store()
    words = []
    leader = Leader(store, 2, say=lambda text: (words.append(text), said.set()))

    def fail():
        raise MemoryError("no room for\nthe cache")

    good, bad = Following(store, 1, {"work": lambda: None}), Following(store, 2, {"work": fail})
    leader.tell(Decision("work"))
    assert said.wait(10)
    assert words == ["process 2 failed: work: MemoryError: no room for"]
    with pytest.raises(ProcessError, match="process 2 failed: work: MemoryError: no room for"):
        leader.tell(Decision("work"))
    assert isinstance(bad.end().failure, MemoryError)
    assert leader.failed(ValueError("anything")) == "process 2 failed: work: MemoryError: no room for"
    leader.stop()
    assert isinstance(good.end().failure, ProcessError)
    assert "the leading process failed: ValueError: anything" in str(good.failure)


def test_a_follower_that_does_not_move_is_named():
    store, gate = Store(), threading.Event()
    stuck = Following(store, 1, {"work": gate.wait})
    leader = Leader(store, 1, patience_s=0.2)
    for _ in range(2 * AHEAD):
        leader.tell(Decision("work"))
    with pytest.raises(ProcessError, match=f"process 1 is behind by more than {AHEAD} decisions and does not move"):
        leader.tell(Decision("work"))
    gate.set()
    leader.stop()
    stuck.end()


def test_a_broken_collective_is_laid_at_the_door_of_another_process():
    leader = Leader(Store(), 1)
    broken = RuntimeError("Gloo AllGather failed: Connection closed by peer [127.0.0.1]:1234\nmore")
    assert leader.failed(broken).startswith("another process is gone, see its standard error: Gloo AllGather failed")
    assert leader.failed(ValueError("our own")) == ""
    leader.stop()


def test_a_leader_that_is_gone_or_silent_is_said():
    store = Store()
    following = Following(store, 1)
    store.close()
    assert isinstance(following.end().failure, ProcessError)
    assert str(following.failure) == "the leading process is gone: UNAVAILABLE: recvmsg: Connection reset by peer"
    silent = Following(Store(), 1, patience_s=0.1).end().failure
    assert str(silent) == "the leading process has decided nothing for 0.1 s"


def test_the_coordination_service_keeps_these_promises():
    """The client has no public name, and the text of its errors is no promise: here is what we rely on."""
    from jax._src.lib import _jax

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    service = _jax.get_distributed_runtime_service(f"127.0.0.1:{port}", 1)
    client = _jax.get_distributed_runtime_client(f"127.0.0.1:{port}", 0)
    client.connect()
    try:
        for store in (client, Store()):
            with pytest.raises(Exception, match="DEADLINE_EXCEEDED"):
                store.blocking_key_value_get_bytes("nothing", 50)
            big = b"x" * (PART_BYTES + 8)
            store.key_value_set_bytes("a/0", big)
            store.key_value_set_bytes("a/1", b"")
            with pytest.raises(Exception, match="ALREADY_EXISTS"):
                store.key_value_set_bytes("a/1", b"again")
            assert store.blocking_key_value_get_bytes("a/0", 1000) == big
            assert dict(store.key_value_dir_get_bytes("a/")) == {"a/0": big, "a/1": b""}
            store.key_value_delete("a/")
            store.key_value_delete("a/")
            assert store.key_value_dir_get_bytes("a/") == []
        leader = Leader(client, 1)
        following = Following(client, 1)
        for number in range(3 * AHEAD):
            leader.tell(Decision("note", {"number": number}))
        leader.stop()
        assert [arguments["number"] for arguments in following.end().did] == list(range(3 * AHEAD))
    finally:
        client.shutdown()
        service.shutdown()
