"""The loop: step, look, save; the same for one process and for many."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from reelworks.checkpoint.commit import SaveFailed
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
from reelworks.train.journal import Journal, Seen, row_of
from reelworks.train.keep import Keeper
from reelworks.train.preview import Previewer
from reelworks.train.recorder import Recorder
from reelworks.train.signals import Signals
from reelworks.train.step import Stepper, StepResult
from reelworks.train.validate import Validator

# So many steps in a row without an update mean that going on is hopeless.
_MAX_SKIPPED_IN_A_ROW = 10


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
    journal: Journal
    signals: Signals = field(default_factory=Signals)
    _measured: tuple[int, float] | None = None
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
        self.journal.epoch_begins(position)

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
        seen = Seen()
        step = position.global_step
        result = self.stepper.run(
            seen.watch(source), position.plan, position.row, step, bool(self.signals.name)
        )
        planned = sum(clips for _, clips in row_of(position))
        # Counted, not derived: a clip that got lost on the way must not balance the account.
        trained, skipped = (result.clips, 0) if result.applied else (0, planned - result.failed)
        self.journal.step(position, step + 1, result, seen, time.monotonic() - began)
        counts = position.counts.add(trained, result.failed, skipped)
        position = replace(position, row=position.row + 1, global_step=step + 1, counts=counts)
        self._check(position, result)
        return position, result.asked_to_stop

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
            self.journal.epoch_ends(position)
        if _due(self.recipe.checkpoints.every_steps, step):
            self._save(position)

    def _validate(self, position: Position, pool: DecodePool) -> None:
        began = time.monotonic()
        result = self.validator.run(pool)
        if result is not None:
            self._measured = (position.global_step, result.loss)
            self.journal.validation(position.global_step, result, time.monotonic() - began)

    def _save(self, position: Position, *, last: bool = False) -> None:
        """Save; only a save that nothing follows may end the run."""
        if self._saved_step == position.global_step:
            return
        # A loss that was measured at another step is not this checkpoint's.
        measured = self._measured is not None and self._measured[0] == position.global_step
        metrics = {"validation/loss": self._measured[1]} if measured and self._measured else {}
        try:
            self.keeper.save(position, self.data, self.stepper.state, metrics, self.tell)
        except SaveFailed as error:
            if last:
                raise
            self.tell.event("unsaved", step=position.global_step, reason=error.problem)
            self.tell.say(f"warning: {error}")
            return
        self._saved_step = position.global_step


def _due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0
