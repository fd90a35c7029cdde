"""Where training begins or goes on: what the command line asks for, and what the run folder holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reelworks.prepare import position as positions
from reelworks.prepare import resume
from reelworks.prepare.data import RecipeData
from reelworks.prepare.position import Position
from reelworks.run import coverage as told
from reelworks.run.folder import RunFolder
from reelworks.schedule.cursor import Cursor
from reelworks.schedule.plan import PlanSpec
from reelworks.train import difference, origin
from reelworks.train.keep import Keeper
from reelworks.train.state import TrainState


@dataclass(frozen=True)
class RunOptions:
    """What the command line adds to a recipe.

    Attributes:
        resume: "auto", "never", or a step.
        load: Another run, or a checkpoint, to begin with; without effect once this run has its own.
        weights_only: Take only the weights of `load`.
        start_from_scratch: Begin the data again at epoch 0, and keep weights, optimizer and step count.
        debug: Log the clips of every step, on every rank.
    """

    resume: str = "auto"
    load: Path | None = None
    weights_only: bool = False
    start_from_scratch: bool = False
    debug: bool = False


def find(
    data: RecipeData,
    spec: PlanSpec,
    folder: RunFolder,
    keeper: Keeper,
    step: int | None,
    state: TrainState,
    options: RunOptions,
) -> tuple[Position, list[str]]:
    """Find where to train on, with the weights for it in place; also what to tell of it."""
    if step is None:
        begun, empty = positions.next_epoch(data, spec, None)
        said = ["starting fresh", *(f"epoch {epoch}: no clip was drawn" for epoch in empty)]
        if options.load is not None:
            said.append(
                origin.take_over(
                    options.load,
                    state,
                    keeper.world,
                    data.recipe,
                    keeper.base,
                    weights_only=options.weights_only,
                )
            )
        return begun, said
    cursor, excluded, aliases = keeper.restore(step, state)
    changes = difference.of_recipes(folder, step, data.recipe) if keeper.world.is_main else []
    if options.load is not None:
        changes.append("--load is without effect: the run goes on from its own checkpoint")
    if options.start_from_scratch:
        # The main rank decides: what others see of the events may be older.
        why_not = keeper.world.broadcast(
            _why_not_again(data, folder, cursor, options) if keeper.world.is_main else None
        )
        if why_not is None:
            begun, found = resume.start_again(data, spec, folder, cursor, aliases)
            return begun, [f"weights of step {step}; the data begin again at epoch 0", *found, *changes]
        changes.append(f"--start-from-scratch is without effect: {why_not}")
    position, found = resume.resume(data, spec, folder, cursor, excluded, aliases)
    return position, [
        f"resumed from step {step}, epoch {position.epoch}, row {position.row}",
        *found,
        *changes,
    ]


def _why_not_again(data: RecipeData, folder: RunFolder, cursor: Cursor, options: RunOptions) -> str | None:
    """Why the data do not begin again although asked to; None where they do.

    A scheduler gives the same command again after every preemption. So data that were begun from scratch are
    finished first, unless a checkpoint is named.
    """
    last = data.recipe.train.max_steps
    if last is not None and cursor.global_step >= last:
        return f"train.max_steps = {last} is reached"
    named = options.resume != "auto"
    if named or not cursor.generation or cursor.generation in told.finished_generations(folder):
        return None
    return (
        "the data began again at an earlier start and are not finished, so training goes on with them; "
        f"--resume {cursor.global_step} --start-from-scratch begins them again"
    )
