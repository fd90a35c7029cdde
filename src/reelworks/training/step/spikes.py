"""Find steps whose loss or gradient norm lies far above what was usual before, by robust statistics.

A value is a spike if it is above median + threshold · spread of the recent values of its kind. The spread is the median
absolute deviation, scaled so that it equals the standard deviation of a normal distribution, but at least a tenth of the
median: the values of a calm run may hardly vary. Losses and gradient norms of small batches are skewed, since they depend
on the timestep, and gradient norms of a LoRA grow from zero: a healthy run often has values far above most. So a spike must
also lie above the limit that follows from the logarithms of the values, with half the threshold. Losses are compared within their bucket, and gradient norms with those
of steps whose largest bucket is the same, since shapes differ in both; and only with those of clips of the same kind
(`examples.KINDS`), gradient norms with those of steps that have the same kinds. As long as a bucket has few values, they are
compared with those of all buckets, and gradient norms of kinds that are rarely together with those of all kinds.

Spikes join the recent values, so that a level that stays is usual after half a window. All values are sums over ranks,
so all ranks find the same spikes; a checkpoint holds the recent values, so a resumed run does too.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from reelworks.core.errors import first_few
from reelworks.training.recipe import stages

WINDOW = 100  # recent values of each kind
FEWEST = 20  # with fewer values, those of all buckets decide, then those of every kind; with fewer of these, nothing is a spike
_ALL = ""  # in place of a bucket's name
MAX_CLIPS = 64  # clips of a spike that are recorded, those with the largest losses
_NORMAL = 1.4826  # standard deviation of a normal distribution by its median absolute deviation
_SMALLEST_SHARE = 0.1
_LARGEST = 700.0  # whose exponential is still a number
Measure = Literal["loss", "grad_norm"]


class SpikeGroup(NamedTuple):
    """Whose values are compared: the bucket, and the kind of the clips in words, of several of them for a gradient norm."""

    bucket: str
    kind: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, ("bucket " + self.bucket, self.kind)))


_EVERY = SpikeGroup(_ALL, "every kind")


class SpikeClip(NamedTuple):
    """A clip of a step, with its loss."""

    uid: int
    path: str
    loss: float


@dataclass(frozen=True)
class Spike:
    """A step whose loss or gradient norm is far above the usual.

    Attributes:
        what: The measure that is above its limit.
        group: Bucket and kind of the loss; largest bucket of the step, and all its kinds, for a gradient norm.
        value, usual, limit: The value, the median of the recent ones, and the highest value that would be no spike.
        clips: Clips of the step, of all ranks, by falling loss, those of the group if it is the loss; at most `MAX_CLIPS`.
    """

    what: Measure
    group: SpikeGroup
    value: float
    usual: float
    limit: float
    clips: tuple[SpikeClip, ...] = ()

    @property
    def name(self) -> str:
        """The measure in words."""
        return "loss" if self.what == "loss" else "gradient norm"

    def __str__(self) -> str:
        above = f"its {self.name} {self.value:.4g} is far above the recent {self.usual:.4g} ({self.group})"
        if not self.clips:
            return above
        return f"{above}; largest losses: {first_few([f'{clip.path} ({clip.loss:.4g})' for clip in self.clips])}"

    def with_clips(self, parts: Iterable[Any]) -> Spike:
        """Return the spike with the clips of all ranks."""
        clips = sorted((clip for part in parts for clip in part), key=lambda clip: (-clip.loss, clip.uid))
        return replace(self, clips=tuple(clips[:MAX_CLIPS]))


def remedy(step: int, checkpoints: Iterable[int], skip_steps: list[list[int]], stage: str = "") -> str:
    """Return the options of `reelworks train` that leave a step out, by the checkpoints and the steps skipped so far in its stage."""
    skips = json.dumps([*skip_steps, [step, step]])
    change = f"--set '{stages.of_stage('train.skip_steps', stage)}={skips}'"
    before = max((saved for saved in checkpoints if saved < step), default=None)
    if before is None:
        return f"begin again in another folder with --output DIR {change}, as no checkpoint is older"
    return f"stop, and give the same command with --resume {before} {change}"


def _limit_of_skewed(recent: Iterable[float], threshold: float) -> float:
    logarithms = [math.log(value) for value in recent if value > 0]
    if not logarithms:
        return -math.inf
    usual = statistics.median(logarithms)
    deviation = statistics.median(abs(past - usual) for past in logarithms)
    return math.exp(min(usual + threshold / 2 * _NORMAL * deviation, _LARGEST))


@dataclass
class SpikeDetector:
    """Recent values by measure and group, which decide whether the next ones are spikes.

    Examples:
        >>> detector = SpikeDetector()
        >>> group = SpikeGroup("480p")
        >>> calm = [detector.add({group: 0.5 + 0.01 * (i % 5)}, 1.0, group, threshold=8.0) for i in range(30)]
        >>> any(calm), detector.add({group: 4.0}, 1.0, group, threshold=8.0).what
        (False, 'loss')
    """

    recent: dict[tuple[str, SpikeGroup], deque[float]] = field(default_factory=dict)

    def add(
        self, losses: Mapping[SpikeGroup, float], grad_norm: float, of_norm: SpikeGroup, *, threshold: float
    ) -> Spike | None:
        """Add the values of a step, and return what was far above the usual, if anything was: the worst by its limit."""
        values: dict[tuple[Measure, SpikeGroup], float] = {("loss", group): loss for group, loss in losses.items()}
        values["grad_norm", of_norm] = grad_norm
        found = [spike for key, value in values.items() if (spike := self._add_value(key, value, threshold))]
        return max(found, key=lambda spike: spike.value / spike.limit, default=None)

    def _add_value(self, key: tuple[Measure, SpikeGroup], value: float, threshold: float) -> Spike | None:
        if not math.isfinite(value):
            return None
        what, group = key
        groups = [group, group._replace(bucket=_ALL), *([_EVERY] if what == "grad_norm" else [])]
        pools = [self.recent.setdefault((what, each), deque(maxlen=WINDOW)) for each in groups]
        first, spike = next((i for i, pool in enumerate(pools) if len(pool) >= FEWEST), None), None
        if first is not None:
            recent = pools[first]
            usual = statistics.median(recent)
            smallest = _SMALLEST_SHARE * abs(usual)
            limit = usual + threshold * smallest
            if value > limit:  # else the deviations need not be computed, in nearly all steps
                deviation = statistics.median(abs(past - usual) for past in recent)
                limit = max(usual + threshold * max(_NORMAL * deviation, smallest), _limit_of_skewed(recent, threshold))
            if groups[first] is _EVERY:  # kinds differ in size, and one value may be a spike
                limit = max(limit, threshold * sorted(recent)[-2])
            if value > limit:
                spike = Spike(what, group, value, usual, limit)
        for pool in pools:
            pool.append(value)
        return spike

    def to_bytes(self) -> bytes:
        """Return the recent values as JSON; numbers are exact."""
        return json.dumps(
            [[what, *group, list(values)] for (what, group), values in sorted(self.recent.items())]
        ).encode()

    def load(self, content: bytes) -> None:
        """Replace the recent values by those of `to_bytes`."""
        self.recent = {
            (what, SpikeGroup(*group)): deque(values, maxlen=WINDOW) for what, *group, values in json.loads(content)
        }
