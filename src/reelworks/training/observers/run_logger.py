"""Log a run: events, curves for TensorBoard and other trackers, records of clips, and progress on the terminal."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from reelworks.core import device_memory, files, log, machine, units
from reelworks.core.log import logger
from reelworks.data.distributed.mesh import World
from reelworks.data.loader import failures, step_source
from reelworks.data.loader.micro_batch import StreamState
from reelworks.data.loader.position import Counts, DataPosition
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.data.run.records import RecordedFailure
from reelworks.data.schedule.plan import PlanSpec
from reelworks.models.objectives.config import NUM_TIMESTEPS
from reelworks.training.coverage import speed
from reelworks.training.coverage.speed import Speed
from reelworks.training.observers import trackers
from reelworks.training.observers.observer import StepObserver, TrainedStep
from reelworks.training.observers.segment_records import RecordKeeper
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.step import progress
from reelworks.training.step.step_sums import TIMESTEP_RANGES

_LINE_EVERY_SECONDS = 10.0
_MOST_OF_ERROR = 4000  # characters
_SPEED_WINDOW = 50
_MEAN_STEPS = 10  # steps over which losses by bucket and by timestep are averaged for curves


class RunLogger(StepObserver):
    """Log what has happened, to the run's files and to the logger `reelworks`; as a context, show a progress bar.

    Every rank has a logger, which tells no other rank anything; only the main rank's writes files and draws. `begins_at` is
    the position of this start. With `debug`, each rank also logs the clips of every step.
    """

    def __init__(
        self,
        run: RunFolder,
        data: RecipeData,
        world: World,
        begins_at: DataPosition,
        *,
        recipe_name: str,
        debug: bool = False,
    ) -> None:
        first_step, total_steps = begins_at.global_step, progress.total_steps(data.recipe.train, begins_at)
        self.records = RecordKeeper(run, data, recipe_name)
        self._run, self._data, self._world, self._debug = run, data, world, debug
        self._recipe_name, self._first_step = recipe_name, first_step
        self._events = log.EventHandler(EventLog(run.events_file).write)
        self._trackers = trackers.start(run, data.recipe, first_step) if world.is_main else []
        self._progress = _StepProgress(first_step, total_steps, data.recipe.train.log_every, world.device)
        self._parts: dict[str, list[float]] = {}  # losses of parts of the last steps, by name
        self._last_counts: Counts | None = None

    def __enter__(self) -> Self:
        self._progress.bar.start()
        return self

    def __exit__(self, error: type[BaseException] | None, value: BaseException | None, _: object) -> None:
        self._progress.bar.stop()
        if isinstance(value, Exception):
            with suppress(OSError):
                self.event("error", reason=f"{type(value).__name__}: {value}"[:_MOST_OF_ERROR])
        for tracker in self._trackers:
            tracker.close(failed=error is not None)

    def event(self, kind: str, **fields: Any) -> None:
        """Append an event to the events file; may be called from any thread."""
        if not self._world.is_main:
            return
        record = log.event_record(kind, fields)
        # Call the handler directly, since the logger may be disabled or set to another level.
        self._events.handle(record)
        if log.event_logger.isEnabledFor(logging.DEBUG):
            log.event_logger.handle(record)

    def start(self, spec: PlanSpec, *, threads: int, resumed_from: int | None, sources: Mapping[str, str]) -> None:
        """Log the start of training, which voids earlier events of later steps."""
        self.event(
            "start",
            step=self._first_step,
            world_size=self._world.size,
            **({"sequence_degree": degree} if (degree := self._world.sequence_degree) > 1 else {}),
            micro_batches_per_step=spec.micro_batches_per_step,
            same_bucket_run=spec.same_bucket_run,
            threads=threads,
            device=machine.device_name(self._world.device),
            recipe=self._recipe_name,
            resumed_from=resumed_from,
            **({"stage": asdict(self._data.stage)} if self._data.stage.name else {}),
            **({"sources": dict(sources)} if sources else {}),
        )

    def epoch_begins(self, position: DataPosition) -> None:
        """Log the plan of an epoch, or of the rest of one."""
        self.event(
            "epoch",
            step=position.global_step,
            data_restarts=position.data_restarts,
            epoch=position.epoch,
            segment=position.segment,
            planned=position.counts.planned,
            plan_steps=position.plan.num_steps,
            plan=position.plan.digest(),
        )

    def after_step(self, step: TrainedStep) -> None:
        """Log a step with its clips."""
        position, result, number, now = step.position, step.result, step.number, step.speed
        buckets, width = self._data.table.buckets, NUM_TIMESTEPS // TIMESTEP_RANGES
        losses = {
            "loss_by_bucket": {buckets[i].name: loss for i, loss in result.loss_by_bucket.items()},
            "loss_by_timestep": {f"{i * width}-{(i + 1) * width}": loss for i, loss in result.loss_by_range.items()},
        }
        names = list(losses["loss_by_bucket"])
        planned = step_source.batches_of_step(position.plan, position.plan_step)
        # Before the step, which counts them: whoever is killed in between has no step whose clips are not told.
        recorded = self._failures(step)
        stream = result.batches[-1].stream if result.batches else StreamState()
        self.event(
            "step",
            step=number,
            epoch=position.epoch,
            plan_step=position.plan_step,
            loss=result.loss,
            **losses,
            applied=result.applied,
            learning_rate=result.learning_rate,
            grad_norm=result.grad_norm,
            clips=result.clips,
            repeated=result.repeats,
            tokens=sum(buckets[bucket].tokens * clips for bucket, clips in planned),
            seconds=step.seconds,
            data_wait_seconds=step.waited_seconds,
            decode_p50_seconds=stream.decode_p50_seconds,
            decode_p99_seconds=stream.decode_p99_seconds,
            queue_bytes=stream.queue_bytes,
            buckets=names,
            micro_batches=len(planned),
            batch_sizes=sorted(set(position.plan.sizes_in(position.plan_step))),
            memory_bytes=device_memory.peak_bytes(self._world.device),
            **({"grad_norm_by_block": result.grad_norm_by_block} if result.grad_norm_by_block else {}),
        )
        curves = {
            "train/loss": result.loss,
            "train/grad_norm": result.grad_norm,
            "train/learning_rate": result.learning_rate,
            "train/clips_per_second": now.clips_per_second or 0.0,
            "train/data_wait_share": now.waited_share or 0.0,
        }
        self.curves(number, curves | {f"grad_norm/{name}": norm for name, norm in result.grad_norm_by_block.items()})
        self._write_parts(number, losses)
        self._progress.step(step, names)
        if not result.applied:
            self._log_skipped(step)
        if result.blame is not None:
            origin = result.blame.origin
            what, module = (origin.what, origin.path) if origin else (None, None)
            self.event("non_finite", step=number, what=what, module=module, clips=list(result.blame.clips))
        self.records.step(position.plan_step, result.applied, recorded)
        if self._debug:
            self._log_clips(step)

    def epoch_ends(self, position: DataPosition) -> None:
        """Log the numbers of trained, failed and skipped clips of an epoch; their sum must be that of planned clips."""
        c = position.counts
        if self._world.is_main:
            self.records.end(position)
        if c.failed or c.skipped or c != self._last_counts:  # a LoRA has hundreds of short epochs without news
            self._last_counts = c
            logger.info(
                f"epoch {position.epoch}: {c.planned} planned = {c.trained} trained + {c.failed} failed "
                f"+ {c.skipped} skipped" + (f"; {c.repeated} shown again to fill batches" if c.repeated else "")
            )
        self.event("epoch_end", step=position.global_step, epoch=position.epoch, **asdict(c))
        if c.planned != c.trained + c.failed + c.skipped:
            raise AssertionError(f"clips of epoch {position.epoch} were lost: {c}")

    def show(self, step: int, files: Sequence[Path], prompts: Sequence[str]) -> None:
        """Show clips in trackers."""
        for tracker in self._trackers:
            tracker.show(step, files, prompts)

    def _write_parts(self, step: int, losses: dict[str, dict[str, float]]) -> None:
        """Add losses of parts of a step to the curves, as means of several steps: each part is small and noisy."""
        if not self._trackers:
            return
        for group, by_name in losses.items():
            for name, loss in by_name.items():
                self._parts.setdefault(f"{group}/{name}", []).append(loss)
        if step % _MEAN_STEPS == 0:
            self.curves(step, {name: sum(values) / len(values) for name, values in self._parts.items()})
            self._parts.clear()

    def _log_skipped(self, step: TrainedStep) -> None:
        """Tell of a step that is skipped; those that the recipe skips after it are told with it."""
        train, first, last = self._data.recipe.train, step.number, step.number
        if step.result.skipped_by_recipe:
            if first > self._first_step + 1 and train.skips(first - 1):
                return
            last = train.last_skipped(first)
        what = f"step {first} is" if last == first else f"steps {first} to {last} are"
        logger.info("%s skipped: %s", what, step.result.why_not)

    def curves(self, step: int, values: dict[str, float]) -> None:
        """Add values to the curves of trackers."""
        for tracker in self._trackers:
            tracker.log(step, values)

    def _failures(self, step: TrainedStep) -> list[RecordedFailure]:
        """Log the clips that failed, and return the failures of first uses."""
        for clip in step.failed:
            self.event("failure", step=step.number, **asdict(clip))
            logger.info("a clip could not be decoded: %s: %s", clip.path, clip.reason)
        if self._world.is_main:
            failures.record(self._run, step.position.epoch, step.number, step.failed)
        return [
            RecordedFailure(plan_step=step.position.plan_step, uid=clip.uid, copy_index=clip.copy, reason=clip.reason)
            for clip in step.failed
            if not clip.repeat_index
        ]

    def _log_clips(self, step: TrainedStep) -> None:
        folder = self._run.path / "debug"
        folder.mkdir(exist_ok=True)
        trained = [
            {
                "uid": int(b.request.uids[i]),
                "copy": int(b.request.copies[i]),
                "repeat_index": int(b.request.repeat_index[i]),
                "path": str(b.request.requests[i].path),
            }
            for b in step.result.batches
            for i in np.flatnonzero(b.is_valid.numpy()).tolist()
            if step.result.applied
        ]
        line = {
            "step": step.number,
            "epoch": step.position.epoch,
            "plan_step": step.position.plan_step,
            "shapes": [str(b.request.shape) for b in step.result.batches],
            "trained": trained,
        }
        files.append_json_line(folder / f"steps-rank-{self._world.rank:05d}.jsonl", line)


class _StepProgress:
    """Show finished steps by a progress bar on a terminal, and elsewhere by a line every few seconds."""

    def __init__(self, first_step: int, total_steps: int | None, log_every: int, device: torch.device) -> None:
        console = log.console()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]}"),
            TimeRemainingColumn(),
            console=console,
            disable=console is None or not console.is_terminal,
        )
        self._task = self.bar.add_task("training", total=total_steps, completed=first_step, now="")
        self._total, self._log_every = total_steps, log_every
        self._device = device
        self._times: deque[float] = deque(maxlen=_SPEED_WINDOW)  # of the ends of steps
        self._losses: deque[float] = deque(maxlen=_SPEED_WINDOW)
        self._speeds: deque[Speed] = deque(maxlen=_SPEED_WINDOW)
        self._last_line = 0.0

    def step(self, done: TrainedStep, buckets: Sequence[str]) -> None:
        now, step = time.monotonic(), done.number
        self._times.append(now)
        self._speeds.append(done.speed)
        if math.isfinite(done.result.loss):
            self._losses.append(done.result.loss)
        is_due = step % self._log_every == 0 and now - self._last_line >= _LINE_EVERY_SECONDS
        if self.bar.disable and not is_due and step != self._total:
            return
        # What is left takes as long as what was, with what lies between steps.
        seconds, steps = now - self._times[0], len(self._times) - 1
        recent = speed.total(self._speeds)
        parts = [
            f"loss {units.loss(statistics.fmean(self._losses) if self._losses else math.nan)}",
            f"{recent.seconds / len(self._speeds):.2f} s/it",
            f"lr {units.learning_rate(done.result.learning_rate)}",
            f"{device_memory.peak_bytes(self._device) / 1e9:.1f} GB",
            f"{recent.clips_per_second or 0.0:.1f} clips/s",
            buckets[0] + (f" +{len(buckets) - 1}" if len(buckets) > 1 else "") if buckets else "no clip",
        ]
        text = "  ".join(parts)
        if not self.bar.disable:
            self.bar.update(self._task, completed=step, now=text)
            return
        self._last_line = now
        total = f"/{self._total}" if self._total else ""
        eta = f"  ETA {_clock(seconds / steps * max(self._total - step, 0))}" if self._total and steps else ""
        logger.info(f"step {step}{total}  {text}{eta}")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
