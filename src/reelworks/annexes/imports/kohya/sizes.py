"""Sizes and batches of the trainers' datasets as [[bucket]] entries, which hold for all datasets of a recipe."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reelworks.annexes.imports import datasets, sizes
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.kohya.levels import FormerDataset, OutcomesByKey
from reelworks.annexes.imports.rules import Fate
from reelworks.annexes.imports.sizes import Sizes
from reelworks.annexes.imports.values import is_on

SETTINGS = ("resolution", "batch_size", "enable_bucket", "bucket_no_upscale")
_MOST_SIDE = 16384
_MOST_BATCH = 4096
# Sides beside the largest one for clips that are not enlarged, as shares of it.
_SMALLER = (0.75, 0.5, 0.375, 0.25, 0.1875, 0.125)


@dataclass(frozen=True)
class Sizing:
    """The shapes of one dataset's clips.

    Attributes:
        is_video: Videos, or else pictures.
        width, height: The resolution: an area if clips are sorted into buckets, or else the one size of all.
        bucketed: Whether there are sizes of several aspect ratios.
        no_upscale: Whether clips that are smaller keep their size.
        batch_size: Clips of a batch on one process.
        frames: Lengths of videos.
        each_length: Whether a video is trained at each of them that it has.
    """

    is_video: bool
    width: int
    height: int
    bucketed: bool
    no_upscale: bool
    batch_size: int
    frames: tuple[int, ...] = (1,)
    each_length: bool = False

    @property
    def entry(self) -> tuple[bool, int, int, bool]:
        """The values that its bucket entry follows from."""
        return self.is_video, self.width, self.height, self.bucketed


def resolution_of(value: Any) -> tuple[int, int] | None:
    """Return width and height of a number, a pair, or a text of one of these; None for others."""
    if isinstance(value, str):
        value = [int(each) for each in re.findall(r"\d{1,6}", value)]
    sides = value if isinstance(value, list | tuple) else [value]
    if len(sides) not in (1, 2) or not all(isinstance(each, int | float) for each in sides):
        return None
    if any(isinstance(each, bool) or not 16 <= each <= _MOST_SIDE for each in sides):
        return None
    return int(sides[0]), int(sides[-1])


def of_dataset(draft: ImportDraft, dataset: FormerDataset, default: tuple[int, int], *, are_videos: bool) -> Sizing:
    """Return the shapes of a dataset's clips; videos are sorted into buckets whatever the config says, and are enlarged."""
    settings = draft.settings
    found = dataset.find(settings, "resolution")
    width, height = (resolution_of(found.value) if found else None) or default
    bucketed = are_videos or is_on(dataset.get(settings, "enable_bucket", False))
    no_upscale = bucketed and not are_videos and is_on(dataset.get(settings, "bucket_no_upscale", False))
    batch_size = min(max(int(dataset.get(settings, "batch_size", 1)), 1), _MOST_BATCH)
    return Sizing(are_videos, width, height, bucketed, no_upscale, batch_size)


def write(draft: ImportDraft, sizings: Sequence[Sizing]) -> None:
    """Write the entries of all sizings."""
    multiple = max(datasets.geometry_of(draft).multiple)
    keeps = _keeps_small(sizings)
    sizes.write(draft, [_sizes(each, multiple, with_smaller=keeps) for each in sizings])
    why = "bucket_no_upscale" if keeps else "clips are enlarged to the resolution"
    draft.set("buckets.upscale", not keeps, why)
    crop = 0.9 if all(sizing.bucketed for sizing in sizings) else 0.99
    draft.set("buckets.max_crop", crop, "no clip is left out for its shape")


def _sizes(sizing: Sizing, multiple: int, *, with_smaller: bool) -> Sizes:
    resolutions = tuple(_resolutions(sizing, multiple, with_smaller=with_smaller))
    frames = sizing.frames if sizing.is_video else (1,)
    return Sizes(resolutions, frames, sizing.batch_size, each_length=sizing.each_length, is_ladder=with_smaller)


def _keeps_small(sizings: Sequence[Sizing]) -> bool:
    """Return whether smaller clips keep their size, for which they need smaller entries, which hold for all datasets."""
    return all(each.no_upscale for each in sizings) and len({(each.width, each.height) for each in sizings}) == 1


def _resolutions(sizing: Sizing, multiple: int, *, with_smaller: bool) -> list[str]:
    if not sizing.bucketed:
        height, width = (max(side // multiple, 1) * multiple for side in (sizing.height, sizing.width))
        return [f"{height}x{width}"]
    side = math.isqrt(sizing.width * sizing.height)
    smaller = [int(side * share) for share in _SMALLER] if with_smaller else []
    return [f"{each}px" for each in (side, *smaller) if each == side or each >= 2 * multiple]


def tell(
    draft: ImportDraft, former: Sequence[FormerDataset], sizings: Sequence[Sizing], outcomes: OutcomesByKey
) -> None:
    """Tell what became of the settings of sizes and batches, of which a recipe has one for all datasets."""
    for name in SETTINGS:
        for number, dataset in enumerate(former):
            if (found := dataset.find(draft.settings, name)) is None:
                continue
            outcomes.add(found.key, _outcome(draft, name, sizings[number], sizings))


def _outcome(draft: ImportDraft, name: str, sizing: Sizing, sizings: Sequence[Sizing]) -> tuple[Fate, str]:
    text = " and ".join(_resolutions(sizing, max(datasets.geometry_of(draft).multiple), with_smaller=False))
    if name == "resolution":
        differs = len({(each.width, each.height) for each in sizings if each.is_video == sizing.is_video}) > 1
        return Fate.TAKEN, f'bucket.resolution = "{text}"' + ", and dataset.resolutions" * differs
    if name == "batch_size":
        peers = [each for each in sizings if (each.is_video, each.width, each.height, each.bucketed) == sizing.entry]
        most = max(each.batch_size for each in peers)
        if most != sizing.batch_size:
            return Fate.NOT_POSSIBLE, f"bucket.batch_size = {most}: of datasets of one size, the largest is taken"
        return Fate.TAKEN, f"bucket.batch_size = {most}"
    if name == "enable_bucket":
        several = "sizes of nine aspect ratios: buckets.aspect_ratios"
        return Fate.TAKEN, several if sizing.bucketed else "one size for all, to which clips are cropped"
    if _keeps_small(sizings):
        return Fate.TAKEN, "buckets.upscale = false, with smaller entries for smaller clips"
    if sizing.no_upscale:
        return Fate.NOT_POSSIBLE, "buckets.upscale = true holds for all datasets: smaller clips are enlarged"
    return Fate.TAKEN, "buckets.upscale = true"


def frames_differ(number: int, sizings: Sequence[Sizing]) -> bool:
    """Return whether videos of a dataset may take lengths of other datasets, of which it has several."""
    return sizes.takes_others(number, [_sizes(each, 1, with_smaller=False) for each in sizings])
