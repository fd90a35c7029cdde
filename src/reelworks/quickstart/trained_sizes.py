"""Sizes of the buckets of a new recipe: what pictures and clips fill, and what the model was released for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reelworks.core.errors import UserError, first_few
from reelworks.core.shape import Geometry
from reelworks.data.buckets.config import BucketsConfig
from reelworks.data.buckets.propose import FILLS, Ladder
from reelworks.models import components, registry
from reelworks.models.config import AutoencoderConfig, ModelConfig
from reelworks.quickstart.survey import FolderSurvey

_SIDES = (64, 128, 256, 384, 512, 640, 768, 1024)
_LINES = (64, 144, 240, 360, 480, 720)
_BULK = 2 / 3  # share of clips that must fill a size; the rest is enlarged


def makes_clips(preset: str) -> bool:
    """Whether a model generates clips and not only pictures."""
    return not registry.PRESETS[preset].config.pictures_only and registry.release_of(preset).lines > 0


def takes_pictures(preset: str) -> bool:
    """Whether a model is trained on pictures too."""
    return registry.PRESETS[preset].sound is None  # pictures have no sound, also not a silent one


def _require_pictures(preset: str, found: FolderSurvey) -> None:
    if not takes_pictures(preset):
        raise UserError(
            f"this model is trained with sound, and the folders have pictures alone: {first_few(sorted(found.picture_names))}",
            code="model-takes-clips-only",
            field="--model",
            value=preset,
            remedy=f'choose "{preset.replace("-sound", "")}", which is trained without sound, or add clips with sound',
        )


def _require_clips(preset: str, found: FolderSurvey) -> None:
    if not makes_clips(preset):
        for_clips = ", ".join(short for short, name in registry.SHORT_NAMES.items() if registry.release_of(name).lines)
        raise UserError(
            f"this model makes only pictures, and the folders have clips alone: {first_few(sorted(found.video_names))}",
            code="model-takes-images-only",
            field="--model",
            value=preset,
            remedy=f"choose a model for clips ({for_clips}), or give a folder of pictures",
        )


def geometry_of(preset: str) -> Geometry:
    """Return the geometry of a model with its autoencoder."""
    autoencoder = AutoencoderConfig()
    if registry.PRESETS[preset].release:
        autoencoder = AutoencoderConfig(name=registry.PRESETS[preset].parts.autoencoder, weights=preset)
    return components.geometry(ModelConfig(name=preset), autoencoder)


class Size(NamedTuple):
    """A size for some clips or pictures, the reason for it, and those that are smaller or of another shape.

    Attributes:
        small: Their heights and widths by name.
    """

    resolution: str
    why: str
    noun: str
    total: int
    small: dict[str, list[int]]

    @classmethod
    def of_bulk(cls, steps: Ladder, names: Sequence[str], sizes: NDArray[np.int64], noun: str) -> Size:
        """Choose the largest size that the bulk of heights and widths fills: few thumbnails must not make all small.

        A clip of nearly the area of a size fills it, since it is enlarged by a few percent.
        """
        highest = steps.nearly(sizes[:, 0], sizes[:, 1])
        reach = [float((highest >= rung).mean()) for rung in range(len(steps.names))]
        chosen = max((rung for rung, share in enumerate(reach) if share >= _BULK), default=0)
        who = "all" if reach[chosen] == 1 else f"{reach[chosen]:.0%} of the"
        last = ", and the model was released for it" if chosen == len(reach) - 1 else "; the next larger fewer do"
        native = float((steps.highest(sizes[:, 0], sizes[:, 1]) >= chosen).mean())
        nearly = f" or nearly do, and are enlarged by up to {1 / FILLS - 1:.0%} in area" * (native < reach[chosen])
        small = _chosen(names, sizes, highest < chosen)
        return cls(steps.names[chosen], f"{who} {noun} fill it{nearly}{last}", noun, len(sizes), small)

    def remarks(self, left_out: Collection[str] = ()) -> list[str]:
        """Name the smaller ones that are trained all the same, for people; nothing if there are none."""
        small = [f"{name} ({w} × {h})" for name, (h, w) in sorted(self.small.items()) if name not in left_out]
        verb = "is" if len(small) == 1 else "are"
        remark = (
            f"{len(small)} of {self.total} {self.noun} {verb} smaller than {self.resolution} or of another shape and will be "
            f"enlarged or cropped, and the model learns their blur; replace or remove them if it should not: {first_few(small)}"
        )
        return [remark] if small else []


def _chosen(names: Sequence[str], sizes: NDArray[np.int64], chosen: NDArray[np.bool_]) -> dict[str, list[int]]:
    return {names[i]: sizes[i].tolist() for i in np.flatnonzero(chosen).tolist()}


class TrainedSizes(NamedTuple):
    """Sizes of the buckets of pictures and of clips with the reason for each, largest first.

    `several` are those at each of which every clip is trained in an epoch, smallest first; none if a clip has one size. `filled`
    are the sizes that were chosen by what fills them.
    """

    of_pictures: tuple[tuple[str, str], ...] = ()
    of_clips: tuple[tuple[str, str], ...] = ()
    several: tuple[str, ...] = ()
    why_several: str = ""
    remarks: tuple[str, ...] = ()
    filled: tuple[Size, ...] = ()

    @classmethod
    def choose(cls, preset: str, found: FolderSurvey) -> TrainedSizes:
        """Choose one size for pictures and one for clips; raises `UserError` if the model takes neither."""
        pictures, clips = list[Size](), list[Size]()
        if len(found.pictures):
            _require_pictures(preset, found)
            ladder = _ladder(preset, clips=False)
            pictures.append(Size.of_bulk(ladder, found.picture_names, found.pictures, "pictures"))
        if len(found.videos):
            _require_clips(preset, found)
            ladder = _ladder(preset, clips=True)
            clips.append(Size.of_bulk(ladder, found.video_names, found.videos[:, 1:], "clips"))
        of_pictures, of_clips = (tuple((size.resolution, size.why) for size in sizes) for sizes in (pictures, clips))
        return cls(of_pictures, of_clips, filled=(*pictures, *clips))

    @classmethod
    def given(cls, found: FolderSurvey, resolutions: Sequence[str]) -> TrainedSizes:
        """Return the sizes of `--resolution` for all clips and pictures; a number is the side of a square."""
        names = dict.fromkeys(f"{each}px" if each.isdecimal() else each for each in resolutions)
        each = tuple((name, "as given with --resolution") for name in names)
        several = tuple(names) if len(names) > 1 else ()
        return cls(
            each if len(found.pictures) else (),
            each if len(found.videos) else (),
            several,
            "each is trained at all of these in an epoch, as given with --resolution",
        )

    def proposed(self, preset: str, found: FolderSurvey) -> TrainedSizes:
        """Return the sizes that the model was released for, if the clips fill the largest of several, else these.

        Sizes of pictures differ from those of clips, so folders with both keep one of each.
        """
        clips = bool(len(found.videos))
        noun, heights_widths = ("clip", found.videos[:, 1:]) if clips else ("picture", found.pictures)
        alone, why_alone = (self.of_clips or self.of_pictures)[0]
        known, suffix = registry.release_of(preset), "p" if clips else "px"
        numbers = {known.lines, *known.more_lines} if clips else {known.side, *known.more_sides}
        names = [f"{number}{suffix}" for number in sorted(numbers)]  # smallest first
        if (clips and len(found.pictures)) or len(names) < 2 or alone not in names:
            return self
        steps = Ladder.from_steps(names, BucketsConfig(), geometry_of(preset))
        highest = steps.nearly(heights_widths[:, 0], heights_widths[:, 1])
        reach = {name: float((highest >= rung).mean()) for rung, name in enumerate(steps.names)}
        filled = [name for name in names if reach.get(name, 0) >= _BULK]
        if len(filled) < 2:
            return self
        largest = filled[-1]
        who = f"all {noun}s" if reach[largest] == 1 else f"{reach[largest]:.0%} of the {noun}s"
        both = "both" if len(filled) == 2 else "all of these"
        why = f"{preset} was released for {both}, and {who} fill {largest}"
        each = tuple(
            (name, why_alone if name == alone else "the model was released for it too") for name in reversed(filled)
        )
        paths = found.video_names if clips else found.picture_names
        small = _chosen(paths, heights_widths, highest < steps.names.index(largest))
        remark = f"each {noun} is trained at {' and '.join(filled)}: {why}; --resolution {alone} trains at that alone"
        return TrainedSizes(
            () if clips else each,
            each if clips else (),
            tuple(filled),
            f"each {noun} is trained at {both} in an epoch: {why}",
            (remark,),
            (Size(largest, why, f"{noun}s", len(heights_widths), small),),
        )


def _ladder(preset: str, *, clips: bool) -> Ladder:
    """Return the sizes of which one is chosen: usual ones up to the one that the model was released for."""
    known = registry.release_of(preset)
    usual, own = (_LINES, known.lines) if clips else (_SIDES, known.side)
    numbers = sorted({*(number for number in usual if number < own), own})
    steps = [f"{number}p" for number in numbers] if clips else numbers
    return Ladder.from_steps(steps, BucketsConfig(), geometry_of(preset))
