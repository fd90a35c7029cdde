"""Drills of first recipes: what `new lora` writes is accepted by `plan`, at a size that suits the footage."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from kinds_of_footage import FILLED_SIDE, KINDS, write_kinds

from reelworks.core.errors import UserError
from reelworks.data.buckets import sizes
from reelworks.models import registry
from reelworks.quickstart import quickstart
from reelworks.quickstart.request import NewLoraRequest
from reelworks.training.memory import published_sizes
from reelworks.training.plan import plan_forecast
from reelworks.training.recipe import dataset, recipe_file

GPUS_GB = (8, 12, 16, 24)


class Case(NamedTuple):
    """A model, a kind of footage and the memory of a GPU."""

    preset: str
    kind: str
    gb: int

    @property
    def is_quick(self) -> bool:
        """Whether sizes of its network are known, so that it is not built."""
        return published_sizes.of_preset(self.preset) is not None and registry.PRESETS[self.preset].sound is None

    def __str__(self) -> str:
        return f"{self.preset}-{self.kind}-{self.gb}"


def cases() -> list[Case]:
    """Return all cases."""
    return [Case(*case) for case in itertools.product(registry.PRESETS, KINDS, GPUS_GB)]


def problems(case: Case) -> list[str]:
    """Write the recipe of a case in the current folder, which has the footage, and plan it; returns what is wrong."""
    known = registry.PRESETS[case.preset]
    beside = dict.fromkeys(map(str, known.config.conditioning.companions.needs), f"beside-{case.kind}")
    weights = "some/where" if known.release and known.release.weights is None else None
    path, taken = Path(f"{case}.toml"), _taken(case)
    request: dict[str, Any] = {
        "model": case.preset,
        "data": case.kind,
        "vram_gb": case.gb,
        "weights": weights,
        **beside,
    }
    try:
        made = quickstart.lora(NewLoraRequest(output=path, force=True, **request))
    except UserError as error:
        expected = {"gpu-too-small"} if taken else {"model-takes-images-only", "model-takes-clips-only"}
        return [] if error.code in expected and not path.exists() else [f"new lora: {error}"]
    if not taken:
        return ["a model was given footage that it does not take"]
    try:
        recipe = recipe_file.load(path)
        dataset.scan_recipe(recipe)
        forecast = plan_forecast.forecast(recipe, 1, 1)
    except UserError as error:
        return [f"plan: {error}"]
    uses = len(recipe.dataset[0].resolutions or (1,))
    count = uses * (6 * ("pictures" in taken) + 3 * ("clips" in taken))
    wrong = [] if forecast.planned == count else [f"{forecast.planned} of {count} are planned"]
    if recipe != made.recipe:
        wrong.append("the file says something else than the result")
    return wrong + [text for entry in recipe.bucket if (text := _wrong_size(case, entry.resolution, entry.num_frames))]


def _taken(case: Case) -> set[str]:
    """Return the kinds of a case's footage that its model takes."""
    known = registry.PRESETS[case.preset]
    kinds = {"pictures", "clips"} if case.kind == "both" else {case.kind}
    return kinds - ({"clips"} if known.config.pictures_only else set()) - ({"pictures"} if known.sound else set())


def _wrong_size(case: Case, resolution: str, num_frames: object) -> str | None:
    """Return what is wrong with a size: the footage fills every release's size to more than 85 %, but for those beyond 1024²."""
    release = registry.release_of(case.preset)
    if num_frames == 1:
        limits = [min(side, FILLED_SIDE) ** 2 for side in (release.side, *release.more_sides)]
    else:
        limits = [sizes.pixel_budget(f"{lines}p")[0] for lines in (release.lines, *release.more_lines)]
    pixels = sizes.pixel_budget(resolution)[0]
    if any(math.isclose(pixels, limit, rel_tol=0.02) for limit in limits):
        return None
    return f"{resolution} for a model of {math.isqrt(limits[0])}²"


def first_recipes(quick: list[Case], chance: random.Random, folder: Path) -> list[str]:
    """Write and plan the recipes of a model with known sizes, for each kind of footage and each memory.

    Models are taken in turn, so that as many tries as there are models try all.
    """
    order = list(dict.fromkeys(case.preset for case in quick))
    preset = order[next(_TRIES) % len(order)]
    write_kinds(folder)
    with contextlib.chdir(folder):
        return [f"{case}: {problem}" for case in quick if case.preset == preset for problem in problems(case)]


_TRIES = itertools.count()
DRILLS: dict[str, Callable[[random.Random, Path], list[str]]] = {
    "every model": partial(first_recipes, [case for case in cases() if case.is_quick])
}
