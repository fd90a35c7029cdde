"""What training tells of its steps and epochs: events, curves, coverage, the account of every clip."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from reelworks.core import files
from reelworks.parallel.mesh import World
from reelworks.prepare.data import RecipeData
from reelworks.prepare.position import Position
from reelworks.run.folder import RunFolder
from reelworks.run.records import Failure
from reelworks.schedule.plan import EpochPlan
from reelworks.stream.batches import MicroBatch
from reelworks.train.record_keeper import RecordKeeper
from reelworks.train.recorder import Recorder
from reelworks.train.step import StepResult
from reelworks.train.validate import Validation


@dataclass
class Seen:
    """The micro-batches that a step took on this rank, without their frames."""

    batches: list[MicroBatch] = field(default_factory=list)

    def watch(self, source: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        """Pass micro-batches on and remember them."""
        for batch in source:
            self.batches.append(replace(batch, frames=batch.frames[:0], companions={}))
            yield batch


@dataclass(frozen=True)
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

    def epoch_begins(self, position: Position) -> None:
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

    def step(self, done: Position, step: int, result: StepResult, seen: Seen, seconds: float) -> None:
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
            repeated=result.repeated,
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

    def _failures(self, done: Position, step: int, seen: Seen) -> list[Failure]:
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

    def _clips(self, done: Position, step: int, result: StepResult, seen: Seen) -> None:
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

    def epoch_ends(self, position: Position) -> None:
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
