"""Checkpoints of a run from the trainer's side: what goes in, where to go on."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypedDict

from reelworks.checkpoint import (
    commit,
    export,
    exports,
    forecast,
    load,
    lora_file,
    mount,
    names,
    ranks,
    retention,
    space,
)
from reelworks.checkpoint.commit import Saved
from reelworks.checkpoint.config import KeepBest
from reelworks.checkpoint.manifest import BadCheckpoint
from reelworks.checkpoint.mirror import Mirror
from reelworks.checkpoint.policy import rank_best
from reelworks.checkpoint.store import CheckpointStore
from reelworks.core import files, storage
from reelworks.core.errors import UserError
from reelworks.models.lora.base import Base
from reelworks.parallel.mesh import World
from reelworks.prepare.data import RecipeData
from reelworks.prepare.position import Position
from reelworks.recipe.recipe import Recipe
from reelworks.run.folder import RunFolder
from reelworks.schedule.cursor import Aliases, Cursor, Excluded
from reelworks.train import feed, origin, pick
from reelworks.train.recorder import Recorder
from reelworks.train.state import TrainState

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
        found = pick.step_of(self.store, self.run, resume) if self.world.is_main else None
        step: int | None = self.world.broadcast(found)  # type: ignore[assignment]
        if step is not None:  # before a model is loaded
            origin.require_same_lora(self.run, step, self.recipe)
            elsewhere = f"begin another run with --output DIR --load {self.run.path} --weights-only"
            origin.require_optimizer(self.run, step, self.recipe, elsewhere)
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
        origin.require_base(path, self.base)
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

    def order(self, position: Position, data: RecipeData, metrics: dict[str, float]) -> Order:
        """What a checkpoint holds beside the tensors."""
        extra = {names.CURSOR: files.to_json(position.to_cursor(data).to_json(), indent=2).encode()}
        if position.excluded:
            extra[_EXCLUDED] = position.excluded.to_bytes()
        if position.aliases:
            extra[_ALIASES] = position.aliases.to_bytes()
        if self.base is not None:
            extra[lora_file.BASE] = self.base.to_json().encode()
        return {"extra": extra, "metrics": metrics, "run_id": self.run_id}

    def save(
        self, position: Position, data: RecipeData, state: TrainState, metrics: dict[str, float]
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
            written = exports.write(self.run, path, self.recipe.exports, step=step, epoch=epoch)
        except UserError as error:
            tell.say(f"warning: {error}")
        else:
            for file in written:
                tell.event("export", step=step, name=file.name)

    def save_weights_only(self, position: Position, state: TrainState, tell: Recorder) -> None:
        """On a disk too full for a checkpoint: the averaged weights alone. Collective."""
        lora = lora_file.of_recipe(self.run.recipe_file, "diffusers", self.base)
        target = exports.path_of(self.run, position.global_step, "ema", lora.format if lora else None)
        about = export.about(
            run_id=self.run_id,
            recipe=self.run.recipe_file,
            step=position.global_step,
            epoch=position.epoch,
        )
        try:
            with export.told_as_failed(target):
                ranks.on_first(lambda: storage.mkdirs(target.parent))
            export.weights_only(
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

    def look_ahead(self, state: TrainState, position: Position) -> list[str]:
        """Try out the disk, and say what checkpoints will take of it. Collective.

        Raises:
            UserError: The main rank cannot save there.
        """
        total = sum(self.world.gather(space.local_bytes(state.state_dict())))  # type: ignore[arg-type]
        if not self.world.is_main:
            return []
        mounted = mount.probe(self.store.root)
        policy, last = self.recipe.checkpoints, feed.last_step(self.recipe.train, position)
        steps = forecast.saves(policy, position.global_step, last)
        told = forecast.forecast(total, policy, steps, mounted.free_bytes, retention.whole(self.store))
        lines = told.lines()
        if not mounted.locks:
            lines.append(
                "this file system has no locks: see docs/reference/run-folder.md for what that means"
            )
        return lines


class Order(TypedDict):
    """What `commit.save` is told beside the tensors."""

    extra: dict[str, bytes]
    metrics: dict[str, float]
    run_id: str
