"""Rounding of timestamps to ticks never looks like a variable rate, dropped frames always do."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelworks.data.media import probe

RATES = st.sampled_from([Fraction(r) for r in ("24000/1001", "24", "25", "30000/1001", "30", "50", "60", "120")])
TICKS = st.sampled_from([Fraction(1, 1000), Fraction(1, 600), Fraction(1, 90000), Fraction(1, 12800)])


def stamps(num_frames: int, rate: Fraction, tick: Fraction) -> list[int]:
    return [round(i / rate / tick) for i in range(num_frames)]


@given(RATES, TICKS, st.integers(2, 200), st.booleans(), st.randoms())
def test_even_frames_give_the_declared_rate(rate, tick, num_frames, declares, random) -> None:
    times = stamps(num_frames, rate, tick)
    random.shuffle(times)
    found = probe.measure(num_frames, times, 0, tick, rate if declares else None)
    assert not found.variable_fps
    span_ticks = float((num_frames - 1) / rate / tick)
    assert found.fps == pytest.approx(float(rate), rel=1e-9 if declares else 1.1 / span_ticks)
    assert found.duration_seconds == pytest.approx(num_frames / found.fps)


@given(RATES, TICKS, st.integers(4, 100), st.data())
def test_a_dropped_frame_is_a_variable_rate(rate, tick, num_frames, data) -> None:
    times = stamps(num_frames, rate, tick)
    del times[data.draw(st.integers(1, num_frames - 2))]
    found = probe.measure(num_frames - 1, times, 0, tick, rate)
    assert found.variable_fps
    assert found.duration_seconds == pytest.approx(num_frames / float(rate), abs=2.5 * float(tick))
    assert found.fps < float(rate)


def test_ticks_as_coarse_as_frames() -> None:
    assert not probe.measure(4, [0, 1, 2, 3], 1, Fraction(1, 25), Fraction(25)).variable_fps
    assert probe.measure(3, [0, 1, 3], 1, Fraction(1, 25), Fraction(25)).variable_fps


@pytest.mark.parametrize(
    ("times", "last", "declared", "expected"),
    [
        ([0], 40, None, (25.0, 0.04)),
        ([0], 0, Fraction(10), (10.0, 0.1)),
        ([0], 0, None, (0.0, 0.0)),
        ([], 0, Fraction(10), (10.0, 0.1)),
        ([7], 40, Fraction(-5), (25.0, 0.04)),
    ],
)
def test_without_a_span_the_container_is_asked(times, last, declared, expected) -> None:
    assert probe.measure(1, times, last, Fraction(1, 1000), declared)[:2] == pytest.approx(expected)


def test_a_wrong_declared_rate_is_not_believed() -> None:
    found = probe.measure(25, stamps(25, Fraction(25), Fraction(1, 1000)), 40, Fraction(1, 1000), Fraction(50))
    assert found.fps == pytest.approx(25)
