"""Find the gaps of a trace, in which the GPU did nothing, because the host was late with its next work."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from reelworks.core import units

LARGE = 0.02  # of a step; smaller gaps are not listed
_DEVICE_WORK = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))


class Gap(NamedTuple):
    """A time without work of the device, between two pieces of work."""

    begin_ms: float  # from the first work of the trace
    ms: float
    after: str
    before: str


@dataclass(frozen=True)
class Idle:
    """Time in which the device did nothing in the steps of a trace.

    Attributes:
        step_ms: Mean duration of a step.
        share: Share of the time in which the device did nothing.
        gaps: Gaps of more than `LARGE` of a step, the longest first.
    """

    step_ms: float
    share: float
    gaps: list[Gap]

    def __str__(self) -> str:
        idle = f"the GPU did nothing for {self.share:.1%} of {self.step_ms:.1f} ms a step"
        if not self.gaps:
            return f"{idle}, and never for more than {LARGE:.0%} of a step at once"
        longest = self.gaps[0]
        return (
            f"{idle}; {units.plural(len(self.gaps), 'gap', 'are')} longer than {LARGE:.0%} of a step, the longest {longest.ms:.2f} ms, "
            f"between {longest.after} and {longest.before}"
        )


class _Work(NamedTuple):
    begin: float  # microseconds
    end: float
    name: str


def of_file(file: Path, steps: int) -> Idle | None:
    """Read a compressed trace of torch's profiler over some steps; None if it has no work of a GPU."""
    with gzip.open(file, "rt", encoding="utf-8") as f:
        return of_events(json.load(f)["traceEvents"], steps)


def of_events(events: Iterable[dict[str, Any]], steps: int) -> Idle | None:
    """Return what lies between the pieces of work of a trace's events, over all streams; None if there are none."""
    work = sorted(
        (
            _Work(float(e["ts"]), float(e["ts"]) + float(e.get("dur", 0)), str(e["name"]))
            for e in events
            if e.get("ph") == "X" and e.get("cat") in _DEVICE_WORK
        ),
        key=attrgetter("begin"),
    )
    if not work:
        return None
    begin, last = work[0].begin, work[0]
    gaps = []
    for each in work[1:]:
        if each.begin > last.end:
            gaps.append(Gap((last.end - begin) / 1000, (each.begin - last.end) / 1000, last.name, each.name))
        last = max(last, each, key=attrgetter("end"))
    whole_ms = (last.end - begin) / 1000
    step_ms = whole_ms / steps
    large = sorted((gap for gap in gaps if gap.ms > LARGE * step_ms), key=lambda gap: -gap.ms)
    return Idle(step_ms, sum(gap.ms for gap in gaps) / whole_ms if whole_ms else 0.0, large)
