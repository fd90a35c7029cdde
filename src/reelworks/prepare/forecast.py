"""The forecast of a recipe for a number of ranks and epochs."""

from __future__ import annotations

from functools import partial
from typing import Any

from reelworks.core.errors import UserError
from reelworks.prepare import ahead, cure, summary
from reelworks.prepare import position as positions
from reelworks.prepare.data import RecipeData
from reelworks.prepare.figures import Figures
from reelworks.recipe.recipe import Recipe
from reelworks.schedule.plan import PlanSpec

_MOST_MICRO_BATCHES = 1_000_000  # of a step: a row of the plan has a place for each


def step_shape(recipe: Recipe, world: int) -> tuple[int, int]:
    """Micro-batches per step and slot width that a run of `world` ranks begins with.

    Raises:
        UserError: The slot width does not divide the micro-batches per step, or these are too many or too few.
    """
    train = recipe.train
    if train.micro_batches_per_step is not None and train.micro_batches_per_step < world:
        raise too_many_ranks(train.micro_batches_per_step, world)
    width = train.slot_width or world
    steps = train.micro_batches_per_step or world * train.gradient_accumulation_steps
    if steps > _MOST_MICRO_BATCHES:
        raise UserError(
            "no step has so many micro-batches",
            field="train.micro_batches_per_step",
            value=steps,
            remedy="it is GPUs × train.gradient_accumulation_steps where the recipe does not name it; use fewer of both",
        )
    if steps % width:
        raise UserError(
            f"it must divide micro_batches_per_step, which is {steps}",
            field="train.slot_width",
            value=width,
            remedy=f"set train.slot_width to a divisor of {steps}",
        )
    return steps, width


def too_many_ranks(micro_batches_per_step: int, world: int) -> UserError:
    """The error for a world in which some ranks would never work."""
    return UserError(
        f"a step has {micro_batches_per_step} micro-batches, so some of {world} ranks would never work",
        field="train.micro_batches_per_step",
        value=micro_batches_per_step,
        remedy=f"use at most {micro_batches_per_step} ranks, or raise it (the rest of the epoch is then "
        "planned anew)",
    )


def forecast(recipe: Recipe, world: int, epochs: int = 1) -> dict[str, Any]:
    """Summarise the first epoch of a run that `world` ranks begin, and look further ahead.

    Args:
        recipe: The recipe; its catalog must be there.
        world: Ranks.
        epochs: Epochs that `epochs`, `sum`, `shares` and `never_seen` are about. `proposals` is None unless
            imbalance or padding is above `cure.WASTE_ALLOWED`; `fewer_ranks` is where no proposal suffices.
            `max_steps_to_set` is None unless the learning rate falls and lacks an end.

    Raises:
        UserError: The first epoch would have no step.
    """
    data = RecipeData.open(recipe)
    spec = _spec(data, world)
    position = positions.begin_epoch(data, spec, epoch=0)
    told = summary.summarise(data, spec, position.plan, world=world)
    further, total = ahead.look_ahead(data, spec, world=world, epochs=epochs)
    cures = _cures(data, spec, total, world=world, epochs=epochs)
    smaller = ahead.smaller_worlds(data, partial(_spec, data), world)
    train = recipe.train
    to_set = (train.max_epochs or 0) * position.plan.steps if train.lacks_end else None
    further |= {"smaller_worlds": smaller, "loss_weight": train.loss_weight, "max_steps_to_set": to_set}
    return told | further | cures


def _spec(data: RecipeData, world: int) -> PlanSpec:
    return data.spec(*step_shape(data.recipe, world))


def _cures(data: RecipeData, spec: PlanSpec, total: Figures, *, world: int, epochs: int) -> dict[str, Any]:
    if not cure.too_much(total):
        return {"proposals": None, "fewer_ranks": None}
    found = cure.proposals(data, spec, total, world=world, epochs=epochs)
    if any(one["suffices"] for one in found):
        return {"proposals": found, "fewer_ranks": None}
    fewer = cure.fewer_ranks(data, partial(_spec, data), world=world, epochs=epochs)
    return {"proposals": found, "fewer_ranks": fewer}
