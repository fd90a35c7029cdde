"""Bucket entries and repeats for the directories of a dataset TOML of diffusion-pipe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from reelworks.annexes.imports import datasets, sizes
from reelworks.annexes.imports.diffusion_pipe import data, models
from reelworks.annexes.imports.diffusion_pipe.data import Directory
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.sizes import Sizes
from reelworks.data.buckets.config import MOST_EXTREME


def fill(draft: ImportDraft, directories: Sequence[Directory]) -> str:
    """Put buckets and repeats into a draft, and return what is other here of frames, or ""."""
    here = {each: _legal(draft, each) for each in sorted({n for each in directories for n in _frames(each)})}
    written = [_sizes(each, here) for each in directories]
    if not any(each.resolutions for each in written) or not any(here.values()):
        draft.set("buckets.entries", "auto", "the dataset has no sizes")
        return ""
    draft.set("buckets.upscale", True, "small clips are enlarged")
    draft.set("buckets.max_crop", 0.99, "clips of any shape are cropped to the nearest")
    ratios = sorted({ratio for each in directories for ratio in each.ratios or _ratios_of_sizes(each)})
    legal = [ratio for ratio in ratios if 1 / MOST_EXTREME <= ratio <= MOST_EXTREME] or [1.0]
    draft.set("buckets.aspect_ratios", [f"{ratio:g}:1" for ratio in legal], _why(draft, "ar_buckets", "min_ar"))
    sizes.write(draft, written)
    _set_batches(draft)
    for number, each in enumerate(directories):
        _repeat(draft, number, each)
    return _other_frames(draft, here)


def _set_batches(draft: ImportDraft) -> None:
    """Set the micro-batches of each entry, which depend on its side, and on whether it has videos."""
    videos = draft.settings.get("micro_batch_size_per_gpu", 1)
    pictures = draft.settings.get("image_micro_batch_size_per_gpu", videos)
    for number in range(draft.count("bucket")):
        frames = draft.get(f"bucket.{number}.num_frames")
        side = float(draft.get(f"bucket.{number}.resolution").removesuffix("px"))
        many = [
            data.batch_size(pictures if each == 1 else videos, side)
            for each in ([frames] if isinstance(frames, int) else frames)
        ]
        size = many[0] if len(set(many)) == 1 else many
        draft.set(f"bucket.{number}.batch_size", size, _why(draft, "micro_batch_size_per_gpu"))


def clear(draft: ImportDraft) -> None:
    """Take out entries that are not complete."""
    for key in [each for each in draft.assigned() if each.startswith("bucket.")]:
        draft.remove(key)


def _other_frames(draft: ImportDraft, here: Mapping[int, int | None]) -> str:
    known = models.former_model(draft.settings)
    if known is None or known.fps is None:  # clips are left out there too
        return ""
    changed = {each: taken for each, taken in here.items() if taken != known.align(each)}
    told = [f"{each} become {taken}" if taken else f"clips of {each} are left out" for each, taken in changed.items()]
    return f"{datasets.geometry_of(draft).frame_words}: {', '.join(told)}" if told else ""


def _repeat(draft: ImportDraft, number: int, directory: Directory) -> None:
    repeats = round(directory.uses, 6)
    if repeats != 1:
        parts = [f"num_repeats = {directory.repeats:g}"]
        parts += [f"× {directory.shuffled} orders of tags"] * (directory.shuffled > 1)
        value = int(repeats) if repeats == int(repeats) else repeats
        draft.set(f"dataset.{number}.repeats", value, " ".join(parts))
    if directory.shuffled > 1:
        draft.set("encode.variants", directory.shuffled, "cache_shuffle_num")


def _sizes(directory: Directory, here: Mapping[int, int | None]) -> Sizes:
    """Return the sizes of a directory; of fixed ones, the mean area of those of each length."""
    own = {n: taken for n in _frames(directory) if (taken := here[n])}
    frames = tuple(sorted(set(own.values()))) or (1,)
    if not directory.sizes:
        return Sizes(tuple(f"{round(side)}px" for side in reversed(directory.sides)), frames)
    at: dict[str, list[int]] = {}
    for taken in sorted(set(own.values())):
        areas = [width * height for width, height, n in directory.sizes if own.get(n) == taken]
        at.setdefault(f"{round(math.sqrt(sum(areas) / len(areas)))}px", []).append(taken)
    return Sizes(tuple(at), frames, is_ladder=True, at=at)


def _frames(directory: Directory) -> set[int]:
    return {frames for _, _, frames in directory.sizes} if directory.sizes else set(directory.frames)


def _ratios_of_sizes(directory: Directory) -> list[float]:
    return [round(width / height, 3) for width, height, _ in directory.sizes]


def _legal(draft: ImportDraft, frames: int) -> int | None:
    """Return the largest frame count here that does not exceed what is trained there; None if there is none."""
    known, geometry = models.former_model(draft.settings), datasets.geometry_of(draft)
    if frames > 1 and known is not None and known.fps is None:
        return None
    frames = frames if known is None else known.align(frames)
    if frames == 1 or geometry.accepts_frames(frames):
        return frames
    step, least = geometry.frame_rule
    below = (frames - least) // max(step, 1) * step + least
    return below if geometry.accepts_frames(below) else None


def _why(draft: ImportDraft, *names: str) -> str:
    """Return the names of settings that are set anywhere, as a comment."""
    given = draft.settings.values
    return next((name for name in names if any(key.split(".")[-1] == name for key in given)), f"default of {names[0]}")
