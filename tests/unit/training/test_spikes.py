"""Spikes are found by statistics that outliers do not move, and the detector's state is exact."""

from __future__ import annotations

import numpy as np
import pytest

from reelworks.training.step import spikes
from reelworks.training.step.spikes import Spike, SpikeClip, SpikeDetector, SpikeGroup


def values(count: int, level: float, seed: int = 0) -> list[float]:
    return (level * np.random.default_rng(seed).lognormal(sigma=0.3, size=count)).tolist()


def add(detector: SpikeDetector, losses: dict[str, float], norm: float, largest: str, kind: str = "") -> Spike | None:
    groups = {SpikeGroup(bucket, kind): loss for bucket, loss in losses.items()}
    return detector.add(groups, norm, SpikeGroup(largest, kind), threshold=8)


def test_only_values_far_above_those_of_their_bucket_are_spikes():
    """A loss that is usual in one bucket is a spike in another; a low one never is."""
    detector = SpikeDetector()
    for small, large in zip(values(60, 0.1), values(60, 2.0, seed=1), strict=True):
        assert add(detector, {"a": small}, 1.0, "a") is None
        add(detector, {"b": large}, 5.0, "b")
    assert add(detector, {"b": 2.5, "a": 0.05}, 5.0, "b") is None
    found = add(detector, {"a": 2.5}, 1.0, "a")
    assert (found.what, found.group.bucket, found.value) == ("loss", "a", 2.5)
    past = np.array([*values(60, 0.1), 0.05])
    median = np.median(past)
    assert found.usual == pytest.approx(median)
    spread, logs = 1.4826 * np.median(abs(past - median)), np.log(past)
    skewed = np.exp(np.median(logs) + 4 * 1.4826 * np.median(abs(logs - np.median(logs))))
    assert found.limit == pytest.approx(max(median + 8 * max(spread, 0.1 * median), skewed))
    assert add(detector, {"a": 0.1}, 40.0, "b").what == "grad_norm"


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_run_of_small_batches_has_no_spike(sigma: float, seed: int) -> None:
    """Losses that depend on the timestep, and gradient norms that grow from zero with a LoRA, of 300 steps."""
    detector, random = SpikeDetector(), np.random.default_rng(seed)
    for step in range(1, 301):
        noise = min(step, 100) / 100 * np.exp(np.clip(random.normal(size=2), -3, 3) * [sigma, sigma / 2])
        told = add(detector, {"a": 0.1 * noise[0] / min(step, 100) * 100}, float(noise[1]), "a")
        assert told is None, (step, told)
    assert add(detector, {"a": 100.0}, 1.0, "a").what == "loss"
    assert add(detector, {"a": 0.1}, 1000.0, "a").what == "grad_norm"


def test_a_rare_bucket_is_compared_with_all_until_it_has_values_of_its_own():
    detector = SpikeDetector()
    for i in range(60):
        assert add(detector, {f"bucket {i % 12}": 1.0 + 0.1 * (i % 7)}, 1.0, "x") is None
    assert add(detector, {"new": 30.0}, 1.0, "x").group.bucket == "new"


def test_losses_of_clips_of_another_kind_are_no_spikes():
    """Errors against the base begin at 0, and lie far below those of pictures: each is compared with its own kind."""
    detector = SpikeDetector()
    for i in range(90):
        kind, level = ("preserved", 1e-6 * i**2) if i % 3 else ("", 1.0 + 0.1 * (i % 7))
        assert add(detector, {"ab"[i % 2]: level}, 100 * level, "a", kind) is None, i
    assert add(detector, {"b": 30.0}, 1.0, "a").group == ("b", "")
    assert add(detector, {"b": 1.0}, 1e-3, "a", "preserved").group == ("b", "preserved")


def test_a_gradient_of_kinds_that_are_rarely_together_is_compared_with_all():
    """With many kinds, hardly a step has the kinds of another one; most norms here are of a kind whose level is low."""
    detector, random = SpikeDetector(), np.random.default_rng(0)
    for i in range(100):
        kind, level = ("", 1.0) if i % 3 else (f"kinds {i}", 500.0)
        assert add(detector, {"a": 1.0}, level * random.lognormal(sigma=0.3), "a", kind) is None, i
    for kind in "xy":  # a first spike hides no second one
        assert add(detector, {"a": 1.0}, 5e5, "a", kind).group == ("a", kind)
    assert add(detector, {"a": 1.0}, 500.0, "a", "z") is None


def test_a_calm_curve_and_a_new_level_are_no_series_of_spikes():
    detector = SpikeDetector()
    calm = [add(detector, {"a": 1 + 1e-6 * (i % 3)}, 1.0, "a") for i in range(50)]
    assert not any(calm)
    assert add(detector, {"a": 1.5}, 1.0, "a") is None, "half as much again is not far above"
    raised = [add(detector, {"a": 10.0}, 1.0, "a") is not None for _ in range(120)]
    assert 30 < sum(raised) < 60
    assert not any(raised[60:])


def test_one_loss_that_is_not_finite_leaves_no_trace():
    detector = SpikeDetector()
    for _ in range(30):
        add(detector, {"a": 1.0}, 1.0, "a")
    assert add(detector, {"a": float("nan")}, float("inf"), "a") is None
    assert all(np.isfinite(list(kept)).all() for kept in detector.recent.values())


def test_a_loaded_detector_decides_as_the_saved_one():
    one, other = SpikeDetector(), SpikeDetector()
    series = [*values(150, 1.0), 9.0, *values(20, 1.0, seed=2), 30.0, 1.0]
    for i, value in enumerate(series[:130]):
        add(one, {"a": value, "b": 2 * value}, 3 * value, "ab"[i % 2])
    other.load(one.to_bytes())
    rest = [[add(d, {"a": v}, v, "a") for v in series[130:]] for d in (one, other)]
    assert rest[0] == rest[1]
    assert sum(map(bool, rest[0])) >= 2


def test_clips_of_all_ranks_are_sorted_by_loss_and_bounded():
    detector = SpikeDetector()
    for _ in range(30):
        add(detector, {"a": 1.0}, 1.0, "a")
    parts = [[SpikeClip(i, f"{i}.mp4", float(i)) for i in range(50)], [SpikeClip(99, "worst.mp4", 1000.0)] * 30]
    spike = add(detector, {"a": 99.0}, 1.0, "a").with_clips(parts)
    assert len(spike.clips) == spikes.MAX_CLIPS
    assert spike.clips[0].path == "worst.mp4"
    assert "worst.mp4 (1000)" in str(spike)


def test_the_remedy_names_the_last_checkpoint_before_and_keeps_former_steps():
    assert "--resume 100 --set 'train.skip_steps=[[7, 9], [130, 130]]'" in spikes.remedy(130, [50, 100, 130], [[7, 9]])
    assert "--output DIR" in spikes.remedy(5, [], [])
    assert "--set 'stage.b.train.skip_steps=[[130, 130]]'" in spikes.remedy(130, [100], [], "b")
