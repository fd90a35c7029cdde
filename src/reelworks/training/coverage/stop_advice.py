"""Advice to use an earlier checkpoint: from its step on, likeness to the training clips rises no more, but copying does.

A pure function of a series of measurements. Two series are compared with their own noise: a rise is told by the test of Mann
and Kendall, which asks only how many pairs of values are in rising order, at a level of 5 %. Nothing here stops a training.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAST_AFTER = 3  # measurements after the step, in which likeness did not rise
_KINDS = ("dinov2", "clip", "pixels")  # of likeness and closeness, the most telling first
_SIGNIFICANT = 1.645  # normal quantile of 95 %
_SECOND_DIFFERENCE = 0.6745 * math.sqrt(6)  # median of the absolute second difference of noise of deviation 1
_AS_NEAR = 2 / 3  # closeness of clips that lie as near to a training clip as these to each other
_NOISES = 2.0  # deviations by which a later value may be higher


@dataclass(frozen=True)
class Point:
    """Measurements of a step; None for what was not measured.

    Attributes:
        likeness: Similarity to the training clips; higher is better.
        closeness: Closeness to single training clips; lower is better.
        loss: Held-out loss.
    """

    step: int
    likeness: float | None = None
    closeness: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class StopAdvice:
    """The step to use, and why.

    Attributes:
        step: First step at which likeness had reached its height.
        reasons: What happened since, in sentences.
    """

    step: int
    reasons: list[str]

    def to_text(self) -> str:
        """Return the advice as one line."""
        return f"use step {self.step}: {'; '.join(self.reasons)}"


def advise(points: Iterable[Point]) -> StopAdvice | None:
    """Return the step to use if likeness rises no more and closeness or the held-out loss does; None to train on.

    Likeness rises no more from the first step that no later one exceeds by more than two standard deviations of its noise, and
    after which it has no rising trend, over 3 measurements at least. From that step on, closeness or the loss must rise
    significantly, closeness up to where clips lie nearer to a training clip than these to each other. Where the loss falls
    significantly, the model still learns.

    Examples:
        >>> rising = [0.2, 0.5, 0.8, 0.8, 0.8, 0.8]
        >>> copying = [0.4, 0.5, 0.6, 0.8, 1.1, 1.4]
        >>> points = [Point(100 * i, *pair) for i, pair in enumerate(zip(rising, copying))]
        >>> advise(points).step, advise(points[:5])
        (200, None)
    """
    known = sorted((p for p in points if p.likeness is not None), key=lambda p: p.step)
    likeness = [p.likeness for p in known if p.likeness is not None]
    first = _plateau(likeness)
    if first is None:
        return None
    since = known[first:]
    closeness, loss = (
        [value for p in since if (value := getattr(p, name)) is not None] for name in ("closeness", "loss")
    )
    if rises([-value for value in loss]):
        return None
    copies = rises(closeness) and closeness[-1] >= _AS_NEAR
    others = {"closeness": closeness if copies else [], "the held-out loss": loss if rises(loss) else []}
    rose = [f"{name} rose from {values[0]:.4g} to {values[-1]:.4g}" for name, values in others.items() if values]
    if not rose:
        return None
    later = max(likeness[first + 1 :])
    flat = f"likeness has not risen in the {len(since) - 1} measurements since ({likeness[first]:.4g}, then at most {later:.4g})"
    return StopAdvice(since[0].step, [flat, *rose])


def _plateau(values: Sequence[float]) -> int | None:
    """Return the index from which values rise no more, with enough values after it; None if they do."""
    tolerance, rising = _NOISES * _noise(values), _rising_from(values)
    for first in range(len(values) - LEAST_AFTER):
        if max(values[first + 1 :]) <= values[first] + tolerance and not rising[first]:
            return first
    return None


def rises(values: Sequence[float]) -> bool:
    """Whether values have a rising trend, by the one-sided test of Mann (1945) and Kendall; of fewer than 4 never."""
    return bool(values) and _rising_from(values)[0]


def _rising_from(values: Sequence[float]) -> list[bool]:
    """Return whether the values rise from each of them on."""
    found, score = [], 0  # pairs in rising order, less those in falling order
    for first, value in reversed(list(enumerate(values))):
        score += sum((later > value) - (later < value) for later in values[first + 1 :])
        n = len(values) - first
        found.append(n > LEAST_AFTER and (score - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18) > _SIGNIFICANT)
    return found[::-1]


def _noise(values: Sequence[float]) -> float:
    """Return the standard deviation of the noise of a series, by its second differences, in which a trend has no part."""
    bends = [abs(a - 2 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return statistics.median(bends) / _SECOND_DIFFERENCE if bends else 0.0


def points_of(measured: Mapping[int, Mapping[str, float | None]]) -> list[Point]:
    """Return the points of a series of metrics by step and name, such as likeness-dinov2, closeness-dinov2 and loss.

    Of several likenesses, that of DINOv2 is taken, else that of CLIP, else that of pixels, with the closeness of the same kind.
    """

    def known(step: int, name: str) -> float | None:
        value = measured[step].get(name)
        return value if value is not None and math.isfinite(value) else None

    kind = next((k for k in _KINDS if any(known(step, f"likeness-{k}") is not None for step in measured)), _KINDS[-1])
    return [
        Point(step, known(step, f"likeness-{kind}"), known(step, f"closeness-{kind}"), known(step, "loss"))
        for step in sorted(measured)
    ]


def of_events(events: Iterable[dict[str, Any]]) -> StopAdvice | None:
    """Return the advice for the metrics of previews and the validation losses in a run's events, starts among them.

    Only those of the stage that trains now are compared, and of these the ones that were measured on the same as the last.
    """
    # By kind, and by what it is measured on; that of the last event is the last.
    series: dict[str, dict[str, dict[int, dict[str, float | None]]]] = {}
    before = 0  # last step of the stages that have ended
    for event in events:
        if event["kind"] == "start":
            before = event.get("stage", {}).get("step", 0)
        elif event.get("is_comparable", True):
            measured_on, of_kind = event.get("measured_on", ""), series.setdefault(event["kind"], {})
            of_kind[measured_on] = measured = of_kind.pop(measured_on, {})
            measured[event["step"]] = event.get("values", {"loss": event.get("loss")})
    losses, metrics = (next(reversed(series.get(kind, {}).values()), {}) for kind in ("validation", "metrics"))
    steps = {step for step in losses.keys() | metrics.keys() if step > before or not before}
    return advise(points_of({step: losses.get(step, {}) | metrics.get(step, {}) for step in steps}))
