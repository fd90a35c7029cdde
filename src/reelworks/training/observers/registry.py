"""Observers from outside this wing, by name: those of the house, and those that a program or an annex registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from reelworks.core import annexes, named_code
from reelworks.training.observers.observer import ObserverKind, StepObserver, Training
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe

# Module and name; they are imported when a training begins. Previews generate clips, which lies above training.
_KINDS: dict[str, str] = {"previews": "reelworks.inference.previews.previews:KIND"}


def register(name: str, place: str) -> None:
    """Add a kind of observers, `module:name`, to all trainings of this process."""
    _KINDS[name] = place


def require(recipe: Recipe) -> None:
    """Refuse what no observer can observe in a training of a recipe."""
    for kind in _kinds():
        kind.require(recipe)


def prepare(data: RecipeData) -> list[Callable[[Training], StepObserver]]:
    """Read what the recipe asks to be observed, and return what makes the observers when a model is there."""
    return [make for kind in _kinds() if (make := kind.prepare(data)) is not None]


def _kinds() -> list[ObserverKind]:
    places = [place for annex in (*annexes.of_house(), *annexes.from_outside()) for place in annex.observers]
    return [cast(ObserverKind, named_code.load(place)) for place in (*_KINDS.values(), *places)]
