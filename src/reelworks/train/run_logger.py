"""Log a run: events, TensorBoard curves, records of clips, and lines or a progress bar on the terminal."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

from reelworks.core import files, waiting_threads
from reelworks.data.loader import MicroBatch
from reelworks.data.position import DataPosition
from reelworks.distributed.mesh import World
from reelworks.recipe.dataset import RecipeData
from reelworks.run.events import EventLog
from reelworks.run.folder import RunFolder
from reelworks.run.records import Failure
from reelworks.schedule.plan import EpochPlan
from reelworks.train.segment_records import RecordKeeper
from reelworks.train.step import StepResult
from reelworks.train.validation import Validation

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


@dataclass
class Seen:
    """The micro-batches that a step took on this rank, without their frames."""

    batches: list[MicroBatch] = field(default_factory=list)

    def watch(self, source: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """Pass micro-batches on and remember them."""
        for batch in source:
            self.batches.append(replace(batch, frames=batch.frames[:0], companions={}))
            yield batch


@dataclass
class Journal:
    """Tells what happened, after it happened.

    Attributes:
        debug: Also log the clips of every step, a file for each rank.
    """

    run: RunFolder
    data: RecipeData
    world: World
    tell: Recorder
    records: RecordKeeper
    log_every: int
    debug: bool
    _told_of_spinning: bool = False

    def epoch_begins(self, position: DataPosition) -> None:
        """Tell the plan of an epoch, or of the rest of one."""
        self.tell.event(
            "epoch",
            step=position.global_step,
            generation=position.generation,
            epoch=position.epoch,
            segment=position.segment,
            planned=position.counts.planned,
            rows=position.plan.steps,
            plan=position.plan.digest(),
        )

    def step(self, done: DataPosition, step: int, result: StepResult, seen: Seen, seconds: float) -> None:
        """Tell a step.

        Args:
            done: The position whose row was trained.
            step: Optimizer steps done with this one.
            result: What it did.
            seen: What this rank took.
            seconds: Wall time.
        """
        buckets = self.data.table.buckets
        names = [buckets[i].name for i in result.loss_by_bucket]
        self.tell.event(
            "step",
            step=step,
            epoch=done.epoch,
            row=done.row,
            loss=result.loss,
            loss_by_bucket={buckets[i].name: loss for i, loss in result.loss_by_bucket.items()},
            learning_rate=result.learning_rate,
            grad_norm=result.grad_norm,
            clips=result.clips,
            repeated=result.repeats,
            tokens=sum(
                buckets[bucket].tokens * n for bucket, n in zip(*counted(done.plan, done.row), strict=True)
            ),
            seconds=seconds,
            buckets=names,
        )
        self.tell.scalars(
            step,
            train__loss=result.loss,
            train__grad_norm=result.grad_norm,
            train__learning_rate=result.learning_rate,
            train__clips_per_second=result.clips / seconds,
        )
        shown = names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "") if names else "no clip"
        self.tell.step(step, loss=result.loss, clips=result.clips, bucket=shown, log_every=self.log_every)
        self._tell_of_spinning()
        if not result.applied:
            self.tell.say(f"step {step} is skipped: {result.why_not}")
        if result.blame is not None:
            origin = result.blame.origin
            self.tell.event(
                "non_finite",
                step=step,
                what=origin and origin.what,
                module=origin and origin.path,
                clips=list(result.blame.clips),
            )
        failures = self._failures(done, step, seen) if result.failed else []
        self.records.step(done.row, result.applied, failures)
        if self.debug:
            self._clips(done, step, result, seen)

    def _tell_of_spinning(self) -> None:
        """Say once, on a CPU, that other processes slow training down more than they need to."""
        if self._told_of_spinning or self.world.device.type != "cpu" or waiting_threads.is_chosen():
            return
        threads = torch.get_num_threads() * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if torch.get_num_threads() > 1 and waiting_threads.is_busy(threads, share=1.0):
            self._told_of_spinning = True
            self.tell.say(
                f"warning: other processes keep this machine busy (load {os.getloadavg()[0]:.1f} on "
                f"{waiting_threads.cores()} cores), and threads that spin while they wait make steps many times slower: "
                "stop with Ctrl-C, set OMP_WAIT_POLICY=passive, and give the same command again"
            )

    def _failures(self, done: DataPosition, step: int, seen: Seen) -> list[Failure]:
        """Tell the clips that failed on any rank; returns those that are consumed by it."""
        mine = [
            {
                "uid": int(b.work.uids[i]),
                "copy": int(b.work.copies[i]),
                "showing": int(b.work.showing[i]),
                "path": str(b.work.requests[i].path),
                "reason": reason,
            }
            for b in seen.batches
            for i, reason in b.failures
        ]
        consumed: list[Failure] = []
        for failures in self.world.gather(mine):
            assert isinstance(failures, list)
            for failure in failures:
                self.tell.event("failure", step=step, **failure)
                self.tell.say(f"a clip could not be decoded: {failure['path']}: {failure['reason']}")
                if self.world.is_main:
                    path = self.run.coverage_folder / f"epoch-{done.epoch:06d}.jsonl"
                    with suppress(OSError):  # told above; a full disk ends no training
                        files.append_json_line(path, {"step": step, "became": "failed", **failure})
                if not failure["showing"]:
                    consumed.append(
                        Failure(
                            row=done.row,
                            uid=failure["uid"],
                            copy_index=failure["copy"],
                            reason=failure["reason"],
                        )
                    )
        return consumed

    def _clips(self, done: DataPosition, step: int, result: StepResult, seen: Seen) -> None:
        """With --debug: the clips that this rank trained in the step."""
        folder = self.run.path / "debug"
        folder.mkdir(exist_ok=True)
        trained = [
            {
                "uid": int(b.work.uids[i]),
                "copy": int(b.work.copies[i]),
                "showing": int(b.work.showing[i]),
                "path": str(b.work.requests[i].path),
            }
            for b in seen.batches
            for i in np.flatnonzero(b.counts.numpy()).tolist()
            if result.applied
        ]
        shapes = [str(b.work.shape) for b in seen.batches]
        line = {"step": step, "epoch": done.epoch, "row": done.row, "shapes": shapes, "trained": trained}
        files.append_json_line(folder / f"steps-rank-{self.world.rank:05d}.jsonl", line)

    def epoch_ends(self, position: DataPosition) -> None:
        """Account for every planned clip of the epoch.

        Raises:
            AssertionError: The account does not balance: clips got lost inside the trainer.
        """
        c = position.counts
        if self.world.is_main:
            self.records.end(position)
        self.tell.say(
            f"epoch {position.epoch}: {c.planned} planned = {c.trained} trained + {c.failed} failed "
            f"+ {c.skipped} skipped" + (f"; {c.repeated} shown again to fill batches" if c.repeated else "")
        )
        self.tell.event(
            "epoch_end",
            step=position.global_step,
            epoch=position.epoch,
            planned=c.planned,
            trained=c.trained,
            failed=c.failed,
            skipped=c.skipped,
            repeated=c.repeated,
        )
        if c.planned != c.trained + c.failed + c.skipped:
            raise AssertionError(f"clips are missing from the account of epoch {position.epoch}: {c}")

    def validation(self, step: int, result: Validation, seconds: float) -> None:
        """Tell a validation."""
        self.tell.event(
            "validation",
            step=step,
            loss=result.loss,
            loss_by_time=result.loss_by_time,
            clips=result.clips,
            seconds=seconds,
        )
        self.tell.scalars(step, validation__loss=result.loss)
        self.tell.say(f"step {step}  validation loss {result.loss:.4f} on {result.clips} clips")


def counted(plan: EpochPlan, row: int) -> tuple[list[int], list[int]]:
    """Bucket of each micro-batch in a row, over all ranks, and how many of its places count."""
    places = [plan.places(int(m)) for m in plan.micro_batches(row)]
    real = [int((plan.showing[where] >= 0).sum()) for where in places]
    return [int(plan.bucket[where.start]) for where in places], real
