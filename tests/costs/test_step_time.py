"""Step times against the sums they abbreviate, and the fit against a closed loop played step by step."""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.core.errors import ConfigError
from harness.costs.draws import Uniforms
from harness.costs.step_time import (
    Chip,
    DecodeLaw,
    PrefillLaw,
    ServingRow,
    TrainLaw,
    TransferLaw,
    Transformer,
    fit_step_time,
    jitter,
)

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
seconds = st.floats(0, 0.1)

V6E = Chip(flops_per_s=918e12, hbm_bytes_per_s=1638e9)
LLAMA = Transformer(parameters=70.6e9, layers=80, kv_heads=8, head_dim=128)
ROW = ServingRow(chips=8, concurrency=64, input_tokens=1000, output_tokens=1000, time_per_output_token_s=0.02535)
MFU = 0.503


@SETTINGS
@given(seconds, seconds, seconds, st.floats(0, 1e-5), st.integers(1, 60), st.integers(1, 200), st.integers(0, 10**6))
def test_a_chunk_is_the_sum_of_its_steps(base, weights, per_sequence, per_kv, steps, batch, kv):
    law = DecodeLaw(base_s=base, weights_s=weights, per_sequence_s=per_sequence, per_kv_token_s=per_kv)
    slow = math.fsum(law.step_s(batch, kv + batch * i) for i in range(steps))
    assert law.chunk_s(steps, batch, kv) == pytest.approx(slow, rel=1e-9, abs=1e-12)
    assert law.chunk_ns(steps, batch, kv) >= 1


@SETTINGS
@example(base=0.1, per_kv=0.0, batch=1, kv=0, budget=0.7)
@example(base=1e-4, per_kv=1e-300, batch=1, kv=0, budget=5.0)
@example(base=0.0, per_kv=1e-6, batch=4, kv=0, budget=0.0)
@given(st.floats(1e-4, 0.1), st.floats(0, 1e-6), st.integers(1, 64), st.integers(0, 10**5), st.floats(0, 5))
def test_steps_within_a_budget_are_the_most_that_fit(base, per_kv, batch, kv, budget):
    law = DecodeLaw(base_s=base, per_kv_token_s=per_kv)
    steps = law.steps_within(budget, batch, kv)
    assert law.chunk_s(steps, batch, kv) <= budget
    assert law.chunk_s(steps + 1, batch, kv) > budget


def test_memory_and_arithmetic_hide_each_other():
    law = DecodeLaw(base_s=1.0, weights_s=4.0, per_sequence_s=1.0)
    assert [law.step_s(batch, 0) for batch in (1, 4, 5, 8)] == [5, 5, 6, 9]


def closed_loop(decode: DecodeLaw, prefill: PrefillLaw, row: ServingRow, requests: int) -> tuple[float, float]:
    """(total seconds, mean seconds per output token) of a closed loop, step by step.

    At most one waiting request is prefilled before each decode step, so that slots turn over one after another, as they do in
    an engine with a budget of prefill tokens a step.
    """
    now, waiting, step, context = 0.0, requests, 0, 0
    spans: list[float] = []
    running: deque[tuple[int, float]] = deque()  # (last step, time of the first token): equal lengths end in order
    while waiting or running:
        if waiting and len(running) < row.concurrency:
            now += prefill.prefill_s(row.input_tokens)
            waiting -= 1
            running.append((step + row.output_tokens - 1, now))
            context += row.input_tokens
        context += len(running)
        now += decode.step_s(len(running), context)
        step += 1
        while running and running[0][0] == step:
            spans.append(now - running.popleft()[1])
            context -= row.input_tokens + row.output_tokens - 1
    return now, fmean(spans) / (row.output_tokens - 1)


def test_the_fit_gives_back_its_row_in_a_closed_loop():
    decode, prefill = fit_step_time(ROW, LLAMA, V6E, prefill_efficiency=MFU)
    total_s, per_token_s = closed_loop(decode, prefill, ROW, 3000)
    assert per_token_s == pytest.approx(0.02535, rel=0.01)  # fitted
    assert total_s == pytest.approx(1202.5, rel=0.02)  # predicted
    assert 3000 * 1000 / total_s == pytest.approx(2494.8, rel=0.02)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(2, 24), st.integers(50, 400), st.integers(40, 120), st.floats(0.004, 0.02), st.floats(1e-6, 2e-5))
def test_the_fit_finds_the_law_that_made_a_row(concurrency, inputs, outputs, base_s, per_token_s):
    """Rows made by a known law: the residual is found again, stalls by others' prefills and all."""
    chip = Chip(flops_per_s=2 * 1e9 / per_token_s, hbm_bytes_per_s=1e12)
    model = Transformer(parameters=1e9, layers=10, kv_heads=4, head_dim=64)
    truth, prefill = fit_step_time(
        ServingRow(chips=1, concurrency=1, input_tokens=1, output_tokens=2, time_per_output_token_s=1.0),
        model,
        chip,
        prefill_efficiency=1.0,
    )
    truth = truth.model_copy(update={"base_s": base_s})
    shape = ServingRow(
        chips=1, concurrency=concurrency, input_tokens=inputs, output_tokens=outputs, time_per_output_token_s=1.0
    )
    _, tpot = closed_loop(truth, prefill, shape, 12 * concurrency)
    row = shape.model_copy(update={"time_per_output_token_s": tpot})
    found, _ = fit_step_time(row, model, chip, prefill_efficiency=1.0)
    assert found.step_s(concurrency, 0) == pytest.approx(truth.step_s(concurrency, 0), rel=0.04)


def test_physics_of_the_published_row():
    decode, prefill = fit_step_time(ROW, LLAMA, V6E, prefill_efficiency=MFU)
    assert LLAMA.kv_bytes_per_token == 327_680
    assert decode.weights_s == pytest.approx(2 * 70.6e9 / (8 * 1638e9))
    assert prefill.per_token_s == decode.per_sequence_s == pytest.approx(2 * 70.6e9 / (8 * 918e12 * MFU))
    assert decode.base_s > 0


def test_a_row_faster_than_physics_is_refused():
    with pytest.raises(ConfigError) as caught:
        fit_step_time(ROW.model_copy(update={"time_per_output_token_s": 0.005}), LLAMA, V6E, prefill_efficiency=MFU)
    assert "at least 0.0" in str(caught.value)


def test_jitter_has_mean_one_and_belongs_to_its_step():
    draws = Uniforms(7)
    law = TrainLaw(base_s=2.0, per_sample_s=0.5, per_token_s=0.001, cv=0.2)
    factors = [law.factor(draws, "train", step) for step in range(4000)]
    assert fmean(factors) == pytest.approx(1, abs=4 * 0.2 / math.sqrt(4000))
    assert fmean(f * f for f in factors) - 1 == pytest.approx(0.04, abs=0.006)
    assert factors[17] == jitter(0.2, Uniforms(7), "train", 17)
    assert TrainLaw(base_s=1.0).factor(draws, "train", 3) == 1.0


def test_micro_batches_of_a_step_add_up_to_the_step():
    law = TrainLaw(base_s=2.0, per_sample_s=0.5, per_token_s=0.001)
    whole = law.pass_s(8, 4000)
    assert whole == 2 + 4 + 4
    assert law.pass_s(3, 1500, last=False) + law.pass_s(5, 2500) == pytest.approx(whole)
    assert law.pass_ns(8, 4000, 1.5) == 15_000_000_000
    assert TransferLaw(base_s=1.0, bytes_per_s=10.0).transfer_ns(50) == 6_000_000_000
