"""The loop: step, look, save; the same for one process and for many."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from reelworks.core.errors import UserError
from reelworks.prepare import left_out
from reelworks.prepare import position as positions
from reelworks.prepare.data import RecipeData
from reelworks.prepare.position import Position
from reelworks.recipe.recipe import Recipe
from reelworks.run.folder import RunFolder
from reelworks.stream import batches
from reelworks.stream.batches import MicroBatch
from reelworks.stream.workers import DecodePool
from reelworks.train import feed as feeding
from reelworks.train.feed import Feed
from reelworks.train.journal import Journal, Seen
from reelworks.train.keep import Keeper
from reelworks.train.preview import Previewer
from reelworks.train.recorder import Recorder
from reelworks.train.saves import Saver
from reelworks.train.signals import Signals
from reelworks.train.step import Stepper, StepResult, Votes
from reelworks.train.validate import Validator


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
    saver: Saver
    tell: Recorder
    journal: Journal
    signals: Signals = field(default_factory=Signals)
    _measured: dict[str, float] = field(default_factory=dict)
    _measured_step: int | None = None
    _seconds: float = 0.0
    _skipped_in_a_row: int = 0

    def go(self, position: Position, resumed: bool) -> str:
        """Train from a position to the end.

        Returns:
            Why it ended: "finished", or "signal".

        Raises:
            UserError: Too many clips fail, or no step can be applied any more.
        """
        recipe = self.recipe
        with ExitStack() as stack:
            pool = DecodePool(recipe.data.num_workers, recipe.data.decode_timeout)
            stack.callback(pool.close)
            stack.enter_context(self.signals.listening())
            self.saver.saved_step = position.global_step if resumed else None
            if self._is_done(position):
                if not resumed:
                    raise left_out.no_steps(self.data)
                if not position.plan.steps:
                    self._begin(position)
                self._complete(position, pool)
                self.tell.event("stop", step=position.global_step, reason="finished")
                return "finished"
            if not resumed:
                self._validate(position, pool)
            source = batches.read_ahead(
                self.feed.rows(position),
                pool,
                recipe.data.prefetch_micro_batches,
            )
            self._begin(position)
            while not self._is_done(position):
                if position.at_end:
                    position = self._next_epoch(position)
                    if self._is_done(position):  # the epochs that were left draw no clip
                        self._after(position, pool)
                        break
                position, votes = self._step(position, source)
                self._after(position, pool, votes)
                if votes.stop and not self._is_done(position):
                    self._record_end(position)
                    self.saver.last(position, self._metrics_of(position))
                    self.tell.event("stop", step=position.global_step, reason="signal")
                    return "signal"
            self._record_end(position)
            self.tell.event("stop", step=position.global_step, reason="finished")
        return "finished"

    def _record_end(self, position: Position) -> None:
        """Record how far the segment went, where training stops within an epoch."""
        if self.keeper.world.is_main and not position.at_end:
            self.journal.records.end(position)

    def _complete(self, position: Position, pool: DecodePool) -> None:
        """Do what a run that was killed behind its last save still owes."""
        step = position.global_step
        self.tell.say(f"nothing left to train at step {step}; raise train.max_steps or max_epochs")
        if not self.keeper.has_metrics(step) and (measured := self._validate(position, pool)):
            self.keeper.record_metrics(step, measured)
        if not self.previewer.exist(step):
            self.previewer.run(step, self.tell)

    def _is_done(self, position: Position) -> bool:
        return feeding.is_done(self.recipe.train, position)

    def _begin(self, position: Position) -> None:
        if self.keeper.world.is_main:
            self.journal.records.begin(position, self.keeper.epochs_in_use())
        self.journal.epoch_begins(position)
        if not position.plan.steps:  # a resume found that all that was left of the epoch is gone
            self.journal.epoch_ends(position)

    def _next_epoch(self, position: Position) -> Position:
        position, empty = positions.next_epoch(self.data, position.spec, position)
        for epoch in empty:
            self.tell.say(f"epoch {epoch}: no clip was drawn")
        if not self._is_done(position):
            self._begin(position)
        return position

    def _step(self, position: Position, source: Iterator[MicroBatch]) -> tuple[Position, Votes]:
        began = time.monotonic()
        seen = Seen()
        step = position.global_step
        if self.recipe.train.skips(step + 1):
            result = StepResult.skipped(self.stepper.set_rate(step))
        else:
            result = self.stepper.run(
                seen.watch(source),
                position.plan,
                position.row,
                step,
                self.saver.votes(stop=bool(self.signals.name)),
            )
        planned = position.plan.planned_in(position.row)
        # Counted, not derived: a clip that got lost on the way must not balance the account.
        trained, skipped = (result.clips, 0) if result.applied else (0, planned - result.failed)
        self._seconds = time.monotonic() - began
        self.journal.step(position, step + 1, result, seen, self._seconds)
        repeated = result.repeated if result.applied else 0
        counts = position.counts.add(trained, result.failed, skipped, repeated)
        position = replace(position, row=position.row + 1, global_step=step + 1, counts=counts)
        self._check(position, result)
        return position, result.votes

    def _check(self, position: Position, result: StepResult) -> None:
        counts = position.counts
        if counts.failed > self.recipe.data.max_failure_share * counts.planned:
            raise UserError(
                f"{counts.failed} of the epoch's {counts.planned} clips could not be decoded",
                field="data.max_failure_share",
                value=self.recipe.data.max_failure_share,
                remedy=f"see {self.run.coverage_folder} for files and reasons; mend them or raise the limit",
            )
        self._refuse_non_finite(position.global_step, result)

    def _refuse_non_finite(self, step: int, result: StepResult) -> None:
        """End where going on is hopeless, or not wanted."""
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if not result.finite else 0
        train = self.recipe.train
        limit = 1 if train.non_finite == "stop" else train.max_non_finite
        if self._skipped_in_a_row < limit:
            return
        many = f"{limit} steps in a row, the last being {step}," if limit > 1 else f"step {step}"
        raise UserError(
            f"{many} had a loss or gradient that is not finite, {result.blame}",
            field="train.learning_rate",
            value=train.learning_rate,
            remedy="lower it or lengthen train.warmup_steps, then resume from an earlier checkpoint "
            'with --resume STEP; to train on past such steps, set train.non_finite = "skip" and raise '
            "train.max_non_finite",
        )

    def _after(self, position: Position, pool: DecodePool, votes: Votes | None = None) -> None:
        """What is due at a step's edge: validation, preview, checkpoint, the epoch's account."""
        step, done = position.global_step, self._is_done(position)
        if position.at_end:
            self.journal.epoch_ends(position)
        # Before the save, so that a checkpoint knows its loss.
        if done or _due(self.recipe.validation.every_steps, step):
            self._validate(position, pool)
        if done:
            self.saver.last(position, self._metrics_of(position))
        elif votes is not None:
            self.saver.after_step(position, self._metrics_of(position), votes, self._seconds)
        if done or _due(self.recipe.preview.every_steps, step):
            self.previewer.run(step, self.tell)

    def _validate(self, position: Position, pool: DecodePool) -> dict[str, float]:
        began = time.monotonic()
        result = self.validator.run(pool)
        self._measured = {}
        if result is not None:
            self._measured = {"validation/loss": result.loss}
            self._measured_step = position.global_step
            self.journal.validation(position.global_step, result, time.monotonic() - began)
        return self._measured

    def _metrics_of(self, position: Position) -> dict[str, float]:
        """What was measured at this very step: a loss of another one is not this checkpoint's."""
        return self._measured if self._measured_step == position.global_step else {}


def _due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0
