"""Log a run: events, TensorBoard curves, records of clips, and lines or a progress bar on the terminal."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

from reelworks.core import files, log, waiting_threads
from reelworks.core.log import logger
from reelworks.data.loader import MicroBatch
from reelworks.data.position import DataPosition
from reelworks.distributed.mesh import World
from reelworks.recipe.dataset import RecipeData
from reelworks.run.events import EventLog
from reelworks.run.folder import RunFolder
from reelworks.run.records import Failure
from reelworks.schedule.plan import EpochPlan, PlanSpec
from reelworks.train.segment_records import RecordKeeper
from reelworks.train.step import StepResult
from reelworks.train.validation import Validation

_LINE_EVERY_SECONDS = 10.0
_SPEED_WINDOW = 50


class RunLogger:
    """Tells what happened, after it happened: to the run's files, and to people by the logger `reelworks`.

    Every rank has one; only the main rank's writes and draws. With it as a context the progress bar is there.

    Attributes:
        records: What became of each clip, kept on the main rank.
    """

    def __init__(
        self,
        run: RunFolder,
        data: RecipeData,
        world: World,
        *,
        recipe_name: str,
        first_step: int,
        total_steps: int | None,
        debug: bool = False,
    ) -> None:
        """Open what is written.

        Args:
            run: The run folder.
            data: What is trained on.
            world: This process among the others.
            recipe_name: File of this start's recipe, below `recipes/`.
            first_step: Optimizer steps done.
            total_steps: With which training ends, as far as it is known.
            debug: Also log the clips of every step, a file for each rank.
        """
        self.records = RecordKeeper(run, data, recipe_name)
        self._run, self._data, self._world, self._debug = run, data, world, debug
        self._recipe_name, self._first_step = recipe_name, first_step
        self._events = log.EventHandler(EventLog(run.events_file).write)
        # What a resume repeats must not stand in the curves twice.
        board = SummaryWriter(run.tensorboard_folder, purge_step=first_step + 1) if world.is_main else None
        self._board = board
        self._progress = _StepProgress(first_step, total_steps, data.recipe.train.log_every)
        self._has_warned_of_spinning = False

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if self._board is not None:
            self._board.close()

    def event(self, kind: str, **fields: Any) -> None:
        """Append an event to the run's log; may be called from any thread."""
        if not self._world.is_main:
            return
        record = log.event_record(kind, fields)
        # At once and not by way of a logger, which somebody may have disabled or set to another level.
        self._events.handle(record)
        if log.event_logger.isEnabledFor(logging.DEBUG):
            log.event_logger.handle(record)

    def start(self, spec: PlanSpec, *, threads: int, resumed_from: int | None) -> None:
        """Tell that training starts; the events of later steps are void from here on.

        Args:
            spec: What shapes the plans.
            threads: Of this process.
            resumed_from: Step of the checkpoint; None for a fresh start.
        """
        self.event(
            "start",
            step=self._first_step,
            world_size=self._world.size,
            micro_batches_per_step=spec.micro_batches_per_step,
            same_bucket_run=spec.same_bucket_run,
            threads=threads,
            device=str(self._world.device),
            recipe=self._recipe_name,
            resumed_from=resumed_from,
        )

    def epoch_begins(self, position: DataPosition) -> None:
        """Tell the plan of an epoch, or of the rest of one."""
        self.event(
            "epoch",
            step=position.global_step,
            generation=position.generation,
            epoch=position.epoch,
            segment=position.segment,
            planned=position.counts.planned,
            rows=position.plan.steps,
            plan=position.plan.digest(),
        )

    def step(self, position: DataPosition, result: StepResult, batches: Sequence[MicroBatch], seconds: float) -> None:
        """Tell a step.

        Args:
            position: Where it began: the row that was trained.
            result: What it did.
            batches: What this rank took.
            seconds: Wall time.
        """
        step = position.global_step + 1
        buckets = self._data.table.buckets
        names = [buckets[i].name for i in result.loss_by_bucket]
        counted = _counted_places(position.plan, position.row)
        self.event(
            "step",
            step=step,
            epoch=position.epoch,
            row=position.row,
            loss=result.loss,
            loss_by_bucket={buckets[i].name: loss for i, loss in result.loss_by_bucket.items()},
            learning_rate=result.learning_rate,
            grad_norm=result.grad_norm,
            clips=result.clips,
            repeated=result.repeats,
            tokens=sum(buckets[bucket].tokens * places for bucket, places in counted),
            seconds=seconds,
            buckets=names,
        )
        self._scalars(
            step,
            {
                "train/loss": result.loss,
                "train/grad_norm": result.grad_norm,
                "train/learning_rate": result.learning_rate,
                "train/clips_per_second": result.clips / seconds,
            },
        )
        shown = names[0] + (f" +{len(names) - 1}" if len(names) > 1 else "") if names else "no clip"
        self._progress.step(step, result, shown)
        self._warn_of_spinning()
        if not result.applied:
            logger.info("step %d is skipped: %s", step, result.why_not)
        if result.blame is not None:
            origin = result.blame.origin
            self.event(
                "non_finite",
                step=step,
                what=origin and origin.what,
                module=origin and origin.path,
                clips=list(result.blame.clips),
            )
        failures = self._failures(position, step, batches) if result.failed else []
        self.records.step(position.row, result.applied, failures)
        if self._debug:
            self._log_clips(position, step, result, batches)

    def epoch_ends(self, position: DataPosition) -> None:
        """Account for every planned clip of the epoch.

        Raises:
            AssertionError: The account does not balance: clips got lost inside the trainer.
        """
        c = position.counts
        if self._world.is_main:
            self.records.end(position)
        logger.info(
            f"epoch {position.epoch}: {c.planned} planned = {c.trained} trained + {c.failed} failed "
            f"+ {c.skipped} skipped" + (f"; {c.repeated} shown again to fill batches" if c.repeated else "")
        )
        self.event(
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
        self.event(
            "validation",
            step=step,
            loss=result.loss,
            loss_by_time=result.loss_by_time,
            clips=result.clips,
            seconds=seconds,
        )
        self._scalars(step, {"validation/loss": result.loss})
        logger.info(f"step {step}  validation loss {result.loss:.4f} on {result.clips} clips")

    def _scalars(self, step: int, values: dict[str, float]) -> None:
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def _warn_of_spinning(self) -> None:
        """Say once, on a CPU, that other processes slow training down more than they need to."""
        on_cpu = self._world.device.type == "cpu"
        if self._has_warned_of_spinning or not on_cpu or waiting_threads.is_chosen():
            return
        threads = torch.get_num_threads() * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if torch.get_num_threads() > 1 and waiting_threads.is_busy(threads, share=1.0):
            self._has_warned_of_spinning = True
            logger.warning(
                f"other processes keep this machine busy (load {os.getloadavg()[0]:.1f} on "
                f"{waiting_threads.cores()} cores), and threads that spin while they wait make steps many times slower: "
                "stop with Ctrl-C, set OMP_WAIT_POLICY=passive, and give the same command again"
            )

    def _failures(self, position: DataPosition, step: int, batches: Sequence[MicroBatch]) -> list[Failure]:
        """Tell the clips that failed on any rank; returns those that are consumed by it. Collective."""
        mine = [{**_clip(b, i), "reason": reason} for b in batches for i, reason in b.failures]
        consumed: list[Failure] = []
        for failures in self._world.gather(mine):
            assert isinstance(failures, list)
            for failure in failures:
                self.event("failure", step=step, **failure)
                logger.info("a clip could not be decoded: %s: %s", failure["path"], failure["reason"])
                if self._world.is_main:
                    path = self._run.coverage_folder / f"epoch-{position.epoch:06d}.jsonl"
                    with suppress(OSError):  # logged above; a full disk ends no training
                        files.append_json_line(path, {"step": step, "became": "failed", **failure})
                if not failure["showing"]:
                    consumed.append(
                        Failure(
                            row=position.row,
                            uid=failure["uid"],
                            copy_index=failure["copy"],
                            reason=failure["reason"],
                        )
                    )
        return consumed

    def _log_clips(self, position: DataPosition, step: int, result: StepResult, batches: Sequence[MicroBatch]) -> None:
        """Write the clips that this rank trained in the step, for --debug."""
        folder = self._run.path / "debug"
        folder.mkdir(exist_ok=True)
        trained = [_clip(b, i) for b in batches for i in np.flatnonzero(b.is_valid.numpy()).tolist() if result.applied]
        shapes = [str(b.work.shape) for b in batches]
        line = {
            "step": step,
            "epoch": position.epoch,
            "row": position.row,
            "shapes": shapes,
            "trained": trained,
        }
        files.append_json_line(folder / f"steps-rank-{self._world.rank:05d}.jsonl", line)


class _StepProgress:
    """Shows finished steps: by a bar on a terminal, elsewhere by a line from time to time.

    Args:
        first_step: Optimizer steps done.
        total_steps: With which training ends, as far as it is known.
        log_every: Steps from one line to the next, at least.
    """

    def __init__(self, first_step: int, total_steps: int | None, log_every: int) -> None:
        console = log.terminal()
        self._bar = _bar(console) if console is not None and console.is_terminal else None
        self._task: TaskID | None = None
        if self._bar is not None:
            self._task = self._bar.add_task("training", total=total_steps, completed=first_step, now="")
        self._total, self._log_every = total_steps, log_every
        self._recent: deque[tuple[float, int]] = deque(maxlen=_SPEED_WINDOW)  # time, clips
        self._last_line = 0.0

    def start(self) -> None:
        if self._bar is not None:
            self._bar.start()

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, step: int, result: StepResult, buckets: str) -> None:
        now = time.monotonic()
        self._recent.append((now, result.clips))
        text = f"loss {result.loss:.4f}  {self._speed():.1f} clips/s  {buckets}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=step, now=text)
            return
        is_due = step % self._log_every == 0 and now - self._last_line >= _LINE_EVERY_SECONDS
        if is_due or step == self._total:
            self._last_line = now
            of = f"/{self._total}" if self._total else ""
            logger.info(f"step {step}{of}  {text}{self._eta(step)}")

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


def note(batches: Iterable[MicroBatch], into: list[MicroBatch]) -> Iterator[MicroBatch]:
    """Pass micro-batches on, and note each of them without its frames."""
    for batch in batches:
        into.append(replace(batch, frames=batch.frames[:0], companions={}))
        yield batch


def _clip(batch: MicroBatch, place: int) -> dict[str, Any]:
    work = batch.work
    return {
        "uid": int(work.uids[place]),
        "copy": int(work.copies[place]),
        "showing": int(work.showing[place]),
        "path": str(work.requests[place].path),
    }


def _counted_places(plan: EpochPlan, row: int) -> list[tuple[int, int]]:
    """Bucket of each micro-batch in a row, over all ranks, and how many of its places count."""
    places = [plan.places(int(m)) for m in plan.micro_batches(row)]
    return [(int(plan.bucket[where.start]), int((plan.showing[where] >= 0).sum())) for where in places]
