"""Write a trace of some steps, which https://ui.perfetto.dev and chrome://tracing show (`reelworks train --profile`), and find its gaps.

In a gap, the GPU did nothing, because the host was late with its next work.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from reelworks.core import storage, units
from reelworks.core.log import logger
from reelworks.training.observers.observer import Pause, StepObserver, TrainedStep, Training

_MOST_GAPS = 20  # in the event
_LARGE = 0.02  # of a step; smaller gaps are not listed
_DEVICE_WORK = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))


class StepProfiler(StepObserver):
    """Profile a range of steps with torch's profiler, on the main rank: operators, kernels, and their shapes."""

    def __init__(self, steps: tuple[int, int] | None, training: Training) -> None:
        world = training.world
        self._steps = steps if world.is_main else None
        self._folder, self._log, self._device = training.folder.profiles_folder, training.log, world.device
        self._running: Any = None
        self._began = 0

    def before_step(self, step: int) -> None:
        """Begin with the first step of the range, or within it if a resume has passed that."""
        if self._steps is None or self._running is not None or not self._steps[0] <= step <= self._steps[1]:
            return
        from torch.profiler import ProfilerActivity, profile  # its first use takes long

        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])
        self._running, self._began = profile(activities=activities, record_shapes=True), step
        self._running.__enter__()

    def after_step(self, step: TrainedStep) -> None:
        """Write the trace after the last step of the range."""
        if self._running is not None and self._steps is not None and step.number >= self._steps[1]:
            self._close(step.number)

    def end(self, now: Pause) -> None:
        """Write what was profiled, if anything was."""
        self._close(now.step)

    def _close(self, step: int) -> None:
        if self._running is None:
            return
        profiler, self._running, self._steps = self._running, None, None
        profiler.__exit__(None, None, None)
        file = self._folder / f"steps-{self._began}-{step}.json.gz"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".", dir=self._folder) as beside:
                profiler.export_chrome_trace(str(written := Path(beside, file.name)))
                storage.rename(written, file)
        except (OSError, RuntimeError) as error:
            logger.warning("the trace could not be written (%s)", error)
            return
        idle = idle_of_file(file, step - self._began + 1) if self._device.type == "cuda" else None
        gaps = {} if idle is None else {"idle_share": idle.share, "gaps": [g._asdict() for g in idle.gaps[:_MOST_GAPS]]}
        self._log.event("profile", step=step, file=file.name, first=self._began, last=step, **gaps)
        logger.info(f"steps {self._began} to {step} are traced in {file}; https://ui.perfetto.dev shows it")
        if idle is not None:
            logger.info(str(idle))


class Gap(NamedTuple):
    """A time without work of the device, between two pieces of work."""

    begin_ms: float  # from the first work of the trace
    ms: float
    after: str
    before: str


@dataclass(frozen=True)
class _Idle:
    """Time in which the device did nothing in the steps of a trace.

    Attributes:
        step_ms: Mean duration of a step.
        share: Share of the time in which the device did nothing.
        gaps: Gaps of more than `_LARGE` of a step, the longest first.
    """

    step_ms: float
    share: float
    gaps: list[Gap]

    def __str__(self) -> str:
        idle = f"the GPU did nothing for {self.share:.1%} of {self.step_ms:.1f} ms a step"
        if not self.gaps:
            return f"{idle}, and never for more than {_LARGE:.0%} of a step at once"
        longest = self.gaps[0]
        return (
            f"{idle}; {units.plural(len(self.gaps), 'gap', 'are')} longer than {_LARGE:.0%} of a step, the longest {longest.ms:.2f} ms, "
            f"between {longest.after} and {longest.before}"
        )


class _Work(NamedTuple):
    begin: float  # microseconds
    end: float
    name: str


def idle_of_file(file: Path, steps: int) -> _Idle | None:
    """Read a compressed trace of torch's profiler over some steps; None if it has no work of a GPU."""
    with gzip.open(file, "rt", encoding="utf-8") as f:
        return idle_of_events(json.load(f)["traceEvents"], steps)


def idle_of_events(events: Iterable[dict[str, Any]], steps: int) -> _Idle | None:
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
    large = sorted((gap for gap in gaps if gap.ms > _LARGE * step_ms), key=lambda gap: -gap.ms)
    return _Idle(step_ms, sum(gap.ms for gap in gaps) / whole_ms if whole_ms else 0.0, large)
