"""Account of what another trainer does with each clip of a folder in an epoch, beside what happens to it here."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from reelworks.analysis import plan as analysis_plan
from reelworks.catalog.rows import CatalogRows
from reelworks.catalog.scan import ScanProgress
from reelworks.compat import files as config_files
from reelworks.recipe import dataset
from reelworks.recipe.dataset import RecipeData
from reelworks.recipe.recipe import Recipe


class Clip(NamedTuple):
    """A picture or video that can be read, as a scan finds it."""

    dataset: int  # number of its dataset in the recipe
    path: str  # below the folder of the dataset
    width: int
    height: int
    num_frames: int  # 1 of a picture
    fps: float  # 0 of a picture
    is_image: bool
    caption: str | None


class Use(NamedTuple):
    """A clip's share in one epoch."""

    times: float  # how often it is trained; below 1 on average of many epochs
    reason: str = ""  # why not at all, in only some epochs, or more often than the config's repeats say


@dataclass(frozen=True)
class FormerEpoch:
    """An epoch of a trainer: a use for each clip, and the rules that it follows from, with their place in its source."""

    uses: Sequence[Use]
    rules: tuple[str, ...]


@dataclass(frozen=True)
class ClipAccount:
    """Clips that a trainer leaves out or repeats by its own rules, beside those that are left out here.

    Attributes:
        trainer: Its name.
        clips: Number of pictures and videos that can be read.
        former_trained: Number of clips that it trains in an epoch.
        left_out: Clips that it leaves out, by reason.
        in_part: Clips that it trains in only some epochs, by reason.
        repeated: Clips that it trains more often than its config says, by reason.
        here_trained: Number of clips that an epoch trains here.
        here_left_out: Clips that are left out here, by reason.
        rules: The rules of the trainer that this follows from, with the place in its source.
    """

    trainer: str
    clips: int
    former_trained: int
    left_out: Mapping[str, list[str]]
    in_part: Mapping[str, list[str]]
    repeated: Mapping[str, list[str]]
    here_trained: int
    here_left_out: Mapping[str, list[str]]
    rules: tuple[str, ...]


def missing_folders(recipe: Recipe) -> list[str]:
    """Return the folders and lists of a recipe's datasets that are not there."""
    paths = [each.path for each in recipe.dataset]
    return [path for path in paths if "://" not in path and config_files.existing(path) is None]


def account(
    trainer: str,
    recipe: Recipe,
    former: Callable[[Sequence[Clip]], FormerEpoch | None],
    on_scan: Callable[[ScanProgress], None] | None = None,
) -> ClipAccount | None:
    """Scan the folders of a recipe, plan its first epoch, and compare it with that of the former trainer.

    Leaves nothing behind. None is returned if the trainer's source does not tell what becomes of a clip.
    """
    with tempfile.TemporaryDirectory(prefix="reelworks-import-") as folder:
        recipe = recipe.model_copy(update={"catalog": folder})
        dataset.scan_recipe(recipe, on_scan)
        data = RecipeData.open(recipe)
        rows = np.flatnonzero(data.rows.readable)
        epoch = former(_clips(data.rows, rows, [each.place.name for each in recipe.dataset]))
        if epoch is None:
            return None
        names = data.rows.labels(rows)
        planned = analysis_plan.plan(data, world_size=1)
        return ClipAccount(
            trainer=trainer,
            clips=len(rows),
            former_trained=sum(use.times > 0 for use in epoch.uses),
            left_out=_by_reason(names, epoch.uses, lambda use: use.times == 0),
            in_part=_by_reason(names, epoch.uses, lambda use: 0 < use.times < 1 and bool(use.reason)),
            repeated=_by_reason(names, epoch.uses, lambda use: use.times >= 1 and bool(use.reason)),
            here_trained=len(np.unique(data.entries(0).uid)),  # a repeated clip is one
            here_left_out={reason: planned.rejected.paths(reason) for reason in planned.rejected.by_reason()},
            rules=epoch.rules,
        )


def _by_reason(names: Sequence[str], uses: Sequence[Use], wanted: Callable[[Use], bool]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, use in zip(names, uses, strict=True):
        if wanted(use):
            found[use.reason].append(name)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def _clips(rows: CatalogRows, numbers: np.ndarray, datasets: Sequence[str]) -> list[Clip]:
    table = rows.take(numbers)
    numbers_of = {name: number for number, name in enumerate(datasets)}
    columns = (table.width, table.height, table.num_frames, table.fps, table.is_image)
    owners = [numbers_of[owner] for owner in table.dataset.to_pylist()]
    found = zip(
        owners, table.path.to_pylist(), *(column.tolist() for column in columns), table.caption.to_pylist(), strict=True
    )
    return [Clip(*each) for each in found]
