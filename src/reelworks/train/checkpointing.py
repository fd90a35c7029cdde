"""Checkpoints of a run: what one holds, when one is saved, and what happens to a save that fails."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from reelworks.checkpoint import disk_space, load, names, retention, save, shards
from reelworks.checkpoint.async_save import Background, held_bytes
from reelworks.checkpoint.config import KeepBest
from reelworks.checkpoint.manifest import BadCheckpoint
from reelworks.checkpoint.mirror.mirror import Mirror
from reelworks.checkpoint.policy import rank_best
from reelworks.checkpoint.save import DiskFull, Saved, SaveFailed
from reelworks.core import files, storage
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.position import DataPosition
from reelworks.distributed import collectives
from reelworks.export import export, exports_folder
from reelworks.export.lora import BASE, lora_file_of
from reelworks.models.lora.base_model import Base
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe
from reelworks.schedule.cursor import Aliases, Cursor, Excluded
from reelworks.train import init_from, progress
from reelworks.train.open_run import OpenRun
from reelworks.train.run_logger import RunLogger
from reelworks.train.state import TrainState
from reelworks.train.step import StepFlags

_EXCLUDED = "excluded.npz"
_ALIASES = "aliases.npz"
# "auto" saves beside training from this size on: a smaller state is written before a thread has begun.
_ASYNCHRONOUS_BYTES = 1_000_000_000
# A full disk is asked again after this time; each try may write up to a whole checkpoint.
_PATIENCE_SECONDS = 30.0
_NAMED = 3


class SavedPosition(NamedTuple):
    """Position in the data that a checkpoint was saved at."""

    cursor: Cursor
    excluded: Excluded
    aliases: Aliases


class SaveOrder(TypedDict):
    """Arguments of a save beside the tensors."""

    extra: dict[str, bytes]
    metrics: dict[str, float]
    run_id: str


def restore(checkpoint: Path, state: TrainState, base: Base | None) -> SavedPosition:
    """Load weights, average and optimizer in place. Collective.

    Raises:
        UserError: The checkpoint is of another model, or its LoRA was trained on another base.
    """
    init_from.require_base(checkpoint, base)
    tensors = state.state_dict()
    load.load(checkpoint, tensors)
    state.load_optimizer(tensors["optimizer"])
    excluded, aliases = Excluded.none(), Aliases()
    if load.has_extra(checkpoint, _EXCLUDED):
        excluded = Excluded.from_bytes(load.read_extra(checkpoint, _EXCLUDED))
    if load.has_extra(checkpoint, _ALIASES):
        aliases = Aliases.from_bytes(load.read_extra(checkpoint, _ALIASES))
    return SavedPosition(Cursor(**json.loads(load.read_extra(checkpoint, names.CURSOR))), excluded, aliases)


def try_disk(run: OpenRun, recipe: Recipe, state: TrainState, position: DataPosition) -> None:
    """Try out the disk before training, and log what checkpoints will take of it. Collective.

    Raises:
        UserError: The main rank cannot save there.
    """
    total = sum(run.world.gather(shards.local_bytes(state.state_dict())))  # type: ignore[arg-type]
    if not run.world.is_main:
        return
    mounted = disk_space.probe(run.store.root)
    policy, last = recipe.checkpoints, progress.last_step(recipe.train, position)
    steps = disk_space.saves(policy, position.global_step, last)
    expected = disk_space.forecast(total, policy, steps, mounted.free_bytes, retention.whole(run.store))
    logger.info(expected.to_text())
    for warning in expected.warnings():
        logger.warning(warning)
    if not mounted.locks:
        logger.info("this file system has no locks: see docs/reference/run-folder.md for what that means")


@contextmanager
def mirroring(run: OpenRun, recipe: Recipe, log: RunLogger, resumed_from: int | None) -> Iterator[Mirror | None]:
    """Copy checkpoints elsewhere beside training, on the main rank, if the recipe says so; waits for the last copy."""
    remote, config = run.folder_lock.remote, recipe.checkpoints.mirror
    if remote is None or config is None:
        yield None
        return
    mirror = Mirror(remote, run.folder, run.id, config, log)
    if resumed_from is not None:  # whose copy a kill may have cut off
        mirror.offer(resumed_from)
    try:
        yield mirror
    finally:
        if failure := mirror.close():
            logger.warning(failure)


class CheckpointManager:
    """Saves a run at its steps' edges, and retires what its policy does not keep.

    A save is due by steps, epochs, minutes, a new best, or a person's file. It waits for nothing where the state is
    large: a thread writes a copy, and a later step publishes it. A save that fails costs itself, and is tried again.
    """

    def __init__(
        self,
        *,
        run: OpenRun,
        data: RecipeData,
        state: TrainState,
        base: Base | None,
        log: RunLogger,
        mirror: Mirror | None,
        resumed_from: int | None,
    ) -> None:
        """Begin where a run does.

        Args:
            run: The run folder, held.
            data: What is trained on, for the cursor.
            state: What is saved.
            base: What its LoRA lies on, if it trains one.
            log: Told of saves, published or failed.
            mirror: On the main rank, where checkpoints are copied to.
            resumed_from: The step whose checkpoint is there already.
        """
        self._run, self._data, self._state, self._base = run, data, state, base
        self._log, self._mirror = log, mirror
        self._store, self._world = run.store, run.world
        self._recipe, self._config = data.recipe, data.recipe.checkpoints
        self._background = Background(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        self._saved_step = resumed_from
        self._last_save_began = time.monotonic()
        self._owed_from: float | None = None  # when a save that failed is tried again
        self._has_warned_of_grace = False
        self._step_seconds = 0.0

    def epochs_in_use(self) -> set[tuple[int, int]]:
        """Generation and epoch of every checkpoint's cursor; from a damaged one nothing goes on."""
        found = set()
        for info in self._store.list():
            with suppress(BadCheckpoint):
                cursor = json.loads(load.read_extra(info.path, names.CURSOR))
                found.add((cursor["generation"], cursor["epoch"]))
        return found

    def has_metrics(self, step: int) -> bool:
        """Say whether a checkpoint knows its validation loss, or there is nothing to know it by."""
        found = not self._world.is_main or bool(self._store.info(step).metrics)
        return bool(self._world.broadcast(found))

    def record_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Tell a checkpoint what was measured after its save."""
        if self._world.is_main:
            self._store.record_metrics(step, metrics)

    def flags(self, *, stop: bool) -> StepFlags:
        """Return what this rank asks of all ranks at the next step's edge.

        Raises:
            LockLost: Another process took the run over, so that going on is of no use.
        """
        self._run.folder_lock.check()
        return StepFlags(stop=stop, save=self._asks(), writing=self._background.is_writing)

    def _asks(self) -> bool:
        """On the main rank: whether the clock, a person or an owed save asks for one.

        They ask until they get one, so not while a save is in flight, nor again right after one that failed.
        """
        if not self._world.is_main or self._background.step is not None:
            return False
        now, minutes = time.monotonic(), self._config.every_minutes
        if self._owed_from is not None:
            return now >= self._owed_from
        is_time = minutes is not None and now >= self._last_save_began + 60 * minutes
        return is_time or self._run.folder.save_file.is_file()

    def after_step(
        self, position: DataPosition, metrics: dict[str, float], flags: StepFlags, step_seconds: float
    ) -> None:
        """Publish what is written, and save if it is time to. Collective.

        Args:
            position: Where to go on.
            metrics: Measured at this step.
            flags: What the ranks asked for, all together.
            step_seconds: Time that the step took.

        Raises:
            DiskFull: The disk is full, and the recipe says to stop then.
        """
        self._step_seconds = step_seconds
        if self._background.step is not None and not flags.writing:
            self._settle(position)
        if flags.save or self._is_due(position, metrics):
            self._save(position, metrics)

    def save_last(self, position: DataPosition, metrics: dict[str, float]) -> None:
        """Save at a run's end, or on a signal; waits for all, and for what is in flight before. Collective.

        Raises:
            SaveFailed: The state could not be saved.
        """
        if self._background.step is not None:
            self._settle(None)
        if self._saved_step == position.global_step:
            return
        try:
            self._require_finite()
            self._save_now(position, metrics)
        except SaveFailed as error:
            self._log.event("unsaved", step=position.global_step, reason=error.problem)
            raise

    def _is_due(self, position: DataPosition, metrics: dict[str, float]) -> bool:
        every = self._config.every_steps
        if every is not None and position.global_step % every == 0:
            return True
        if self._config.at_epoch_end and position.at_end:
            return True
        return self._config.at_best and self._is_best(metrics)

    def _is_best(self, metrics: dict[str, float]) -> bool:
        """Say whether what was measured now is better than what any checkpoint has; equal on all ranks."""
        best = self._config.keep_best
        if best is None or best.metric not in metrics:
            return False
        return bool(self._world.broadcast(self._world.is_main and self._beats_all(best, metrics[best.metric])))

    def _beats_all(self, best: KeepBest, value: float) -> bool:
        sign = 1 if best.mode == "min" else -1
        infos = self._store.list()
        ranked = rank_best(infos, best)
        known = [info.metrics[best.metric] for info in infos if info.step == ranked[0]] if ranked else []
        return math.isfinite(value) and all(sign * value < sign * other for other in known)

    def _save(self, position: DataPosition, metrics: dict[str, float]) -> None:
        """Save at an interval: beside training if that is possible, and never at its cost."""
        step, in_flight = position.global_step, self._background.step
        if step == self._saved_step:
            return
        if in_flight is not None:
            self._log.event("unsaved", step=step, reason=f"step {in_flight} is still being written")
            logger.info("step %d is not saved: step %d is still being written", step, in_flight)
            return
        self._last_save_began = time.monotonic()
        try:
            self._require_finite()
            if self._can_save_beside(step):
                state = self._state.state_dict()
                self._background.start(self._store, step, state, **self._order(position, metrics))
                self._saved_step = step
                self._end_request()
            else:
                self._save_now(position, metrics)
        except SaveFailed as error:
            self._fail(step, error, position)

    def _can_save_beside(self, step: int) -> bool:
        """Whether to save beside training; equal on all ranks."""
        how = self._config.asynchronous
        state = self._state.state_dict()
        if how == "auto":
            large = held_bytes(state) >= _ASYNCHRONOUS_BYTES
            how = any(self._world.gather(large))
        if not how:
            return False
        lack = self._background.lacks_memory(state)
        if lack:
            logger.info("step %d is saved while training waits: %s", step, lack)
        return not lack

    def _save_now(self, position: DataPosition, metrics: dict[str, float]) -> None:
        step, state = position.global_step, self._state.state_dict()
        saved = save.save(self._store, step, state, **self._order(position, metrics))
        self._saved_step = step
        self._end_request()
        self._published(saved)

    def _order(self, position: DataPosition, metrics: dict[str, float]) -> SaveOrder:
        """Return what a checkpoint holds beside the tensors."""
        extra = {names.CURSOR: files.to_json(position.to_cursor(self._data).to_json(), indent=2).encode()}
        if position.excluded:
            extra[_EXCLUDED] = position.excluded.to_bytes()
        if position.aliases:
            extra[_ALIASES] = position.aliases.to_bytes()
        if self._base is not None:
            extra[BASE] = self._base.to_json().encode()
        return {"extra": extra, "metrics": metrics, "run_id": self._run.id}

    def _end_request(self) -> None:
        """Remove the file by which a person asked for a save."""
        if self._world.is_main and self._run.folder.save_file.is_file():
            self._run.folder.save_file.unlink(missing_ok=True)

    def _settle(self, position: DataPosition | None) -> None:
        """Publish the save in flight, all of whose parts are written or have failed.

        Args:
            position: Where training goes on; None at its end, where another save follows.
        """
        step = self._background.step
        assert step is not None
        try:
            saved = self._background.finish()
        except SaveFailed as error:
            if self._saved_step == step:
                self._saved_step = None
            self._fail(step, error, position)
            return
        self._published(saved)

    def _published(self, saved: Saved) -> None:
        """Tell of a new checkpoint and have it mirrored, retire what the policy does not keep, and export."""
        self._owed_from = None
        step = saved.info.step
        name = saved.info.path.name
        self._log.event("checkpoint", step=step, name=name, bytes=saved.bytes, seconds=saved.seconds)
        if self._world.is_main:
            if self._mirror is not None:
                self._mirror.offer(step)
            if self._retire(step):
                self._export(saved)
        self._compare_with_grace(saved.seconds)

    def _retire(self, step: int) -> bool:
        """Delete what the policy does not keep; False where the disk refused."""
        try:
            in_use = frozenset[int]() if self._mirror is None else self._mirror.in_use()
            decisions = retention.apply_retention(self._store, self._config, in_use)
        except OSError as error:
            logger.warning("old checkpoints could not be deleted (%s)", error)
            return False
        described: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for decision in decisions:
            described[decision.keep].append({"step": decision.step, "reasons": list(decision.reasons)})
        self._log.event("retention", step=step, kept=described[True], deleted=described[False])
        return True

    def _export(self, saved: Saved) -> None:
        """Write the weights for use that the recipe asks for; a failure costs nothing but them."""
        step, path = saved.info.step, saved.info.path
        epoch = json.loads(load.read_extra(path, names.CURSOR))["epoch"]
        try:
            written = exports_folder.write(self._run.folder, path, self._recipe.exports, step=step, epoch=epoch)
        except UserError as error:
            logger.warning(error)
        else:
            for file in written:
                self._log.event("export", step=step, name=file.name)

    def _fail(self, step: int, error: SaveFailed, position: DataPosition | None) -> None:
        """Tell of a save that failed, and go on as the recipe says if training goes on."""
        policy = self._config.on_full if isinstance(error, DiskFull) and position is not None else "wait"
        self._log.event("unsaved", step=step, reason=error.problem)
        if policy == "stop":
            raise error
        first = self._owed_from is None
        self._owed_from = time.monotonic() + _PATIENCE_SECONDS
        if first:
            logger.warning(error)
        if policy == "weights-only":
            assert position is not None
            self._owed_from = None
            self._end_request()
            self._save_weights_only(position)

    def _save_weights_only(self, position: DataPosition) -> None:
        """On a disk too full for a checkpoint: the averaged weights alone. Collective."""
        step, run = position.global_step, self._run.folder
        lora = lora_file_of(run.recipe_file, "diffusers", self._base)
        target = exports_folder.path_of(run, step, "ema", lora.format if lora else None)
        about = export.describe_run(run_id=self._run.id, recipe=run.recipe_file, step=step, epoch=position.epoch)
        try:
            with export.raising_export_failed(target):
                collectives.on_first(lambda: storage.mkdirs(target.parent))
            export.export_weights(
                self._state.state_dict(),
                target,
                weights="ema",
                dtype=self._recipe.exports.dtype,
                about=about,
                lora=lora,
            )
        except UserError as error:
            logger.warning(error)
        else:
            for file in lora.files(target) if lora else [target]:
                logger.info("weights alone are in %s", file)
                self._log.event("export", step=step, name=file.name)

    def _require_finite(self) -> None:
        """Refuse to make a checkpoint of what could not be trained on; equal on all ranks.

        Raises:
            SaveFailed: Names what is not finite.
        """
        found = self._world.gather(self._state.not_finite())
        bad = list(dict.fromkeys(name for part in found for name in part))  # type: ignore[attr-defined]
        if bad:
            more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
            raise SaveFailed(
                f"not finite, so no checkpoint was saved: {', '.join(bad[:_NAMED])}{more}",
                code="save-failed",
                field="checkpoints",
                value=str(self._store.root),
                remedy="go on from the last checkpoint, which is sound: the same command resumes from it; lower "
                "train.learning_rate if it comes again",
            )

    def _compare_with_grace(self, save_seconds: float) -> None:
        # A signal that comes in the middle of a step is heard at the beginning of the next one, which is still done.
        grace, needed = self._config.grace_seconds, 2 * self._step_seconds + save_seconds
        if grace is None or needed <= grace or self._has_warned_of_grace:
            return
        self._has_warned_of_grace = True
        logger.warning(
            f"two steps take {2 * self._step_seconds:.1f} s and a save {save_seconds:.1f} s, more than "
            f"checkpoints.grace_seconds = {grace:g}: a run that is told to stop may be killed before it has saved"
        )
