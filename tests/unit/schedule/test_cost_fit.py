"""The fitted time of a micro-batch is that of the measurements, never falls with size, and is judged by unseen shapes."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from reelworks.data.schedule.cost_fit import BatchTime, CostModel, Timing, fit, held_out_errors

coefficients = st.floats(0, 100, allow_subnormal=False)
shapes = st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 64)), min_size=6, max_size=12, unique=True)


@given(st.builds(CostModel, coefficients, coefficients, coefficients, coefficients), shapes)
def test_exact_times_are_met(model: CostModel, made: list[tuple[int, int]]) -> None:
    timings = [Timing(tokens, size, model.milliseconds(tokens, size) + 1e-3) for tokens, size in made]
    assert max(map(abs, fit(timings).residuals(timings))) < 1e-2


@given(st.lists(st.builds(Timing, st.integers(1, 4000), st.integers(1, 64), st.floats(1e-3, 1e5)), min_size=1))
def test_a_larger_micro_batch_never_costs_less(timings: list[Timing]) -> None:
    model = fit(timings)
    assert min(vars(model).values()) >= 0
    assert max(vars(model).values()) > 0


@given(st.floats(0, 100), st.floats(0, 100), st.integers(1, 64), st.floats(1e-3, 1e5))
def test_a_time_through_a_point_keeps_a_part_of_the_clips(batch: float, clip: float, clips: int, ms: float) -> None:
    """Of nothing but the batch, what buckets cost that were not measured could not be told."""
    assume(batch + clip > 1e-3)
    made = BatchTime(batch, clip).through(clips, ms)
    assert made.milliseconds(clips) == pytest.approx(ms)
    assert clips * made.per_clip == pytest.approx(max(clips * clip / (batch + clips * clip), 0.01) * ms)


def test_a_shape_is_predicted_from_the_others() -> None:
    model = CostModel(per_batch=5, per_clip=2, per_token=0.1, per_token_squared=1e-4)
    timings = [Timing(n, b, model.milliseconds(n, b)) for n in (16, 64, 256, 1024) for b in (1, 3)]
    assert max(map(abs, held_out_errors(timings).values())) < 1e-6
    odd = [t._replace(milliseconds=2 * t.milliseconds) if (t.tokens, t.batch_size) == (256, 3) else t for t in timings]
    assert held_out_errors(odd)[256] == pytest.approx(-0.5)
