"""What a run tells: events, TensorBoard, and lines or a live bar on the terminal. Main rank alone."""

from __future__ import annotations

import math
import time
from collections import deque
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

from reelworks.run.events import EventLog
from reelworks.run.folder import RunFolder

_LINE_EVERY_SECONDS = 10.0
_SPEED_WINDOW = 50


class Recorder:
    """Writes the run's events; silent on every rank but the main one."""

    def __init__(self, run: RunFolder, *, main: bool, total_steps: int | None, first_step: int) -> None:
        self._main = main
        self._console = Console(stderr=False, highlight=False, quiet=not main)
        self._log = EventLog(run.events_file)
        # What a resume repeats must not stand in the curves twice.
        self._board = SummaryWriter(run.tensorboard_folder, purge_step=first_step + 1) if main else None
        self._bar = _bar(self._console) if main and self._console.is_terminal else None
        self._task: TaskID | None = None
        self._total = total_steps
        self._step = first_step
        self._recent: deque[tuple[float, int]] = deque(maxlen=_SPEED_WINDOW)
        self._last_line = 0.0
        self._lost_events = False

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("training", total=self._total, completed=self._step, now="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._board is not None:
            self._board.close()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, markup=False, soft_wrap=True)

    def event(self, kind: str, **fields: Any) -> None:
        """Write an event; numbers that are not finite become null, which JSON can say."""
        if not self._main:
            return
        try:
            self._log.write(kind, **_finite(fields))
        except OSError as error:
            # A full disk is no reason to end a training; its reports will have a gap.
            if not self._lost_events:
                self.say(f"warning: events cannot be written ({error}); going on without")
            self._lost_events = True

    def scalars(self, step: int, **values: float) -> None:
        """Write curves; `a__b` becomes `a/b`."""
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name.replace("__", "/"), value, step)

    def step(self, step: int, *, loss: float, clips: int, bucket: str, log_every: int) -> None:
        """Show a finished step."""
        now = time.monotonic()
        self._recent.append((now, clips))
        text = f"loss {loss:.4f}  {self._speed():.1f} clips/s  {bucket}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, now=text)
        elif step == self._total or (step % log_every == 0 and now - self._last_line >= _LINE_EVERY_SECONDS):
            self._last_line = now
            of = f"/{self._total}" if self._total else ""
            self.say(f"step {step}{of}  {text}{self._eta(step)}")

    def _speed(self) -> float:
        if len(self._recent) < 2:
            return 0.0
        seconds = self._recent[-1][0] - self._recent[0][0]
        return sum(clips for _, clips in list(self._recent)[1:]) / max(seconds, 1e-9)

    def _eta(self, step: int) -> str:
        if self._total is None or len(self._recent) < 2:
            return ""
        per_step = (self._recent[-1][0] - self._recent[0][0]) / (len(self._recent) - 1)
        return f"  ETA {_clock(per_step * max(self._total - step, 0))}"


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[now]}"),
        TimeRemainingColumn(),
        console=console,
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
