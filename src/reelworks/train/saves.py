"""When a run saves, how, and what it does about a save that fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from reelworks.checkpoint.background import Background, held_bytes
from reelworks.checkpoint.commit import DiskFull, Saved, SaveFailed
from reelworks.checkpoint.config import CheckpointsConfig
from reelworks.checkpoint.mirror import Mirror
from reelworks.prepare.data import RecipeData
from reelworks.prepare.position import Position
from reelworks.run.folder import RunFolder
from reelworks.train.keep import Keeper
from reelworks.train.recorder import Recorder
from reelworks.train.state import TrainState
from reelworks.train.step import Votes

# "auto" saves beside training from this size on: a smaller state is written before a thread has begun.
_ASYNCHRONOUS_BYTES = 1_000_000_000
# A full disk is asked again after this time; each try may write up to a whole checkpoint.
_PATIENCE_SECONDS = 30.0
_NAMED = 3


@dataclass
class Saver:
    """Saves a run at its steps' edges.

    Attributes:
        background: The slot for a save that training does not wait for.
        check: Raises where another process took the run over.
        mirror: On the main rank, where checkpoints are copied to.
    """

    config: CheckpointsConfig
    run: RunFolder
    keeper: Keeper
    data: RecipeData
    state: TrainState
    tell: Recorder
    background: Background
    check: Callable[[], None]
    mirror: Mirror | None = None
    saved_step: int | None = None
    _began: float = field(default_factory=time.monotonic)
    _owed_from: float | None = None
    _told_grace: bool = False
    _step_seconds: float = 0.0

    def votes(self, *, stop: bool) -> Votes:
        """What this rank asks of all ranks at the next step's edge.

        Raises:
            LockLost: Another process took the run over, so that going on is of no use.
        """
        self.check()
        return Votes(stop=stop, save=self._asks(), writing=self.background.is_writing)

    def _asks(self) -> bool:
        """On the main rank: whether the clock, a person or an owed save asks for one.

        They ask until they get one, so not while a save is in flight, nor again right after one that failed.
        """
        if not self.keeper.world.is_main or self.background.step is not None:
            return False
        now, minutes = time.monotonic(), self.config.every_minutes
        if self._owed_from is not None:
            return now >= self._owed_from
        return self.run.save_file.is_file() or (minutes is not None and now >= self._began + 60 * minutes)

    def after_step(
        self, position: Position, metrics: dict[str, float], votes: Votes, step_seconds: float
    ) -> None:
        """Publish what is written, and save if it is time to.

        Args:
            position: Where to go on.
            metrics: Measured at this step.
            votes: What the ranks asked for, all together.
            step_seconds: Time that the step took.

        Raises:
            DiskFull: The disk is full, and the recipe says to stop then.
        """
        self._step_seconds = step_seconds
        if self.background.step is not None and not votes.writing:
            self._settle(position)
        if votes.save or self._is_due(position, metrics):
            self._save(position, metrics)

    def _is_due(self, position: Position, metrics: dict[str, float]) -> bool:
        every = self.config.every_steps
        if every is not None and position.global_step % every == 0:
            return True
        if self.config.at_epoch_end and position.at_end:
            return True
        return self.config.at_best and self.keeper.is_best(metrics)

    def _save(self, position: Position, metrics: dict[str, float]) -> None:
        """Save at an interval: beside training if that is possible, and never at its cost."""
        step = position.global_step
        if step == self.saved_step:
            return
        if self.background.step is not None:
            self.tell.event(
                "unsaved", step=step, reason=f"step {self.background.step} is still being written"
            )
            self.tell.say(f"step {step} is not saved: step {self.background.step} is still being written")
            return
        self._began = time.monotonic()
        try:
            self._require_finite()
            if self._beside(step):
                self.background.start(
                    self.keeper.store,
                    step,
                    self.state.state_dict(),
                    **self.keeper.order(position, self.data, metrics),
                )
                self.saved_step = step
                self._accepted()
            else:
                self._save_now(position, metrics)
        except SaveFailed as error:
            self._failed(step, error, position)

    def _beside(self, step: int) -> bool:
        """Whether to save beside training; equal on all ranks."""
        how = self.config.asynchronous
        state = self.state.state_dict()
        if how == "auto":
            large = held_bytes(state) >= _ASYNCHRONOUS_BYTES
            how = any(self.keeper.world.gather(large))
        if not how:
            return False
        lack = self.background.lacks_memory(state)
        if lack:
            self.tell.say(f"step {step} is saved while training waits: {lack}")
        return not lack

    def _save_now(self, position: Position, metrics: dict[str, float]) -> None:
        saved = self.keeper.save(position, self.data, self.state, metrics)
        self.saved_step = position.global_step
        self._accepted()
        self._published(saved)

    def _accepted(self) -> None:
        """A person's request for a save is done with."""
        if self.keeper.world.is_main and self.run.save_file.is_file():
            self.run.save_file.unlink(missing_ok=True)

    def _published(self, saved: Saved) -> None:
        self._owed_from = None
        self.keeper.published(saved, self.tell, self.mirror)
        self._compare_with_grace(saved.seconds)

    def _settle(self, position: Position | None) -> None:
        """Publish the save in flight, all of whose parts are written or have failed.

        Args:
            position: Where training goes on; None at its end, where another save follows.
        """
        step = self.background.step
        assert step is not None
        try:
            saved = self.background.finish()
        except SaveFailed as error:
            if self.saved_step == step:
                self.saved_step = None
            self._failed(step, error, position)
            return
        self._published(saved)

    def _failed(self, step: int, error: SaveFailed, position: Position | None) -> None:
        """Tell of a save that failed, and go on as the recipe says if training goes on."""
        policy = self.config.on_full if isinstance(error, DiskFull) and position is not None else "wait"
        self.tell.event("unsaved", step=step, reason=error.problem)
        if policy == "stop":
            raise error
        first = self._owed_from is None
        self._owed_from = time.monotonic() + _PATIENCE_SECONDS
        if first:
            self.tell.say(f"warning: {error}")
        if policy == "weights-only":
            assert position is not None
            self._owed_from = None
            self._accepted()
            self.keeper.save_weights_only(position, self.state, self.tell)

    def last(self, position: Position, metrics: dict[str, float]) -> None:
        """Save at a run's end, or on a signal; waits for all, and for what is in flight before.

        Raises:
            SaveFailed: The state could not be saved.
        """
        if self.background.step is not None:
            self._settle(None)
        if self.saved_step == position.global_step:
            return
        try:
            self._require_finite()
            self._save_now(position, metrics)
        except SaveFailed as error:
            self.tell.event("unsaved", step=position.global_step, reason=error.problem)
            raise

    def _require_finite(self) -> None:
        """Refuse to make a checkpoint of what could not be trained on; equal on all ranks.

        Raises:
            SaveFailed: Names what is not finite.
        """
        found = self.keeper.world.gather(self.state.not_finite())
        names = list(dict.fromkeys(name for part in found for name in part))  # type: ignore[attr-defined]
        if names:
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise SaveFailed(
                f"not finite, so no checkpoint was saved: {', '.join(names[:_NAMED])}{more}",
                field="checkpoints",
                value=str(self.keeper.store.root),
                remedy="go on from the last checkpoint, which is sound: the same command resumes from it; lower "
                "train.learning_rate if it comes again",
            )

    def _compare_with_grace(self, save_seconds: float) -> None:
        # A signal that comes in the middle of a step is heard at the beginning of the next one, which is still done.
        grace, needed = self.config.grace_seconds, 2 * self._step_seconds + save_seconds
        if grace is None or needed <= grace or self._told_grace:
            return
        self._told_grace = True
        self.tell.say(
            f"warning: two steps take {2 * self._step_seconds:.1f} s and a save {save_seconds:.1f} s, more than "
            f"checkpoints.grace_seconds = {grace:g}: a run that is told to stop may be killed before it has saved"
        )
