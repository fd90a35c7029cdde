"""Sizes and batches of the trainers' datasets as [[bucket]] entries, which hold for all datasets of a recipe."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reelworks.compat.draft import ImportDraft
from reelworks.compat.kohya.levels import FormerDataset, Told
from reelworks.compat.rules import Fate
from reelworks.models import components
from reelworks.models.config import AutoencoderConfig, ModelConfig

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
        share: How often a clip is trained in an epoch.
        path: The dataset's folder.
    """

    is_video: bool
    width: int
    height: int
    bucketed: bool
    no_upscale: bool
    batch_size: int
    frames: tuple[int, ...]
    share: float
    path: str


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


def batch_of(value: Any) -> int:
    """Return a batch size that a recipe takes."""
    return min(max(int(value), 1), _MOST_BATCH) if isinstance(value, int | float) and value == value else 1


def write(draft: ImportDraft, sizings: Sequence[Sizing]) -> None:
    """Write the entries of all sizings."""
    multiple = max(_multiple(draft))
    entries: dict[tuple[bool, str], list[Sizing]] = defaultdict(list)
    no_upscale = all(each.no_upscale for each in sizings)
    for sizing in sizings:
        for resolution in _resolutions(sizing, multiple, with_smaller=no_upscale):
            entries[sizing.is_video, resolution].append(sizing)
    chances = _chances(entries) if not no_upscale else {}
    for number, ((is_video, resolution), users) in enumerate(entries.items()):
        draft.set(f"bucket.{number}.resolution", resolution, "resolution")
        frames = sorted({each for user in users for each in user.frames}) if is_video else 1
        draft.set(f"bucket.{number}.num_frames", frames, "target_frames" if is_video else "pictures")
        draft.set(f"bucket.{number}.batch_size", max(user.batch_size for user in users), "batch_size")
        if (chance := chances.get((is_video, resolution), 1.0)) < 1:
            draft.set(f"bucket.{number}.keep_prob", chance, "the datasets of this folder have several resolutions")
    draft.set(
        "buckets.upscale", not no_upscale, "bucket_no_upscale" if no_upscale else "clips are enlarged to the resolution"
    )
    crop = 0.9 if all(sizing.bucketed for sizing in sizings) else 0.99
    draft.set("buckets.max_crop", crop, "no clip is left out for its shape")


def _multiple(draft: ImportDraft) -> tuple[int, int]:
    model = ModelConfig(name=draft.get("model.name"))
    named = {key: draft.get(f"autoencoder.{key}") for key in ("name", "weights")}
    autoencoder = AutoencoderConfig(**{key: value for key, value in named.items() if value is not None})
    return components.geometry(model, autoencoder).multiple


def _resolutions(sizing: Sizing, multiple: int, *, with_smaller: bool) -> list[str]:
    if not sizing.bucketed:
        height, width = (max(side // multiple, 1) * multiple for side in (sizing.height, sizing.width))
        return [f"{height}x{width}"]
    side = math.isqrt(sizing.width * sizing.height)
    smaller = [int(side * share) for share in _SMALLER] if with_smaller else []
    return [f"{each}px" for each in (side, *smaller) if each == side or each >= 2 * multiple]


def _chances(entries: dict[tuple[bool, str], list[Sizing]]) -> dict[tuple[bool, str], float]:
    """Return the chance of each entry to take a clip, so that clips of the same folders are spread over resolutions."""
    chances: dict[tuple[bool, str], float] = {}
    for kind in (False, True):
        own = [(key, users) for key, users in entries.items() if key[0] == kind]
        if len({frozenset(user.path for user in users) for _, users in own}) > 1:
            continue
        own.sort(key=lambda item: -item[1][0].width * item[1][0].height)
        shares = [sum(user.share for user in users) for _, users in own]
        for number, (key, _) in enumerate(own):
            chances[key] = round(shares[number] / sum(shares[number:]), 6)
    return chances


def tell(draft: ImportDraft, datasets: Sequence[FormerDataset], sizings: Sequence[Sizing], told: Told) -> None:
    """Tell what became of the settings of sizes and batches, of which a recipe has one for all datasets."""
    for name in ("resolution", "batch_size", "enable_bucket", "bucket_no_upscale"):
        for number, dataset in enumerate(datasets):
            if (found := dataset.find(draft.settings, name)) is None:
                continue
            sizing = sizings[number]
            peers = [each for each in sizings if each.is_video == sizing.is_video]
            differs = len({_value(name, each) for each in peers}) > 1
            told.add(found.key, _outcome(draft, name, sizing, differs, len({each.path for each in peers}) > 1))


def _value(name: str, sizing: Sizing) -> object:
    return {
        "resolution": (sizing.width, sizing.height),
        "batch_size": sizing.batch_size,
        "enable_bucket": sizing.bucketed,
        "bucket_no_upscale": sizing.no_upscale,
    }[name]


def _outcome(draft: ImportDraft, name: str, sizing: Sizing, differs: bool, several: bool) -> tuple[Fate, str]:
    if name == "resolution":
        text = " and ".join(_resolutions(sizing, max(_multiple(draft)), with_smaller=False))
        if differs and several:
            return (
                Fate.NOT_POSSIBLE,
                f'bucket.resolution = "{text}", but entries hold for all datasets: each clip goes to the largest; '
                "make a recipe for each, or take entries out",
            )
        return Fate.TAKEN, f'bucket.resolution = "{text}"'
    if name == "batch_size":
        if differs:
            return Fate.TAKEN, f"bucket.batch_size = {sizing.batch_size}; of one resolution, the largest is taken"
        return Fate.TAKEN, f"bucket.batch_size = {sizing.batch_size}"
    if name == "enable_bucket":
        if sizing.bucketed:
            return Fate.TAKEN, "sizes of nine aspect ratios: buckets.aspect_ratios"
        return Fate.TAKEN, "one size for all, to which clips are cropped"
    if differs:
        return Fate.NOT_POSSIBLE, "one setting holds for all datasets: buckets.upscale = true"
    if sizing.no_upscale:
        return Fate.TAKEN, "buckets.upscale = false, with smaller entries for smaller clips"
    return Fate.TAKEN, "buckets.upscale = true"
