"""Datasets of musubi-tuner: tables with a folder or a list, and the lengths of their videos."""

from __future__ import annotations

from contextlib import suppress

from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.kohya.levels import FormerDataset
from reelworks.annexes.imports.values import whole_of

FOLDERS = ("image_directory", "video_directory", "image_jsonl_file", "video_jsonl_file")
_MOST_FRAMES = 1025


def datasets_of(settings: FormerSettings) -> list[FormerDataset]:
    """Return the datasets that musubi-tuner trains, which are tables with a folder or a list of repeats from 1."""
    found = [
        FormerDataset((f"datasets.{number}.", "general."))
        for number in range(settings.count("datasets"))
        if any(settings.get(f"datasets.{number}.{name}") for name in FOLDERS)
    ]
    return found or [FormerDataset(("general.",))]


def is_video(settings: FormerSettings, dataset: FormerDataset) -> bool:
    """Whether a dataset has videos, as its settings tell: a folder of pictures wins."""
    named = [name for name in FOLDERS if dataset.find(settings, name) is not None]
    return named != [] and all(name.startswith("video") for name in named)


def extraction_of(dataset: FormerDataset, settings: FormerSettings) -> str:
    """Return which parts of a video are read: a single one of `uniform` is its beginning."""
    kind = str(dataset.get(settings, "frame_extraction", "head"))
    return "head" if kind == "uniform" and dataset.get(settings, "frame_sample", 1) <= 1 else kind


def lengths_of(settings: FormerSettings, dataset: FormerDataset) -> tuple[int, ...]:
    """Return the lengths of clips in frames, each rounded down to 4 n + 1; with `full` all up to the most."""
    if extraction_of(dataset, settings) == "full":
        most = min(max(int(dataset.get(settings, "max_frames", 129)), 1), _MOST_FRAMES)
        return tuple(range(1, most + 1, 4))
    given = dataset.get(settings, "target_frames", [1])
    lengths = set()
    for each in given:
        with suppress(TypeError, ValueError):
            lengths.add((min(max(whole_of(each), 1), _MOST_FRAMES) - 1) // 4 * 4 + 1)
    return tuple(sorted(lengths)) or (1,)
