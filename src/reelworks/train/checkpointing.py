"""Checkpoints of a run: what is saved, when, and what happens to a save that fails."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypedDict

from reelworks.checkpoint import disk_space, forecast, load, names, retention, shards
from reelworks.checkpoint import save as commit
from reelworks.checkpoint.async_save import Background, held_bytes
from reelworks.checkpoint.config import CheckpointsConfig, KeepBest
from reelworks.checkpoint.manifest import BadCheckpoint
from reelworks.checkpoint.mirror.mirror import Mirror
from reelworks.checkpoint.policy import rank_best
from reelworks.checkpoint.save import DiskFull, Saved, SaveFailed
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core import files, storage
from reelworks.core.errors import UserError
from reelworks.data.position import DataPosition
from reelworks.distributed import collectives
from reelworks.distributed.mesh import World
from reelworks.export import export, exports_folder
from reelworks.export.lora import BASE, lora_file_of
from reelworks.models.lora.base_model import Base
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.run.folder import RunFolder
from reelworks.schedule.cursor import Aliases, Cursor, Excluded
from reelworks.train import init_from, pick_checkpoint, progress
from reelworks.train.run_logger import Recorder
from reelworks.train.state import TrainState
from reelworks.train.step import StepFlags

_EXCLUDED = "excluded.npz"
_ALIASES = "aliases.npz"


@dataclass(frozen=True)
class Keeper:
    """Saves and finds checkpoints of one run.

    Attributes:
        base: What its LoRA lies on, if it trains one.
    """

    store: CheckpointStore
    run: RunFolder
    recipe: Recipe
    run_id: str
    world: World
    base: Base | None = None

    def find(self, resume: str) -> int | None:
        """Step to resume from; None for a fresh start. The main rank decides.

        Args:
            resume: "auto" (the newest good one), "never", or a step.

        Raises:
            UserError: All checkpoints are bad, a named one is bad or missing, or "never" in a used folder; or the step
                was trained with another optimizer, or as a LoRA of another rank or alpha.
        """
        found = pick_checkpoint.step_of(self.store, self.run, resume) if self.world.is_main else None
        step: int | None = self.world.broadcast(found)  # type: ignore[assignment]
        if step is not None:  # before a model is loaded
            init_from.require_same_lora(self.run, step, self.recipe)
            elsewhere = f"begin another run with --output DIR --load {self.run.path} --weights-only"
            init_from.require_optimizer(self.run, step, self.recipe, elsewhere)
        return step

    def abandon_after(self, step: int) -> list[str]:
        """Set later checkpoints aside: the run goes on from an earlier step, and they are of another branch.

        Left in place, one of them would count as the save of its step, or as the newest. To be done before the
        start is told, which voids the later steps: a kill between the two would leave a checkpoint whose steps no
        event tells.

        Returns:
            What to say of them.
        """
        said = []
        for later in [s for s in self.store.steps() if s > step]:
            aside = self.store.quarantine(later, f"abandoned: the run went back to step {step}")
            said.append(f"checkpoint of step {later} is set aside as {aside.name}")
        return said

    def epochs_in_use(self) -> set[tuple[int, int]]:
        """Generation and epoch of every checkpoint's cursor; from a damaged one nothing goes on."""
        found = set()
        for info in self.store.list():
            with suppress(BadCheckpoint):
                cursor = json.loads(load.read_extra(info.path, names.CURSOR))
                found.add((cursor["generation"], cursor["epoch"]))
        return found

    def restore(self, step: int, state: TrainState) -> tuple[Cursor, Excluded, Aliases]:
        """Load weights, average and optimizer in place; return where the data stand.

        Raises:
            UserError: The checkpoint is of another model, or its LoRA was trained on another base.
        """
        path = self.store.path(step)
        init_from.require_base(path, self.base)
        tensors = state.state_dict()
        load.load(path, tensors)
        state.load_optimizer(tensors["optimizer"])
        excluded, aliases = Excluded.none(), Aliases()
        if load.has_extra(path, _EXCLUDED):
            excluded = Excluded.from_bytes(load.read_extra(path, _EXCLUDED))
        if load.has_extra(path, _ALIASES):
            aliases = Aliases.from_bytes(load.read_extra(path, _ALIASES))
        return Cursor(**json.loads(load.read_extra(path, names.CURSOR))), excluded, aliases

    def has_metrics(self, step: int) -> bool:
        """Say whether a checkpoint knows its validation loss, or there is nothing to know it by."""
        found = not self.world.is_main or bool(self.store.info(step).metrics)
        return bool(self.world.broadcast(found))

    def record_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Tell a checkpoint what was measured after its save."""
        if self.world.is_main:
            self.store.record_metrics(step, metrics)

    def is_best(self, metrics: dict[str, float]) -> bool:
        """Say whether what was measured now is better than what any checkpoint has; equal on all ranks."""
        best = self.recipe.checkpoints.keep_best
        if best is None or best.metric not in metrics:
            return False
        return bool(self.world.broadcast(self.world.is_main and self._beats_all(best, metrics[best.metric])))

    def _beats_all(self, best: KeepBest, value: float) -> bool:
        sign = 1 if best.mode == "min" else -1
        infos = self.store.list()
        ranked = rank_best(infos, best)
        known = [info.metrics[best.metric] for info in infos if info.step == ranked[0]] if ranked else []
        return math.isfinite(value) and all(sign * value < sign * other for other in known)

    def order(self, position: DataPosition, data: RecipeData, metrics: dict[str, float]) -> Order:
        """Return what a checkpoint holds beside the tensors."""
        extra = {names.CURSOR: files.to_json(position.to_cursor(data).to_json(), indent=2).encode()}
        if position.excluded:
            extra[_EXCLUDED] = position.excluded.to_bytes()
        if position.aliases:
            extra[_ALIASES] = position.aliases.to_bytes()
        if self.base is not None:
            extra[BASE] = self.base.to_json().encode()
        return {"extra": extra, "metrics": metrics, "run_id": self.run_id}

    def save(
        self, position: DataPosition, data: RecipeData, state: TrainState, metrics: dict[str, float]
    ) -> Saved:
        """Save at a step's edge, and wait for it.

        Raises:
            SaveFailed: There is no checkpoint of this step.
        """
        order = self.order(position, data, metrics)
        return commit.save(self.store, position.global_step, state.state_dict(), **order)

    def published(self, saved: Saved, tell: Recorder, mirror: Mirror | None) -> None:
        """Tell of a new checkpoint and have it mirrored, then retire what the policy does not keep."""
        step = saved.info.step
        tell.event(
            "checkpoint", step=step, name=saved.info.path.name, bytes=saved.bytes, seconds=saved.seconds
        )
        if not self.world.is_main:
            return
        try:
            if mirror is not None:
                mirror.offer(step)
            in_use = frozenset[int]() if mirror is None else mirror.in_use()
            decisions = retention.apply_retention(self.store, self.recipe.checkpoints, in_use)
        except OSError as error:
            tell.say(f"warning: old checkpoints could not be deleted ({error})")
            return
        described: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for decision in decisions:
            described[decision.keep].append({"step": decision.step, "reasons": list(decision.reasons)})
        tell.event("retention", step=step, kept=described[True], deleted=described[False])
        self._export(saved, tell)

    def _export(self, saved: Saved, tell: Recorder) -> None:
        """Write the weights for use that the recipe asks for; a failure costs nothing but them."""
        step, path = saved.info.step, saved.info.path
        epoch = json.loads(load.read_extra(path, names.CURSOR))["epoch"]
        try:
            written = exports_folder.write(self.run, path, self.recipe.exports, step=step, epoch=epoch)
        except UserError as error:
            tell.say(f"warning: {error}")
        else:
            for file in written:
                tell.event("export", step=step, name=file.name)

    def save_weights_only(self, position: DataPosition, state: TrainState, tell: Recorder) -> None:
        """On a disk too full for a checkpoint: the averaged weights alone. Collective."""
        lora = lora_file_of(self.run.recipe_file, "diffusers", self.base)
        target = exports_folder.path_of(self.run, position.global_step, "ema", lora.format if lora else None)
        about = export.describe_run(
            run_id=self.run_id,
            recipe=self.run.recipe_file,
            step=position.global_step,
            epoch=position.epoch,
        )
        try:
            with export.raising_export_failed(target):
                collectives.on_first(lambda: storage.mkdirs(target.parent))
            export.export_weights(
                state.state_dict(),
                target,
                weights="ema",
                dtype=self.recipe.exports.dtype,
                about=about,
                lora=lora,
            )
        except UserError as error:
            tell.say(f"warning: {error}")
        else:
            for file in lora.files(target) if lora else [target]:
                tell.say(f"weights alone are in {file}")
                tell.event("export", step=position.global_step, name=file.name)

    def look_ahead(self, state: TrainState, position: DataPosition) -> list[str]:
        """Try out the disk, and say what checkpoints will take of it. Collective.

        Raises:
            UserError: The main rank cannot save there.
        """
        total = sum(self.world.gather(shards.local_bytes(state.state_dict())))  # type: ignore[arg-type]
        if not self.world.is_main:
            return []
        mounted = disk_space.probe(self.store.root)
        policy, last = self.recipe.checkpoints, progress.last_step(self.recipe.train, position)
        steps = forecast.saves(policy, position.global_step, last)
        told = forecast.forecast(total, policy, steps, mounted.free_bytes, retention.whole(self.store))
        lines = told.lines()
        if not mounted.locks:
            lines.append(
                "this file system has no locks: see docs/reference/run-folder.md for what that means"
            )
        return lines


class Order(TypedDict):
    """Arguments of a save beside the tensors."""

    extra: dict[str, bytes]
    metrics: dict[str, float]
    run_id: str


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

    def votes(self, *, stop: bool) -> StepFlags:
        """Return what this rank asks of all ranks at the next step's edge.

        Raises:
            LockLost: Another process took the run over, so that going on is of no use.
        """
        self.check()
        return StepFlags(stop=stop, save=self._asks(), writing=self.background.is_writing)

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
        self, position: DataPosition, metrics: dict[str, float], votes: StepFlags, step_seconds: float
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

    def _is_due(self, position: DataPosition, metrics: dict[str, float]) -> bool:
        every = self.config.every_steps
        if every is not None and position.global_step % every == 0:
            return True
        if self.config.at_epoch_end and position.at_end:
            return True
        return self.config.at_best and self.keeper.is_best(metrics)

    def _save(self, position: DataPosition, metrics: dict[str, float]) -> None:
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

    def _save_now(self, position: DataPosition, metrics: dict[str, float]) -> None:
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

    def _settle(self, position: DataPosition | None) -> None:
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

    def _failed(self, step: int, error: SaveFailed, position: DataPosition | None) -> None:
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

    def last(self, position: DataPosition, metrics: dict[str, float]) -> None:
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
                code="save-failed",
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
