"""Account of what another trainer does with each clip of a folder in an epoch, beside what happens to it here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reelworks.annexes.imports import files as config_files
from reelworks.annexes.imports.clip import Clip
from reelworks.core.errors import UserError
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.scan.scan import ScanProgress
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.store import Catalog
from reelworks.training.plan import plan as analysis_plan
from reelworks.training.plan.plan import Plan
from reelworks.training.recipe import dataset
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe


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
        other_captions: Clips that both train, with another caption each, by what the trainer does with it.
        not_told: Folders whose clips are not among these, with the reason.
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
    other_captions: Mapping[str, list[str]] = field(default_factory=dict)
    not_told: tuple[str, ...] = ()


class Scan:
    """The clips of a recipe's datasets, in a temporary catalog.

    A dataset whose folder is not there, or has no clip, hides no other one.

    Attributes:
        missing: Why a dataset's clips are not known, by its number.
        clips: The clips that can be read.
        names: Their names, as dataset/path.
    """

    def __init__(self, recipe: Recipe, folder: str, on_scan: Callable[[ScanProgress], None] | None = None) -> None:
        """Scan the datasets of a recipe into a catalog in a folder."""
        self._folder, self.missing = folder, dict[int, str]()
        for number, each in enumerate(recipe.dataset):
            if "://" not in each.path and config_files.existing(each.path) is None:
                self.missing[number] = f"there is no {each.path}"
                continue
            try:
                dataset.scan_recipe(self._of(recipe, [number]), on_scan)
            except UserError as error:
                self.missing[number] = f"{each.path}: {error.problem}"
        self.clips: list[Clip] = []
        self.names: list[str] = []
        if len(self.missing) < len(recipe.dataset):
            rows = self._rows(Catalog.open(Path(folder)), recipe)
            self.clips = _clips(rows, [each.dataset_name for each in recipe.dataset])
            self.names = rows.labels(np.arange(len(rows)))

    def open(self, recipe: Recipe) -> RecipeData:
        """Return those datasets of a recipe whose clips are known."""
        return RecipeData.open(self._of(recipe, [n for n in range(len(recipe.dataset)) if n not in self.missing]))

    def _rows(self, catalog: Catalog, recipe: Recipe) -> CatalogRows:
        rows = catalog.live()
        own = [each.dataset_name for number, each in enumerate(recipe.dataset) if number not in self.missing]
        return rows.take(np.flatnonzero(rows.readable & rows.of_datasets(own)))

    def _of(self, recipe: Recipe, numbers: Sequence[int]) -> Recipe:
        return recipe.model_copy(
            update={"catalog": self._folder, "dataset": [recipe.dataset[number] for number in numbers]}
        )


def plan(data: RecipeData) -> Plan:
    """Return the plan of the first epoch on one process."""
    train = data.recipe.train
    size = train.micro_batches_per_step or train.gradient_accumulation_steps
    return analysis_plan.plan(data, micro_batches_per_step=size, world_size=1)


def account(
    trainer: str,
    scan: Scan,
    data: RecipeData,
    planned: Plan,
    epoch: FormerEpoch,
    other_captions: Mapping[str, list[str]],
) -> ClipAccount:
    """Compare the first epoch of a recipe with that of the former trainer."""
    return ClipAccount(
        trainer=trainer,
        clips=len(scan.clips),
        former_trained=sum(use.times > 0 for use in epoch.uses),
        left_out=_by_reason(scan.names, epoch.uses, lambda use: use.times == 0),
        in_part=_by_reason(scan.names, epoch.uses, lambda use: 0 < use.times < 1 and bool(use.reason)),
        repeated=_by_reason(scan.names, epoch.uses, lambda use: use.times >= 1 and bool(use.reason)),
        here_trained=len(np.unique(data.entries(0).uid)),  # a repeated clip is one
        here_left_out={reason: planned.rejected.paths(reason) for reason in planned.rejected.by_reason()},
        rules=epoch.rules,
        other_captions=other_captions,
        not_told=tuple(scan.missing.values()),
    )


def trained_by_both(
    scan: Scan, data: RecipeData, planned: Plan, epoch: FormerEpoch
) -> Iterator[tuple[Clip, str, DatasetConfig]]:
    """Yield the clips that are trained there and here, with their names and datasets here."""
    rejected = planned.rejected
    without = {name for reason in rejected.by_reason() for name in rejected.paths(reason)}
    for clip, name, use in zip(scan.clips, scan.names, epoch.uses, strict=True):
        if use.times > 0 and name not in without:
            yield clip, name, data.dataset_by_name[name.partition("/")[0]]


def _by_reason(names: Sequence[str], uses: Sequence[Use], wanted: Callable[[Use], bool]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, use in zip(names, uses, strict=True):
        if wanted(use):
            found[use.reason].append(name)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def _clips(rows: CatalogRows, datasets: Sequence[str]) -> list[Clip]:
    numbers_of = {name: number for number, name in enumerate(datasets)}
    columns = (rows.width, rows.height, rows.num_frames, rows.fps, rows.is_image)
    owners = [numbers_of[owner] for owner in rows.dataset.to_pylist()]
    found = zip(
        owners, rows.path.to_pylist(), *(column.tolist() for column in columns), rows.caption.to_pylist(), strict=True
    )
    return [Clip(*each) for each in found]
