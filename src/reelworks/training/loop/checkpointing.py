"""Checkpoints of a run: their contents, when they are saved, and what happens if a save fails."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from reelworks.core import files, launcher, log, storage, units
from reelworks.core.errors import UserError, first_few
from reelworks.core.log import logger
from reelworks.data.checkpoint import disk_space, load, mixture, names, retention, save, shards
from reelworks.data.checkpoint.async_save import Background, held_bytes
from reelworks.data.checkpoint.manifest import BadCheckpoint
from reelworks.data.checkpoint.mirror.mirror import Mirror
from reelworks.data.checkpoint.policy import CheckpointFacts, as_event, score, series
from reelworks.data.checkpoint.save import DiskFull, Saved, SaveDetails, SaveFailed
from reelworks.data.distributed import collectives
from reelworks.data.loader.position import DataPosition
from reelworks.data.run import events
from reelworks.data.schedule.cursor import Aliases, Cursor, Excluded
from reelworks.models.base_model import Base, require_same_adapter
from reelworks.models.export import export, exports_folder
from reelworks.models.export.lora import BASE, lora_file_of
from reelworks.training.assembly import init_from
from reelworks.training.assembly.build import TrainedModel
from reelworks.training.loop.open_run import OpenRun
from reelworks.training.observers.observer import StepObserver
from reelworks.training.observers.run_logger import RunLogger
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import progress
from reelworks.training.step.state import TrainState
from reelworks.training.step.step_sums import StepFlags

_EXCLUDED = "excluded.npz"
_ALIASES = "aliases.npz"
# With `asynchronous = "auto"` states of this size or more are saved in a thread; smaller ones are written at once.
_ASYNCHRONOUS_BYTES = 1_000_000_000
# A failed save is repeated after this time; each attempt may write up to a whole checkpoint.
_RETRY_SECONDS = 30.0


Restored = tuple[Cursor, Excluded, Aliases]


def restore(
    checkpoint: Path, state: TrainState, base: Base | None, adapter: str | None = None, *, optimizer: bool = True
) -> Restored:
    """Load weights, average and, unless that begins anew, optimizer in place; return the position in the data. Collective.

    `adapter` is the source of the training adapter, of which `base` has the digest. Raises as `load.load` does.
    """
    trained_on = init_from.require_base(checkpoint, base)
    if trained_on is not None and base is not None:
        require_same_adapter(trained_on, base, adapter)
    tensors = {key: value for key, value in state.state_dict().items() if optimizer or key != "optimizer"}
    load.load(checkpoint, tensors, fixed=True)
    if optimizer:
        state.optimizer.load_state_dict(tensors["optimizer"])

    others = [name for name in load.extra_names(checkpoint) if name not in (names.CURSOR, BASE)]
    files = {name: load.read_extra(checkpoint, name) for name in others}
    excluded, aliases = files.pop(_EXCLUDED, None), files.pop(_ALIASES, None)
    state.load_files(files)
    return (
        Cursor(**json.loads(load.read_extra(checkpoint, names.CURSOR))),
        Excluded() if excluded is None else Excluded.from_bytes(excluded),
        Aliases() if aliases is None else Aliases.from_bytes(aliases),
    )


def try_disk(run: OpenRun, recipe: Recipe, state: TrainState, position: DataPosition) -> None:
    """Write to the checkpoints' disk before training, and log how much of it checkpoints will take. Collective."""
    total = sum(run.world.gather(shards.num_bytes(shards.tensors_in(state.state_dict()))))  # type: ignore[arg-type]
    if not run.world.is_main:
        return
    mounted = disk_space.probe(run.store.root)
    policy, last = recipe.checkpoints, progress.last_step(recipe.train, position)
    epoch, validations = position.plan.num_steps, recipe.validation.every_steps
    steps = disk_space.saves(policy, position.global_step, last, epoch, validations)
    expected = disk_space.forecast(total, policy, steps, mounted.free_bytes, retention.whole(run.store))
    logger.info(expected.to_text())
    for warning in expected.warnings():
        logger.warning(warning)
    if not mounted.locks:
        logger.info("this file system has no locks; docs/reference/run-folder.md says what that means")


@contextmanager
def mirroring(run: OpenRun, recipe: Recipe, log: RunLogger, resumed_from: int | None) -> Iterator[Mirror | None]:
    """Copy checkpoints to the recipe's mirror during training, on the main rank; waits for the last copy at the end."""
    remote, config = run.folder_lock.remote, recipe.checkpoints.mirror
    if remote is None or config is None:
        yield None
        return
    mirror = Mirror(remote, run.folder, config, log.event)
    if resumed_from is not None:  # a kill may have interrupted its copy
        mirror.offer(resumed_from)
    try:
        yield mirror
    finally:
        if failure := mirror.close():
            logger.warning(failure)


class CheckpointManager:
    """Save checkpoints between steps, and delete those that the retention policy does not keep.

    A save is due by steps, epochs, minutes, a new best metric, or a request file. A large state is saved
    asynchronously: a thread writes a copy, and a later step publishes it. Training continues after a failed save,
    which is repeated later. Only the main rank has a `mirror`; `resumed_from` is None for a fresh start.
    """

    def __init__(
        self,
        run: OpenRun,
        data: RecipeData,
        model: TrainedModel,
        log: RunLogger,
        mirror: Mirror | None,
        resumed_from: int | None,
    ) -> None:
        self._run, self._data, self._state, self._base = run, data, model.state, model.base
        self._log, self._mirror = log, mirror
        self._store, self._world = run.store, run.world
        self._recipe, self._config = data.recipe, data.recipe.checkpoints
        self._background = Background(launcher.number("LOCAL_WORLD_SIZE"))
        self.saved_step = resumed_from  # of the newest save, which may still be written
        self._last_save_began = time.monotonic()
        self._retry_at: float | None = None  # time to repeat a failed save
        self._has_warned_of_grace = False
        self._needs_room = True  # the policy may be stricter than that of the last start, or the last save did not fit
        self._wait_seconds = 0.0
        self.observers: Sequence[StepObserver] = ()  # those that keep files in checkpoints
        self.measured_on: dict[str, str] = {}  # by metric, a digest of what it is measured on now
        self.exported: list[Path] = []  # files of the latest export of this start, on rank 0
        self._told_exports = set[str]()  # names of those of the newest save, which somebody may have moved since

    def epochs_in_use(self) -> set[tuple[int, int]]:
        """Return data_restarts and epoch of the position in each checkpoint, without damaged ones."""
        in_use = set()
        for info in self._store.list():
            with suppress(BadCheckpoint):
                cursor = json.loads(load.read_extra(info.path, names.CURSOR))
                in_use.add((cursor["data_restarts"], cursor["epoch"]))
        return in_use

    def make_up(self, *, is_last: bool) -> None:
        """Tell and export the checkpoint that this start resumes from, where a kill left no time for it.

        `is_last` tells whether that is the last one of the training or a stage.
        """
        step, is_told = self.saved_step, False
        for event in events.stream(self._run.folder.events_file, "checkpoint", "export") if self._world.is_main else ():
            if event["step"] == step and event["kind"] == "export":
                self._told_exports.add(event["name"])
            elif event["step"] == step:
                is_told = True
                self._told_exports.clear()
        if step is not None and self._world.is_main and not is_told:
            info = self._store.info(step)
            self._log.event("checkpoint", step=step, name=info.path.name, bytes=info.num_bytes, seconds=None)
        self._export(is_last=is_last)

    def has_metrics(self, step: int, names: Collection[str]) -> bool:
        """Whether the checkpoint of a step holds one of these metrics; equal on all ranks."""
        found = self._world.is_main and any(name in names for name in self._store.info(step).metrics)
        return bool(self._world.broadcast(found))

    def record_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Add metrics that were measured after the save to a checkpoint."""
        if self._world.is_main:
            self._store.record_metrics(step, metrics, self._measured_on(metrics))

    def _measured_on(self, metrics: dict[str, float]) -> dict[str, str]:
        return {name: digest for name, digest in self.measured_on.items() if name in metrics}

    def flags(self, *, stop: bool) -> StepFlags:
        """Return this rank's requests to all ranks at the end of the next step; the run folder must still be locked."""
        self._run.folder_lock.check()
        return StepFlags(stop=stop, save=self._is_requested(), writing=self._background.is_writing)

    def _is_requested(self) -> bool:
        """Whether the clock, a request file or a failed save asks for a save; False except on the main rank.

        A request stands until a save succeeds, so it is not repeated during an asynchronous save or right after a
        failed one.
        """
        if not self._world.is_main or self._background.step is not None:
            return False
        now, minutes = time.monotonic(), self._config.every_minutes
        if self._retry_at is not None:
            return now >= self._retry_at
        is_time = minutes is not None and now >= self._last_save_began + 60 * minutes
        return is_time or self._run.folder.save_file.is_file()

    def after_step(
        self, position: DataPosition, metrics: dict[str, float], flags: StepFlags, wait_seconds: float
    ) -> None:
        """Publish an asynchronous save that all ranks have written, and save if one is due. Collective.

        A signal may wait for `wait_seconds` before it leads to a save.
        """
        self._wait_seconds = wait_seconds
        if self._background.step is not None and not flags.writing:
            self._finish_background(position)
        config, step = self._config, position.global_step
        is_due = progress.is_due(config.every_steps, step) or (config.at_epoch_end and position.at_end)
        if flags.save or is_due or (config.at_best and self._is_best(metrics)):
            self._save(position, metrics)

    def save_last(self, position: DataPosition, metrics: dict[str, float], *, is_over: bool) -> None:
        """Save at the end of training, whose weights are exported, or on a signal, after an asynchronous save. Collective."""
        if self._background.step is not None:
            self._finish_background(None)
        if self.saved_step == position.global_step:
            self._export(is_last=is_over)
            return
        try:
            self._prepare(position.global_step)
            self._save_now(position, metrics, is_last=is_over)
        except SaveFailed as error:
            self._log.event("unsaved", step=position.global_step, reason=error.problem)
            if isinstance(error, DiskFull) and self._config.on_full == "weights-only":
                self._save_weights_only(position)
            raise

    def _is_best(self, metrics: dict[str, float]) -> bool:
        """Whether the metric is better than that of all checkpoints that it is compared with; equal on all ranks."""
        best = self._config.keep_best
        value = None if best is None else mixture.value(metrics, best.metric)
        if best is None or value is None:
            return False
        beats_all = False
        if self._world.is_main:
            sign = 1 if best.mode == "min" else -1
            now = CheckpointFacts(0, 0.0, 0, False, metrics, stage=self._data.stage.name, measured_on=self.measured_on)
            infos = [each for each in self._store.list() if series(each, best.metric) == series(now, best.metric)]
            known = [other for info in infos if (other := score(info, best.metric)) is not None]
            beats_all = all(sign * value < sign * other for other in known)
        return bool(self._world.broadcast(beats_all))

    def _save(self, position: DataPosition, metrics: dict[str, float]) -> None:
        """Save during training, asynchronously if possible; training continues if it fails."""
        step, writing = position.global_step, self._background.step
        if step == self.saved_step:
            return
        if writing is not None:
            self._log.event("unsaved", step=step, reason=f"step {writing} is still being written")
            logger.info("step %d is not saved: step %d is still being written", step, writing)
            return
        self._last_save_began = time.monotonic()
        try:
            self._prepare(step)
            if self._can_save_asynchronously(step):
                self._background.start(self._store, step, self._state.state_dict(), **self._details(position, metrics))
                self.saved_step = step
                self._end_request()
            else:
                self._save_now(position, metrics)
        except SaveFailed as error:
            self._fail(step, error, position)

    def _can_save_asynchronously(self, step: int) -> bool:
        """Whether the recipe asks for it and memory suffices; equal on all ranks."""
        state, asynchronous = self._state.state_dict(), self._config.asynchronous
        if asynchronous == "auto":
            asynchronous = any(self._world.gather(held_bytes(shards.tensors_in(state)) >= _ASYNCHRONOUS_BYTES))
        if not asynchronous:
            return False
        lack = self._background.lacks_memory(state)
        if lack:
            logger.info("step %d is saved while training waits: %s", step, lack)
        return not lack

    def _save_now(self, position: DataPosition, metrics: dict[str, float], *, is_last: bool = False) -> None:
        step, state, details = position.global_step, self._state.state_dict(), self._details(position, metrics)
        with log.stage(f"saving step {step}"):
            saved = save.save(self._store, step, state, **details)
        self.saved_step = step
        self._end_request()
        self._after_publishing(saved, is_last=is_last)

    def _details(self, position: DataPosition, metrics: dict[str, float]) -> SaveDetails:
        # Files other than tensors: the position in the data, recent losses, the LoRA's base.
        extra = {names.CURSOR: files.to_json(asdict(position.to_cursor(self._data)), indent=2).encode()}
        if position.excluded:
            extra[_EXCLUDED] = position.excluded.to_bytes()
        if position.aliases:
            extra[_ALIASES] = position.aliases.to_bytes()
        extra |= self._state.files()
        if self._base is not None:
            extra[BASE] = self._base.to_json().encode()
        for observer in self.observers:
            kept = observer.files(position.global_step)
            if taken := extra.keys() & kept:
                raise ValueError(f"{type(observer).__name__} may not keep {taken}, which others keep in a checkpoint")
            extra |= kept
        return {
            "extra": extra,
            "metrics": metrics,
            "measured_on": self._measured_on(metrics),
            "run_id": self._run.id,
            "stage_name": self._data.stage.name,
        }

    def _end_request(self) -> None:
        if self._world.is_main and self._run.folder.save_file.is_file():
            self._run.folder.save_file.unlink(missing_ok=True)

    def _finish_background(self, position: DataPosition | None) -> None:
        """Publish the save that all ranks have written; without a position, at the end, another save follows."""
        step = self._background.step
        assert step is not None
        try:
            saved = self._background.finish()
        except SaveFailed as error:
            if self.saved_step == step:
                self.saved_step = None
            self._fail(step, error, position)
            return
        self._after_publishing(saved, is_last=False)

    def _after_publishing(self, saved: Saved, *, is_last: bool) -> None:
        """Log and mirror a new checkpoint, delete old ones, export its weights, and compare with the grace period."""
        self._retry_at, self._needs_room = None, False
        self._told_exports.clear()
        step, name = saved.info.step, saved.info.path.name
        self._log.event("checkpoint", step=step, name=name, bytes=saved.bytes, seconds=saved.seconds)
        logger.info("saved step %d: %s, %.1f s", step, units.size(saved.bytes), saved.seconds)
        if self._mirror is not None:
            self._mirror.offer(step)
        if self._world.is_main:
            self._retain(step)
        self._export(is_last=is_last)
        grace, wait = self._config.grace_seconds, self._wait_seconds
        if grace is not None and wait + saved.seconds > grace and not self._has_warned_of_grace:
            self._has_warned_of_grace = True
            logger.warning(
                f"a signal may wait {wait:.1f} s for a step and the longest step or pause before it, and a save takes "
                f"{saved.seconds:.1f} s, more than checkpoints.grace_seconds = {grace:g}: a run that must stop may be killed "
                "before it has saved"
            )

    def _retain(self, step: int) -> None:
        """Delete the checkpoints that the policy does not keep, unless the disk fails."""
        try:
            in_use = frozenset[int]() if self._mirror is None else self._mirror.in_use()
            decisions = retention.apply_retention(self._store, self._config, in_use)
        except OSError as error:
            logger.warning("old checkpoints could not be deleted (%s)", error)
        else:
            self._log.event("retention", step=step, **as_event(decisions))

    def _export(self, *, is_last: bool) -> None:
        """Export what the recipe asks for of the newest save, unless it was; training continues if that fails."""
        step = self.saved_step
        if step is None or not self._world.is_main:
            return
        path, config = self._store.path(step), self._recipe.exports
        epoch = json.loads(load.read_extra(path, names.CURSOR))["epoch"]
        try:
            written = exports_folder.write(
                self._run.folder, path, config, step=step, epoch=epoch, is_last=is_last, told=self._told_exports
            )
        except UserError as error:
            logger.warning(error)
        else:
            self.exported = written or self.exported
            for file in written:
                self._log.event("export", step=step, name=file.name)

    def _fail(self, step: int, error: SaveFailed, position: DataPosition | None) -> None:
        """Log a failed save, and do what `on_full` says if training goes on."""
        self._needs_room = True
        policy = self._config.on_full if isinstance(error, DiskFull) and position is not None else "wait"
        self._log.event("unsaved", step=step, reason=error.problem)
        if policy == "stop":
            raise error
        if self._retry_at is None:
            logger.warning(error)
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        if policy == "weights-only" and position is not None:
            self._retry_at = None
            self._end_request()
            self._save_weights_only(position)

    def _save_weights_only(self, position: DataPosition) -> None:
        """Export only the averaged weights, because the disk is too full for a checkpoint. Collective."""
        step, run = position.global_step, self._run.folder
        lora = lora_file_of(run.recipe_file, "diffusers", self._base)
        target = exports_folder.path_of(run, step, "ema", lora.format if lora else None)
        about = export.describe_run(run_id=self._run.id, recipe=run.recipe_file, step=step, epoch=position.epoch)
        try:
            with export.raising_export_failed(target):
                collectives.on_first(lambda: storage.mkdirs(target.parent))
            dtype = self._recipe.exports.dtype
            export.export_weights(self._state.state_dict(), target, weights="ema", dtype=dtype, about=about, lora=lora)
        except UserError as error:
            logger.warning(error)
        else:
            for file in lora.files(target) if lora else [target]:
                logger.info("only the averaged weights are saved, in %s", file)
                self._log.event("export", step=step, name=file.name)

    def _prepare(self, step: int) -> None:
        """Make room for a save if it may need it.

        Raises `SaveFailed` on all ranks if a tensor on any rank is not finite: training could not go on from it.
        """
        found = self._world.gather(self._state.not_finite())
        bad = list(dict.fromkeys(name for part in found for name in part))  # type: ignore[attr-defined]
        if bad:
            raise SaveFailed(
                f"not finite, so no checkpoint was saved: {first_few(bad)}",
                code="save-failed",
                field="checkpoints",
                value=str(self._store.root),
                remedy="resume with the same command; if this happens again, lower train.learning_rate",
            )
        if self._needs_room and self._world.is_main:
            self._retain(step)
