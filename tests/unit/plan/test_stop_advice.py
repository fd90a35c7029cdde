"""Advice comes when likeness has stopped rising and copying has not, and names the first step of that height."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from reelworks.training.coverage import stop_advice
from reelworks.training.coverage.stop_advice import Point, advise, points_of, rises

STEPS = 12


def series(
    rng: np.random.Generator, *, peak: int = STEPS, copies: bool = False, loss: bool = False, noise: float = 0.0
) -> list[Point]:
    """Likeness rises up to a measurement; after it, closeness or the loss rises, if asked for."""
    found = []
    for i in range(STEPS):
        after = max(i - peak, 0)
        likeness = 0.1 * min(i, peak) + noise * rng.normal()
        closeness = 0.5 + (0.1 * after if copies else 0) + noise * rng.normal()
        found.append(Point(100 * i, likeness, closeness, 1 + (0.1 * after if loss else 0) + noise * rng.normal()))
    return found


@given(st.integers(0, STEPS - 1), st.booleans(), st.booleans())
def test_without_noise_the_step_is_that_of_the_height(peak: int, copies: bool, loss: bool) -> None:
    points = series(np.random.default_rng(0), peak=peak, copies=copies, loss=loss)
    found = advise(points)
    if not (copies or loss) or peak > STEPS - 1 - 3:
        assert found is None
        return
    assert found is not None
    assert found.step == 100 * peak
    assert len(found.reasons) == 1 + copies + loss
    assert ("closeness rose" in found.to_text(), "the held-out loss rose" in found.to_text()) == (copies, loss)
    assert advise(reversed(points)) == found  # whatever the order that they are given in


@pytest.mark.parametrize(
    ("case", "least", "most"),
    [
        ({}, 0.0, 0.02),  # still rising
        ({"copies": True}, 0.0, 0.02),
        ({"peak": 0}, 0.0, 0.15),  # nothing happens: two tests at 5 %
        ({"peak": 4, "copies": True}, 0.9, 1.0),
        ({"peak": 4, "loss": True}, 0.9, 1.0),
    ],
)
def test_with_noise_of_a_third_of_a_rise_it_is_rarely_wrong(case: dict[str, Any], least: float, most: float) -> None:
    found = [advise(series(np.random.default_rng(seed), noise=0.03, **case)) for seed in range(200)]
    given_ = [each for each in found if each is not None]
    assert least <= len(given_) / len(found) <= most
    if least:
        near = [abs(each.step - 100 * case["peak"]) <= 200 for each in given_]
        assert np.mean(near) > 0.9


def test_a_model_that_still_learns_or_does_not_copy_is_no_reason_to_stop() -> None:
    """Likeness of a barely trained model is flat: its closeness drifts far from copies, or its held-out loss falls."""
    drift = [Point(i, 0.8, 0.598 + 0.002 * i, 1.0) for i in range(8)]
    assert advise(drift) is None
    copying = [Point(i, 0.8, 0.598 + 0.02 * i, 1.0) for i in range(8)]
    assert advise(copying) is not None
    assert advise([Point(p.step, p.likeness, p.closeness, 1.954 - 0.02 * p.step) for p in copying]) is None


@given(st.lists(st.integers(-3, 3), min_size=4, max_size=12))
def test_a_rise_is_that_of_kendalls_test(values: list[int]) -> None:
    """Where no values are equal, the statistic is that of scipy, at the normal quantile; equal ones make it stricter."""
    assert not rises(values[::-1]) or not rises(values)
    distinct = list(dict.fromkeys(values))
    n = len(distinct)
    if n > 3:
        tau = scipy.stats.kendalltau(range(n), distinct).statistic
        score = tau * n * (n - 1) / 2
        z = (score - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        assert rises(distinct) == (z > 1.645)
    assert not rises(values[:3])


def test_a_trend_is_that_of_what_follows_wherever_it_begins() -> None:
    values = [float(v) for v in np.random.default_rng(0).normal(size=60).cumsum()]
    assert stop_advice._rising_from(values) == [rises(values[i:]) for i in range(len(values))]


def test_points_are_those_of_the_most_telling_network_and_of_finite_values() -> None:
    measured: dict[int, dict[str, float | None]] = {
        100: {"likeness-pixels": 0.1, "closeness-pixels": 0.2, "loss": 3.0},
        200: {"likeness-clip": 0.3, "closeness-clip": math.nan, "loss": None},
    }
    assert points_of(measured) == [Point(100, None, None, 3.0), Point(200, 0.3, None, None)]
    assert points_of({}) == []
    assert advise([]) is None


def test_events_of_previews_and_validations_are_one_series() -> None:
    events = []
    for i in range(8):
        values = {"likeness-pixels": min(i, 3) / 4, "closeness-pixels": 0.5 + max(i - 3, 0) / 4}
        events += [{"kind": "metrics", "step": i, "values": values}, {"kind": "validation", "step": i, "loss": 1.0}]
    found = stop_advice.of_events([*events, {"kind": "step", "step": 9}])
    assert found is not None
    assert found.step == 3


def test_losses_that_lack_a_clip_now_and_then_interrupt_no_series() -> None:
    """The last ones are compared with all that were measured on the same."""
    events: list[dict[str, Any]] = []
    for i in range(10):
        values = {"likeness-pixels": 0.8, "closeness-pixels": 0.5}
        events.append({"kind": "metrics", "step": i, "values": values, "measured_on": "previews"})
        events.append(
            {"kind": "validation", "step": i, "loss": 1.0 + i, "measured_on": "some" if i in (7, 8) else "all"}
        )
    found, early = (stop_advice.of_events(events[:n]) for n in (20, 18))
    assert (found and found.step, early) == (0, None)


def test_measurements_of_an_earlier_stage_are_not_compared() -> None:
    """Each stage's loss has a level of its own; going back to an earlier stage takes up its series again."""

    def measured(steps: range, **values: float) -> list[dict[str, Any]]:
        return [{"kind": "metrics", "step": step, "values": values} for step in steps]

    def start(name: str, step: int, resumed_from: int) -> dict[str, Any]:
        return {"kind": "start", "step": resumed_from, "stage": {"name": name, "step": step}}

    begun = [start("a", 0, 0), *measured(range(1, 6), **{"likeness-pixels": 0.6, "closeness-pixels": 0.7})]
    events = [*begun, start("b", 5, 5), *measured(range(6, 11), **{"likeness-pixels": 0.6, "closeness-pixels": 0.9})]
    assert stop_advice.of_events(events) is None
    assert stop_advice.of_events([event for event in events if event["kind"] != "start"]) is not None
    rising = [measured(range(i, i + 1), **{"likeness-pixels": 0.6, "closeness-pixels": 0.7 + i}) for i in range(6, 10)]
    found = stop_advice.of_events(sum(rising, [*begun, start("b", 5, 5), start("a", 0, 5)]))
    assert found is not None
    assert found.step == 1
