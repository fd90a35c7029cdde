"""Settings of a dataset other than its catalog and bucket table, and those of them that determine the plan of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Annotated, Literal

import numpy as np

from reelworks.core import arguments, digests
from reelworks.core.arrays import I64
from reelworks.data.buckets import assign
from reelworks.data.buckets.degrees import Exchange
from reelworks.data.buckets.table import BucketTable
from reelworks.data.catalog.config import SHOWING, DatasetConfig, same_name
from reelworks.data.catalog.sources import SOURCES
from reelworks.data.loader.exclude_file import ExcludeList
from reelworks.data.media.config import OF_RECIPES, DataConfig
from reelworks.data.media.sound import SoundSpec
from reelworks.data.schedule.cost import CostConfig

SEED = arguments.whole(0, (1 << 63) - 1)


@dataclass(frozen=True)
class DataSpec:
    """Settings of a dataset other than its catalog and bucket table, as plain values.

    Attributes:
        data: How clips are read. Keys that only a recipe uses are refused: `measures`, and those that are arguments of a
            `Loader`, such as `num_workers`; and `fps="model"`, since there is none.
        split: Share of files, or of folders, held out for validation.
        max_held_out: Maximum number of held-out clips that validation uses.
        exclude_file: Text file that lists clips not to train, or None.
        variants: Number of crops and first frames of each clip; None draws anew in each epoch.
        source_multiple: Height and width of which sides of sources are multiples, where sources have sizes of their own;
            None if they have those of their clips.
        picture_side: Shorter side of sources that are pictures, if it is the same beside all clips; else None.
        whole_sources: Whether sources are pictures that are shown whole, on white, in the size of their clips.
        sound: How the sound of clips is read; None if it is not.
        source_sounds: Whether the sound of sources is read with it; a source may then be a sound alone.
        exchange: Exchanges of a network whose clips ranks share; None if they share none.
        mask_ratios: Shares of strategies by which parts of clips are given to a model that is told them in pixels.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_catalog, sample_dataset, sample_folder
        >>> footage = rw.DatasetConfig(path=str(sample_folder()), repeats=2)
        >>> spec = rw.DataSpec((footage,), data=rw.DataConfig(crop="random"))
        >>> len(rw.Dataset(sample_catalog(), sample_dataset().table, spec))
        24
    """

    datasets: Annotated[tuple[DatasetConfig, ...], arguments.each(arguments.a(DatasetConfig), into=tuple)]
    seed: Annotated[int, SEED] = 42
    data: Annotated[DataConfig, arguments.a(DataConfig)] = field(default_factory=DataConfig)
    split: Annotated[float, arguments.number(0, 1)] = 0.0
    group: Annotated[Literal["file", "folder"], arguments.one_of("file", "folder")] = "file"
    max_held_out: Annotated[int, arguments.whole(0)] = 64
    exclude_file: Annotated[str | None, arguments.optional(arguments.FILE)] = None
    cost: Annotated[CostConfig, arguments.a(CostConfig)] = field(default_factory=CostConfig)
    variants: Annotated[int | None, arguments.optional(arguments.whole(1))] = None
    source_multiple: Annotated[tuple[int, int] | None, arguments.optional(arguments.exactly(2, arguments.whole(1)))] = (
        None
    )
    picture_side: Annotated[int | None, arguments.optional(arguments.whole(1))] = None
    whole_sources: Annotated[bool, arguments.FLAG] = False
    sound: Annotated[SoundSpec | None, arguments.optional(arguments.a(SoundSpec))] = None
    source_sounds: Annotated[bool, arguments.FLAG] = False
    exchange: Annotated[Exchange | None, arguments.optional(arguments.a(Exchange))] = None
    mask_ratios: Annotated[Mapping[str, float], arguments.a(Mapping)] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arguments.check(self)
        loader = "leave it out, and give it to the Loader, or for measures run `reelworks measure` on the catalog"
        given = self.data.model_dump(include=self.data.model_fields_set)
        arguments.refuse_of_recipes(given, OF_RECIPES, loader)
        if self.data.fps == "model":
            arguments.refuse_of_recipes(given, {"fps"}, "give the frames per second")
        for first, second in combinations(self.datasets, 2):
            if first.dataset_name == second.dataset_name:
                raise same_name(first.dataset_name, (first.place, second.place))

    def draw_numbers(self, epoch: int, copies: I64) -> tuple[int | I64, I64]:
        """Return the numbers of epoch and copy from which a clip's crop and first frame are drawn.

        With `variants`, repeats and epochs use so many draws in turn, so that the latents of all can be stored.
        """
        if self.variants is None:
            return epoch, copies
        return (epoch + (copies & 0xFFFFFFFF) + (copies >> 32)) % self.variants, np.zeros_like(copies)


# Only the buckets that result from these are digested; what recomputation changes is in the costs.
_BUCKET_SEARCH = {"entries", "batch_size", "max_batch_size", "max_tokens", "token_families", "tuned"}
# Clips that lack a companion, and how videos are cut, are covered by the catalog's digest.
_NOT_OF_A_PLAN = {
    *SHOWING,
    *["path", "root", "clip_seconds", "scene_cuts", "control", "source", "min_sources", "loss_mask"],
}
# Likewise; as plans have them that are without.
_PLACES = dict.fromkeys(("mask", "rejected"))
# Left out where they are not set, so that plans that know nothing of them keep their digests.
_LATER = {"resolutions": None, "lengths": None, "duplicates": "keep"}


def plan_digest(spec: DataSpec, table: BucketTable, exclude_list: ExcludeList) -> str:
    """Return `PlanSpec.buckets_digest`: of the buckets, and of all settings that decide which clips they have.

    Another digest is another plan; a default that is written out is none.
    """
    # Numbers of sources and the least ones of all datasets, which tell nothing if all clips have the same number.
    counts: list[list[int | None]] = [
        [sum(kind in d.companions for kind in SOURCES), d.min_sources] for d in spec.datasets
    ]
    if spec.source_multiple is not None and any(count for count, _ in counts):
        counts.append([*spec.source_multiple, *([] if spec.picture_side is None else [spec.picture_side])])
    elif all(count == counts[0] and count[1] is None for count in counts):
        counts = []
    datasets = [d.model_dump(exclude=_NOT_OF_A_PLAN) | {"name": d.dataset_name} | _PLACES for d in spec.datasets]
    return digests.digest_json(
        [
            [[b.name, *b.shape.__dict__.values(), b.batch_size] for b in table.buckets],
            table.config.model_dump(exclude={*_BUCKET_SEARCH, "gradient_checkpointing"}),
            # What a degree changes in a plan is in the batch sizes of its specification, and those of clips in the buckets.
            [[entry.resolution, entry.frames(), entry.keep_probs()] for entry in table.given],
            spec.data.frame_interval,
            spec.data.frame_rate,
            [{key: v for key, v in values.items() if key not in _LATER or v != _LATER[key]} for values in datasets],
            spec.data.short_clips,
            spec.split,
            spec.group,
            spec.data.locality,
            exclude_list.digest(),
            *counts,
            *(() if spec.sound is None else (spec.sound.missing,)),
            *(("source_sounds",) if spec.source_sounds else ()),
            *(name for name in ("hdr", "interlaced") if getattr(spec.data, name) == "reject"),
        ]
    )


def merge_targets(table: BucketTable, incomplete_batch: str) -> tuple[int, ...]:
    """Return `PlanSpec.merge_to`: the bucket that takes each bucket's incomplete batches, or nothing."""
    return tuple(assign.targets(table).tolist()) if incomplete_batch == "merge" else ()
