"""Write a trace of some steps, which https://ui.perfetto.dev and chrome://tracing show (`reelworks train --profile`)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from reelworks.core import storage
from reelworks.core.log import logger
from reelworks.training.observers import trace_gaps
from reelworks.training.observers.observer import Pause, StepObserver, TrainedStep, Training

_MOST_GAPS = 20  # in the event


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
        idle = trace_gaps.of_file(file, step - self._began + 1) if self._device.type == "cuda" else None
        gaps = {} if idle is None else {"idle_share": idle.share, "gaps": [g._asdict() for g in idle.gaps[:_MOST_GAPS]]}
        self._log.event("profile", step=step, file=file.name, first=self._began, last=step, **gaps)
        logger.info(f"steps {self._began} to {step} are traced in {file}; https://ui.perfetto.dev shows it")
        if idle is not None:
            logger.info(str(idle))
