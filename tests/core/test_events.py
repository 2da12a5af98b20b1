from __future__ import annotations

import struct
from hashlib import blake2b

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.events import (
    BLOCK_EVENTS,
    EventKind,
    MemoryRecorder,
    NullRecorder,
    block_hashes,
    describe,
    encode,
    first_difference,
    log_hash,
)

QUIET = settings(max_examples=150, deadline=None, derandomize=True, database=None)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
EVENTS = st.tuples(st.integers(0, 2**62), st.sampled_from([int(k) for k in EventKind]), *[NUMBERS] * 6)
LOGS = st.lists(EVENTS, max_size=12)
SAMPLE = [(0, 1, 5, 99, 1, 2, 3, 0), (10**12, 2, -1, 0, 0, 0, -1, 2**63 - 1)]


def test_golden_encoding_and_hash():
    """They are part of the record's format."""
    assert encode(SAMPLE).hex() == "".join(
        f"{number & (2**64 - 1):016x}"[i : i + 2] for event in SAMPLE for number in event for i in range(14, -2, -2)
    )
    assert log_hash([]) == "0" * 32
    assert log_hash(SAMPLE) == "e5c2370cd54ddb13ef40a426ced04a4c"
    assert log_hash(SAMPLE * 600) == "aa7fe3a10bdf9112b1f385f8c61e8dc5"


@QUIET
@given(LOGS)
def test_encoding_reads_back(log):
    data = encode(log)
    assert len(data) == 64 * len(log)
    assert [event for event in struct.iter_unpack("<8q", data)] == log  # noqa: C416  # a list of tuples, spelled out


@QUIET
@given(LOGS, LOGS)
def test_first_difference_is_the_first(left, right):
    at = first_difference(left, right)
    if at is None:
        assert left == right
    else:
        assert left[:at] == right[:at]
        assert left[at : at + 1] != right[at : at + 1]
    assert (log_hash(left) == log_hash(right)) == (left == right)


@QUIET
@given(LOGS.filter(bool), st.data())
def test_any_changed_number_changes_the_hash_and_is_found(log, data):
    at = data.draw(st.integers(0, len(log) - 1))
    column = data.draw(st.integers(0, 7))
    changed = list(log)
    event = list(log[at])
    event[column] ^= 1
    changed[at] = tuple(event)
    assert log_hash(changed) != log_hash(log)
    assert first_difference(log, changed) == at


@pytest.mark.parametrize("length", [0, 1, BLOCK_EVENTS - 1, BLOCK_EVENTS, BLOCK_EVENTS + 1, 3 * BLOCK_EVENTS])
def test_hash_rolls_over_blocks(length):
    log = [(index, 99, index, 0, 0, 0, 0, 0) for index in range(length)]
    digest, digests = bytes(16), []
    for start in range(0, length, BLOCK_EVENTS):
        block = b"".join(struct.pack("<8q", *event) for event in log[start : start + BLOCK_EVENTS])
        digest = blake2b(digest + block, digest_size=16).digest()
        digests.append(digest)
    assert block_hashes(log) == digests
    assert log_hash(log) == digest.hex()


def test_logs_that_part_late_share_their_first_block_hashes():
    log = [(index, 99, 0, 0, 0, 0, 0, 0) for index in range(3 * BLOCK_EVENTS)]
    other = [*log[:-1], (0, 99, 1, 0, 0, 0, 0, 0)]
    assert [a == b for a, b in zip(block_hashes(log), block_hashes(other), strict=True)] == [True, True, False]


@pytest.mark.parametrize("bad", [(0,) * 7, (0,) * 9, (2**63, *(0,) * 7), (0.5, *(0,) * 7)])
def test_what_is_no_event_is_refused(bad):
    with pytest.raises(struct.error):
        encode([bad])


def test_recorders():
    memory, null = MemoryRecorder(), NullRecorder()
    memory.append_event(SAMPLE[0])
    memory.append_interval((0, 1, 2, 3, 4))
    null.append_event(SAMPLE[0])
    null.append_interval((0, 1, 2, 3, 4))
    assert (memory.events, memory.intervals, memory.enabled, null.enabled) == ([SAMPLE[0]], [(0, 1, 2, 3, 4)], True, False)


def test_an_event_is_described_by_name():
    assert describe(SAMPLE[0]) == "0 ns WORK_START 5 (99, 1, 2, 3, 0)"


def test_numbers_of_kinds_never_change():
    wanted = {
        "WORK_START": 1, "WORK_END": 2, "GROUP_ADMIT": 3, "EPISODE_START": 4, "EPISODE_END": 5, "GROUP_RELEASE": 6,
        "BUFFER_PUT": 7, "DROP": 8, "CONSUME": 9, "STEP": 10, "SYNC_START": 11, "SYNC_INSTALL": 12, "PUBLISHED": 13,
        "RETRY": 14, "CHECKPOINTED": 15, "EVALUATED": 16, "USER": 99,
    }  # fmt: skip
    assert {kind.name: int(kind) for kind in EventKind}.items() >= wanted.items()
