"""Account of the clips of a folder that the buckets of another trainer drop, beside those that are left out here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from reelworks.annexes.imports import captions
from reelworks.annexes.imports.draft import Clip, FormerSettings
from reelworks.annexes.imports.trainer import FormerTrainer
from reelworks.core import user_files
from reelworks.core.errors import UserError
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.scan.scan import ScanProgress
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.store import Catalog
from reelworks.training.plan import plan as analysis_plan
from reelworks.training.plan.plan import Plan
from reelworks.training.recipe import dataset
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe


@dataclass(frozen=True)
class ClipAccount:
    """Clips that the buckets of a trainer leave out, beside those that are left out here.

    Attributes:
        trainer: Its name.
        clips: Number of pictures and videos that can be read.
        former_trained: Number of clips that an epoch of it trains: those that are large and long enough, and drawn.
        left_out: Those that are not large or long enough, by reason.
        rest: Clips that it leaves out of an epoch since they fill no batch, by the bucket that they have here.
        here_trained: Number of clips that an epoch trains here.
        here_left_out: Clips that are left out here, by reason.
        rules: What its buckets do with clips, for each kind of dataset.
        other_captions: Clips that both train, with another caption each, by what the trainer does with it.
        not_told: Folders whose clips are not among these, with the reason.
    """

    trainer: str
    clips: int
    former_trained: int
    left_out: Mapping[str, list[str]]
    rest: Mapping[str, int]
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
            if "://" not in each.path and user_files.existing(each.path) is None:
                self.missing[number] = f"there is no {each.path}"
                continue
            try:
                dataset.scan_recipe(self._of(recipe, [number]), on_scan)
            except UserError as error:
                self.missing[number] = f"{each.path}: {error.problem}"
        self.clips: list[Clip] = []
        self.names: list[str] = []
        if len(self.missing) < len(recipe.dataset):
            rows = Catalog.open(Path(folder)).live()
            own = [each.dataset_name for number, each in enumerate(recipe.dataset) if number not in self.missing]
            rows = rows.take(np.flatnonzero(rows.readable & rows.of_datasets(own)))
            self.clips = _clips(rows, [each.dataset_name for each in recipe.dataset])
            self.names = rows.labels(np.arange(len(rows)))

    def open(self, recipe: Recipe) -> RecipeData:
        """Return those datasets of a recipe whose clips are known."""
        return RecipeData.open(self._of(recipe, [n for n in range(len(recipe.dataset)) if n not in self.missing]))

    def _of(self, recipe: Recipe, numbers: Sequence[int]) -> Recipe:
        return recipe.model_copy(
            update={"catalog": self._folder, "dataset": [recipe.dataset[number] for number in numbers]}
        )


def plan(data: RecipeData, processes: int) -> Plan:
    """Return the plan of the first epoch, with steps of as many processes."""
    train = data.recipe.train
    size = train.micro_batches_per_step or train.gradient_accumulation_steps * processes
    return analysis_plan.plan(data, micro_batches_per_step=size, world_size=1)


def account(
    trainer: FormerTrainer, settings: FormerSettings, scan: Scan, data: RecipeData, planned: Plan
) -> ClipAccount | None:
    """Compare the first epoch of a recipe with what the trainer's buckets drop; None if that is not known."""
    of_dataset = [trainer.buckets(settings, number) for number in range(1 + max(clip.dataset for clip in scan.clips))]
    rules = [each for each in of_dataset if each is not None]
    if len(rules) < len(of_dataset):
        return None
    rejected = {reason: planned.rejected.paths(reason) for reason in planned.rejected.by_reason()}
    without = {name for names in rejected.values() for name in names}
    # The filters of an imported recipe say what its trainer does not read.
    unread = dict.fromkeys(rejected.get(Reason.FILTERED.label, ()), "dataset.filter leaves it out here too")
    left_out: dict[str, list[str]] = defaultdict(list)
    trained = []
    for clip, name in zip(scan.clips, scan.names, strict=True):
        if why := rules[clip.dataset].drops(clip) or unread.get(name, ""):
            left_out[why].append(name)
        else:
            trained.append((clip, name))
    datasets = data.dataset_by_name
    by_both = ((clip, name, datasets[name.partition("/")[0]]) for clip, name in trained if name not in without)
    batch = max(each.whole_batches for each in rules)
    of_each = Counter(clip.dataset for clip, _ in trained)
    return ClipAccount(
        trainer=trainer.name,
        clips=len(scan.clips),
        former_trained=sum(rules[number].drawn(count) for number, count in of_each.items()),
        left_out=dict(sorted(left_out.items(), key=lambda item: (-len(item[1]), item[0]))),
        rest={bucket: clips % batch for bucket, clips in planned.buckets.items() if batch and clips % batch},
        here_trained=len(np.unique(data.entries(0).uid)),  # a repeated clip is one
        here_left_out=rejected,
        rules=tuple(dict.fromkeys(told for each in rules for told in each.in_words())),
        other_captions=captions.others(partial(trainer.caption, settings), by_both),
        not_told=tuple(scan.missing.values()),
    )


def _clips(rows: CatalogRows, datasets: Sequence[str]) -> list[Clip]:
    numbers_of = {name: number for number, name in enumerate(datasets)}
    columns = (rows.width, rows.height, rows.num_frames, rows.fps, rows.is_image)
    owners = [numbers_of[owner] for owner in rows.dataset.to_pylist()]
    found = zip(
        owners, rows.path.to_pylist(), *(column.tolist() for column in columns), rows.caption.to_pylist(), strict=True
    )
    return [Clip(*each) for each in found]
