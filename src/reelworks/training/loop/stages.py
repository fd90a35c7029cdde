"""Find the stage of a recipe that a start trains: the one that the checkpoint is in, or the one after it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.checkpoint import load, names
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.distributed import collectives
from reelworks.data.distributed.mesh import World
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.data.schedule.cursor import Cursor, StageStart
from reelworks.training.loop.request import TrainRequest
from reelworks.training.observers.early_stop import EarlyStop
from reelworks.training.recipe import diff, recipe_file
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.recipe.stages import ENDS, StageConfig
from reelworks.training.step import progress


@dataclass(frozen=True)
class Stage:
    """The part of a recipe that a start trains: one of its stages, or all of a recipe without stages.

    Attributes:
        recipe: The recipe of the stage, whose ends count from the start of the run.
        whole: The recipe with all stages.
        start: Where the stage began, or begins.
        step: Step of the checkpoint to resume from; None for a fresh start.
        begins: Whether that checkpoint is the end of the stage before.
        is_last: Whether no stage follows.
    """

    recipe: Recipe
    whole: Recipe
    start: StageStart
    step: int | None
    begins: bool = False
    is_last: bool = True

    def ends_run(self, step: int) -> bool:
        """Whether training ends with it, if it ends after this step of the run."""
        total = self.whole.train.max_steps
        return self.is_last or (total is not None and step >= total)

    @property
    def resets_optimizer(self) -> bool:
        """Whether it begins now, with a new state of the optimizer."""
        return self.begins and self.config is not None and self.config.optimizer == "reset"

    @property
    def config(self) -> StageConfig | None:
        """Its entry in the recipe; None without stages."""
        return next((stage for stage in self.whole.stage if stage.name == self.start.name), None)


def require_unrestarted(recipe: Recipe, request: TrainRequest) -> None:
    """Raise if the data of a run with stages are to be restarted."""
    if recipe.stage and request.restart_data:
        raise UserError(
            "each stage begins the data again by itself",
            code="restart-with-stages",
            field="--restart-data",
            remedy="leave it out; to train on the same data again, add a [[stage]]",
        )


def find(recipe: Recipe, step: int | None, world: World, ended: str = "") -> Stage:
    """Return the stage to train from the checkpoint of a step on, or from the start of the run. Collective.

    A stage that a kill ended after its last save goes on, to make up what the kill left no time for, with its own
    settings. `ended` names one that has ended in this process, so that a disk that took no event of it makes no loop.
    """
    if not recipe.stage:
        if step is not None and (name := _cursor(recipe, step).stage.name):
            raise _unknown([], name, step)
        return Stage(recipe, recipe, StageStart(), step)
    if step is None:
        return _stage(recipe, 0, StageStart(recipe.stage[0].name), None)
    cursor = _cursor(recipe, step)
    known = [stage.name for stage in recipe.stage]
    if cursor.stage.name not in known:
        raise _unknown(known, cursor.stage.name, step)
    index = known.index(cursor.stage.name)
    _require_order(recipe, index, step)
    stage = _stage(recipe, index, cursor.stage, step)
    if stage.ends_run(step):
        return stage
    file, one = RunFolder(Path(recipe.output)).events_file, stage.recipe
    early = EarlyStop.resume(one.validation, file, cursor.global_step, world, first=cursor.stage.step)
    if not early.is_over and not progress.is_done(one.train, cursor):
        return stage
    if cursor.stage.name != ended and not collectives.on_first(lambda: _has_ended(file, step)):
        return stage
    following = recipe.stage[index + 1]
    average_step = cursor.global_step if following.ema == "reset" else cursor.stage.average_step
    start = StageStart(following.name, cursor.global_step, cursor.epoch + 1, cursor.clips, average_step)
    return _stage(recipe, index + 1, start, step, begins=True)


def _require_order(recipe: Recipe, index: int, step: int) -> None:
    """Refuse a stage behind the present one that was trained before it, and warn of one before it that was not. Collective."""
    begun = collectives.on_first(lambda: _begun_before(RunFolder(Path(recipe.output)).events_file, step))
    present, names = recipe.stage[index].name, [stage.name for stage in recipe.stage]
    if again := [name for name in names[index + 1 :] if name in begun]:
        raise UserError(
            f"it comes behind {present}, but was trained before it",
            code="stage-trained-before",
            field="stage.name",
            value=again[0],
            remedy="rename it to train it again, or move it back",
        )
    for name in names[:index]:
        if name not in begun:
            logger.warning(f"stage {name} comes before {present}, which has begun, and is not trained; move it behind")


def _begun_before(events_file: Path, step: int) -> set[str]:
    """Return the names of the stages that had begun when a step was trained, but for those that a later start took back."""
    begun: dict[str, int] = {}
    for start in events.read(events_file, "start"):
        resumed, stage = start.get("resumed_from") or 0, start.get("stage", {"name": "", "step": 0})
        begun = {name: first for name, first in begun.items() if first < resumed} | {stage["name"]: stage["step"]}
    return {name for name, first in begun.items() if first < step}


def _has_ended(events_file: Path, step: int) -> bool:
    """Whether a stage was left in order at a step: a signal may cut short what comes after its last save."""
    return any(e["step"] == step and e["reason"] != "signal" for e in events.stream(events_file, "stop"))


def _stage(recipe: Recipe, index: int, start: StageStart, step: int | None, *, begins: bool = False) -> Stage:
    is_last = index + 1 == len(recipe.stage)
    return Stage(recipe_file.of_stage(recipe, index, start), recipe, start, step, begins, is_last)


def _cursor(recipe: Recipe, step: int) -> Cursor:
    path = CheckpointFolder(RunFolder(Path(recipe.output)).checkpoints_folder).path(step)
    return collectives.on_first(lambda: Cursor(**json.loads(load.read_extra(path, names.CURSOR))))


def _unknown(known: list[str], name: str, step: int) -> UserError:
    where = f"in stage {name}, which the recipe does not have" if name else "of a training without stages"
    return UserError(
        f"the checkpoint of step {step} is {where}",
        code="stage-unknown",
        field="stage",
        value=known,
        remedy="write [[stage]] with that name; finished stages stay in the recipe, and --set stage=NAME is for other commands"
        if name
        else "train the stages in a run of their own, with --output and --load",
    )


def log_edited(stage: Stage, folder: RunFolder) -> None:
    """Tell keys of finished stages that were edited since: nothing that was trained changes."""
    starts = {e["stage"]["name"]: e for e in events.timeline(folder.events_file, "start") if "stage" in e}
    for index, finished in enumerate(itertools.takewhile(lambda s: s.name != stage.start.name, stage.whole.stage)):
        if finished.name in starts:
            event = starts[finished.name]
            now = recipe_file.of_stage(stage.whole, index, StageStart(**event["stage"]))
            changes = diff.since(folder.recipes_folder / event["recipe"], now)
            edits = [change for change in changes if _is_edit(finished, now, change)]
            for line in diff.lines(as_written(edits, finished, StageStart(**event["stage"]))):
                logger.info(f"stage {finished.name} is finished, and stays as it was: {line}")


def as_written(changes: Iterable[diff.KeyChange], stage: StageConfig | None, start: StageStart) -> list[diff.KeyChange]:
    """Return changes of a stage's recipe with its ends as its entry says them, which count from its start."""
    # Those of [train] are the stages' alone but for max_steps, which may be the run's.
    keys = [] if stage is None else [key for key in ENDS if key != "steps" or stage.steps is not None]
    own = {f"train.{ENDS[key]}": key for key in keys}
    firsts = {"steps": start.step, "epochs": start.epoch, "clips": start.clips}
    result = []
    for change in changes:
        if (key := own.get(change.key)) is not None:
            ends = (end - firsts[key] if isinstance(end, int) else end for end in (change.before, change.after))
            change = diff.KeyChange(f"stage.{stage.name}.{key}" if stage else key, *ends)
        result.append(change)
    return result


def _is_edit(stage: StageConfig, now: Recipe, change: diff.KeyChange) -> bool:
    """Whether a difference from the recipe that a run kept of a stage was written by a person.

    A kept recipe has what the run decided in place of what was left to it, and the run's max_steps as end of all its stages.
    """
    if change.key == "train.max_steps":
        return stage.steps is not None
    if change.after == diff.NOT_SET and change.key.startswith("buckets.gradient_checkpointing."):
        return False
    if change.before == diff.NOT_SET and change.key in ("buckets.tuned", "train.step_seconds"):
        return False
    if now.parallel.sequence_degree == "auto" and "sequence_degree" in change.key:
        return False
    return "auto" not in (change.after if isinstance(change.after, list) else [change.after])
