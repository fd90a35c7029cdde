"""Speed of a run: one definition of throughput and of waiting for clips, for all that tell them.

Throughput is the clips that counted, by the wall time of the steps. A clip counts where it is in the loss of a step that was
applied: padding, repeats and clips that could not be decoded do not. The wall time of a step begins when its clips are asked
for and ends with its updated weights, so waiting for clips and for other ranks is in it. Loading, validation, saves and
previews lie between steps: they are in a run's training time, and not in its throughput.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from reelworks.core import units

TOLERATED_WAITED_SHARE = 0.2


class Speed(NamedTuple):
    """Clips that counted, wall time, and the part of it in which training waited for clips, of one step or of several.

    Examples:
        >>> Speed(clips=12, seconds=4.0, waited_seconds=1.0).clips_per_second
        3.0
    """

    clips: int
    seconds: float
    waited_seconds: float

    @property
    def clips_per_second(self) -> float | None:
        """Throughput; None if no time has passed."""
        return self.clips / self.seconds if self.seconds else None

    @property
    def waited_share(self) -> float | None:
        """Share of the wall time in which training waited for clips; None if no time has passed."""
        return self.waited_seconds / self.seconds if self.seconds else None

    @property
    def advice(self) -> str:
        """Tell what to change if training waited for clips for too much of its time, else nothing."""
        share = self.waited_share
        if share is None or share <= TOLERATED_WAITED_SHARE:
            return ""
        return (
            f"training waited for clips for {units.percent(share)} of its time: raise data.num_workers while cores are "
            "idle; if decode_p99_seconds is many times decode_p50_seconds in events.jsonl, raise data.prefetch_bytes; "
            "else lower data.fps, or use smaller files"
        )


def of_step(step: Mapping[str, Any]) -> Speed:
    """Return the speed of an event of the kind `step`."""
    clips = step.get("clips") or 0 if step.get("applied", True) else 0
    return Speed(clips, step.get("seconds") or 0.0, step.get("data_wait_seconds") or 0.0)


def total(speeds: Iterable[Speed]) -> Speed:
    """Return the speed of several steps together."""
    clips, seconds, waited = 0, 0.0, 0.0
    for each in speeds:
        clips, seconds, waited = clips + each.clips, seconds + each.seconds, waited + each.waited_seconds
    return Speed(clips, seconds, waited)
