from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from standin import TODAY, Pipeline

from harness.tuning.measured import gain, idle_change, measure

PROFILE = settings(derandomize=True, deadline=None, max_examples=40)
DEEP = TODAY | {"pipeline.max_staleness": 3, "pipeline.pipeline_depth": 3}

pipelines = st.builds(
    Pipeline,
    generate_s=st.floats(1, 20),
    train_s=st.floats(1, 20),
    common=st.floats(0, 0.5),
    own=st.floats(0, 0.5),
    waste=st.floats(0, 0.1),
)
replications = st.integers(1, 6)


@PROFILE
@given(pipelines, replications)
def test_every_chip_second_is_in_one_class(pipeline: Pipeline, n: int) -> None:
    measured = measure([pipeline(DEEP, seed, 20) for seed in range(n)])
    classes = ("kept", "in_flight", "discarded", "overhead", "idle")
    assert math.isclose(math.fsum(measured.share(klass) for klass in classes), 1.0)
    assert math.isclose(measured.share("idle"), measured.idle_share.mean, abs_tol=1e-12)
    assert math.isclose(math.fsum(share for _, share in measured.causes("idle")), measured.share("idle"), abs_tol=1e-12)
    assert [share for _, share in measured.causes("idle")] == sorted((s for _, s in measured.causes("idle")), reverse=True)


@PROFILE
@given(pipelines, replications)
def test_a_gain_is_the_ratio_of_the_rates(pipeline: Pipeline, n: int) -> None:
    before, after = ([pipeline(setting, seed, 20) for seed in range(n)] for setting in (TODAY, DEEP))
    one, two = measure(before), measure(after)
    ratio = two.kept_groups_per_chip_s.mean / one.kept_groups_per_chip_s.mean
    assert math.isclose(gain(before, after).mean, ratio - 1, abs_tol=1e-9)
    change = idle_change(before, after)
    assert math.isclose(change.mean, two.idle_share.mean - one.idle_share.mean, abs_tol=1e-9)
    assert gain(before, before).mean == 0
    assert math.isinf(change.half_width) is (n == 1)


def test_pairs_cancel_what_seeds_share() -> None:
    noisy = Pipeline(common=0.5, own=0.0)
    before, after = ([noisy(setting, seed, 20) for seed in range(5)] for setting in (TODAY, DEEP))
    assert gain(before, after).half_width < 1e-6
    assert measure(after).kept_groups_per_chip_s.relative_half_width > 0.1


def test_fuller_batches_show_in_tokens_per_busy_chip_second() -> None:
    run = Pipeline(common=0.0, own=0.0)(TODAY, 1, 20)
    busy_s = (run.chip_total_ns - run.chip_ns["idle:generation"] - run.chip_ns["idle:tools"]) / 1e9
    assert math.isclose(measure([run, run]).tokens_per_busy_chip_s, run.tokens_made / busy_s)
