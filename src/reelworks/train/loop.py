"""The loop: step, look, save; the same for one process and for many."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType

import numpy as np

from reelworks.checkpoint.commit import SaveFailed
from reelworks.checkpoint.config import CheckpointsConfig
from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.prepare import position as positions
from reelworks.prepare.data import RecipeData
from reelworks.prepare.position import Position
from reelworks.recipe.recipe import Recipe
from reelworks.run.folder import RunFolder
from reelworks.stream import batches
from reelworks.stream.batches import MicroBatch
from reelworks.stream.workers import DecodePool
from reelworks.train.feed import Feed
from reelworks.train.keep import Keeper
from reelworks.train.preview import Previewer
from reelworks.train.recorder import Recorder
from reelworks.train.step import Stepper, StepResult
from reelworks.train.validate import Validator

# So many steps in a row without an update mean that going on is hopeless.
_MAX_SKIPPED_IN_A_ROW = 10


@dataclass
class Signals:
    """Remembers that somebody asked the run to save and leave."""

    name: str = ""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGTERM and SIGUSR1 for the time of training; a second one works as if nobody listened."""
        former = {s: signal.signal(s, self._remember) for s in (signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        self.name = signal.Signals(number).name
        signal.signal(number, signal.SIG_DFL)


@dataclass
class Loop:
    """Everything that the loop ties together."""

    recipe: Recipe
    run: RunFolder
    data: RecipeData
    feed: Feed
    stepper: Stepper
    validator: Validator
    previewer: Previewer
    keeper: Keeper
    tell: Recorder
    debug: bool
    signals: Signals = field(default_factory=Signals)
    _metrics: dict[str, float] = field(default_factory=dict)
    _skipped_in_a_row: int = 0
    _saved_step: int | None = None

    def go(self, position: Position, resumed: bool) -> str:
        """Train from a position to the end.

        Returns:
            Why it ended: "finished", or "signal".

        Raises:
            UserError: Too many clips fail, or no step can be applied any more.
        """
        recipe = self.recipe
        if self._is_done(position):
            self.tell.say(
                f"nothing left to train at step {position.global_step}; raise train.max_steps or max_epochs"
            )
            return "finished"
        with ExitStack() as stack:
            pool = DecodePool(recipe.data.num_workers)
            stack.callback(pool.close)
            stack.enter_context(self.signals.listening())
            self._saved_step = position.global_step if resumed else None
            if not resumed:
                self._validate(position, pool)
            source = batches.read_ahead(
                self.feed.rows(position, recipe.train.max_steps, recipe.train.max_epochs),
                pool,
                recipe.data.prefetch_micro_batches,
            )
            self._begin(position)
            while not self._is_done(position):
                if position.at_end:
                    position = self._next_epoch(position)
                position, stop = self._step(position, source)
                self._after(position, pool)
                if stop:
                    self._save(position, last=True)
                    self.tell.event("stop", step=position.global_step, reason="signal")
                    return "signal"
            if not _due(recipe.validation.every_steps, position.global_step):
                self._validate(position, pool)
            self._save(position, last=True)
            self.previewer.run(position.global_step, self.tell)
            self.tell.event("stop", step=position.global_step, reason="finished")
        return "finished"

    def _is_done(self, position: Position) -> bool:
        train = self.recipe.train
        if train.max_steps is not None and position.global_step >= train.max_steps:
            return True
        epochs = position.epoch + position.at_end
        return train.max_epochs is not None and epochs >= train.max_epochs

    def _begin(self, position: Position) -> None:
        if self.keeper.world.is_main:
            positions.write_plan(self.run, position)
        self.tell.event(
            "epoch",
            step=position.global_step,
            epoch=position.epoch,
            segment=position.segment,
            planned=position.counts.planned,
            rows=position.plan.steps,
        )

    def _next_epoch(self, position: Position) -> Position:
        position = positions.begin_epoch(
            self.data,
            position.spec,
            epoch=position.epoch + 1,
            global_step=position.global_step,
            generation=position.generation,
        )
        self._begin(position)
        return position

    def _step(self, position: Position, source: Iterator[MicroBatch]) -> tuple[Position, bool]:
        began = time.monotonic()
        seen: list[MicroBatch] = []
        result = self.stepper.run(
            _remember(source, seen),
            position.plan,
            position.row,
            position.global_step,
            bool(self.signals.name),
        )
        planned = sum(clips for _, clips in _row(position))
        # Counted, not derived: a clip that got lost on the way must not balance the account.
        trained, skipped = (result.clips, 0) if result.applied else (0, planned - result.failed)
        counts = position.counts.add(trained, result.failed, skipped)
        position = replace(
            position, row=position.row + 1, global_step=position.global_step + 1, counts=counts
        )
        self._record(position, result, seen, time.monotonic() - began)
        self._check(position, result)
        return position, result.asked_to_stop

    def _record(self, position: Position, result: StepResult, seen: list[MicroBatch], seconds: float) -> None:
        """Tell what the step did, after the optimizer has stepped."""
        buckets = self.data.table.buckets
        step = position.global_step
        done = replace(position, row=position.row - 1)
        names = [buckets[i].name for i in result.loss_by_bucket]
        self.tell.event(
            "step",
            step=step,
            epoch=position.epoch,
            row=position.row - 1,
            loss=result.loss,
            loss_by_bucket={buckets[i].name: loss for i, loss in result.loss_by_bucket.items()},
            learning_rate=result.learning_rate,
            grad_norm=result.grad_norm,
            clips=result.clips,
            tokens=sum(buckets[bucket].tokens * clips for bucket, clips in _row(done)),
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
        self.tell.step(
            step, loss=result.loss, clips=result.clips, bucket=shown, log_every=self.recipe.train.log_every
        )
        if result.failed:
            self._record_failures(position, seen)
        if self.debug:
            self._record_loaded(position, result, seen)

    def _record_failures(self, position: Position, seen: list[MicroBatch]) -> None:
        mine = [
            {"uid": int(b.work.uids[i]), "path": str(b.work.requests[i].path), "reason": reason}
            for b in seen
            for i, reason in b.failures
        ]
        for failures in self.keeper.world.gather(mine):
            assert isinstance(failures, list)
            for failure in failures:
                self.tell.event("failure", step=position.global_step, **failure)
                if self.keeper.world.is_main:
                    path = self.run.coverage_folder / f"epoch-{position.epoch:06d}.jsonl"
                    files.append_json_line(
                        path, {"step": position.global_step, "became": "failed", **failure}
                    )
                self.tell.say(f"a clip could not be decoded: {failure['path']}: {failure['reason']}")

    def _record_loaded(self, position: Position, result: StepResult, seen: list[MicroBatch]) -> None:
        """With --debug: the clips that this rank trained in the step."""
        folder = self.run.path / "debug"
        folder.mkdir(exist_ok=True)
        trained = [
            {"uid": int(b.work.uids[i]), "copy": int(b.work.copies[i]), "path": str(b.work.requests[i].path)}
            for b in seen
            for i in np.flatnonzero(b.counts.numpy()).tolist()
            if result.applied
        ]
        line = {
            "step": position.global_step,
            "epoch": position.epoch,
            "row": position.row - 1,
            "shapes": [str(b.work.shape) for b in seen],
            "trained": trained,
        }
        files.append_json_line(folder / f"steps-rank-{self.feed.rank:05d}.jsonl", line)

    def _check(self, position: Position, result: StepResult) -> None:
        counts = position.counts
        if counts.failed > self.recipe.data.max_failure_share * counts.planned:
            raise UserError(
                f"{counts.failed} of the epoch's {counts.planned} clips could not be decoded",
                field="data.max_failure_share",
                value=self.recipe.data.max_failure_share,
                remedy=f"see {self.run.coverage_folder} for files and reasons; mend them or raise the limit",
            )
        self._skipped_in_a_row = 0 if result.applied else self._skipped_in_a_row + 1
        if not result.applied:
            why = "loss or gradient is not finite" if not result.finite else "no clip could be decoded"
            self.tell.say(f"step {position.global_step} is skipped: {why}")
        if self._skipped_in_a_row >= _MAX_SKIPPED_IN_A_ROW:
            raise UserError(
                f"{_MAX_SKIPPED_IN_A_ROW} steps in a row could not be applied",
                field="train.learning_rate",
                value=self.recipe.train.learning_rate,
                remedy="lower it or lengthen train.warmup_steps, then resume from an earlier checkpoint "
                "with --resume STEP",
            )

    def _after(self, position: Position, pool: DecodePool) -> None:
        """What is due at a step's edge: validation, preview, checkpoint, the epoch's account."""
        step = position.global_step
        if _due(self.recipe.validation.every_steps, step):
            self._validate(position, pool)
        if _due(self.recipe.preview.every_steps, step) and not self._is_done(position):
            self.previewer.run(step, self.tell)
        if position.at_end:
            self._account(position)
        checkpoints: CheckpointsConfig = self.recipe.checkpoints
        if _due(checkpoints.every_steps, step):
            self._save(position)

    def _account(self, position: Position) -> None:
        """Print what became of every planned clip of the epoch."""
        c = position.counts
        self.tell.say(
            f"epoch {position.epoch}: {c.planned} planned = {c.trained} trained + {c.failed} failed "
            f"+ {c.skipped} skipped"
        )
        self.tell.event(
            "epoch_end",
            step=position.global_step,
            epoch=position.epoch,
            planned=c.planned,
            trained=c.trained,
            failed=c.failed,
            skipped=c.skipped,
        )
        if c.planned != c.trained + c.failed + c.skipped:
            raise AssertionError(f"clips are missing from the account of epoch {position.epoch}: {c}")

    def _validate(self, position: Position, pool: DecodePool) -> None:
        began = time.monotonic()
        result = self.validator.run(pool)
        self._metrics = {}
        if result is None:
            return
        self._metrics = {"validation/loss": result.loss}
        self.tell.event(
            "validation",
            step=position.global_step,
            loss=result.loss,
            loss_by_time=result.loss_by_time,
            clips=result.clips,
            seconds=time.monotonic() - began,
        )
        self.tell.scalars(position.global_step, validation__loss=result.loss)
        self.tell.say(
            f"step {position.global_step}  validation loss {result.loss:.4f} on {result.clips} clips"
        )

    def _save(self, position: Position, *, last: bool = False) -> None:
        """Save; only a save that nothing follows may end the run."""
        if self._saved_step == position.global_step:
            return
        try:
            self.keeper.save(position, self.data, self.stepper.state, self._metrics, self.tell)
        except SaveFailed as error:
            if last:
                raise
            self.tell.event("unsaved", step=position.global_step, reason=error.problem)
            self.tell.say(f"warning: {error}")
            return
        self._saved_step = position.global_step
        self._metrics = {}


def _row(position: Position) -> list[tuple[int, int]]:
    """Bucket and planned clips of each micro-batch in the position's row, over all ranks."""
    plan = position.plan
    places = [plan.places(int(m)) for m in plan.micro_batches(position.row)]
    return [(int(plan.bucket[where.start]), int(plan.real[where].sum())) for where in places]


def _remember(source: Iterator[MicroBatch], seen: list[MicroBatch]) -> Iterator[MicroBatch]:
    for batch in source:
        seen.append(batch)
        yield batch


def _due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0
