"""Translations of the settings of diffusion-pipe's directories."""

from __future__ import annotations

from itertools import starmap
from typing import Any

from reelworks.annexes.imports import datasets, values
from reelworks.annexes.imports.diffusion_pipe import data
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome

_SAME_AREA = 1.1  # sizes of one area differ by that much where their sides are multiples of 16 or 32


def _control(value: Any, draft: ImportDraft) -> Outcome:
    return datasets.set_companions(draft, draft.numbers[0], [values.text(value)], "pictures to edit")


def _prefix(value: Any, draft: ImportDraft, number: int) -> str:
    if draft.settings.get("model.type") == "lumina_2" and str(value).rstrip().endswith("<Prompt Start>"):
        return "captions stand behind the instruction of the release's pipeline"
    form = datasets.as_text(value)
    return draft.set(f"dataset.{number}.caption", f"{form}{{text}}") if form else ""


def _shuffle(value: Any, draft: ImportDraft, number: int) -> str:
    """Shuffle tags; their number of orders repeats the clips."""
    return draft.set(f"dataset.{number}.shuffle_tags", True) if value else ""


def _delimiter(value: Any, draft: ImportDraft, number: int) -> str:
    separator = values.text(value)
    if draft.get(f"dataset.{number}.shuffle_tags") is not True:
        return ""
    return draft.set(f"dataset.{number}.tag_separator", separator.strip() or separator)


def _skip(value: Any, draft: ImportDraft, number: int) -> str:
    return "" if values.flag(value) else draft.set(f"dataset.{number}.missing_caption", "")


def _frames(value: Any, draft: ImportDraft) -> Outcome:
    lengths = draft.settings.each("directory", "frame_buckets")
    if draft.key.startswith("directory.") and any(each != value for each in lengths) and len(value) > 2:
        return Fate.NOT_POSSIBLE, "[[bucket]] num_frames: videos take longer lengths of other directories too"
    return Fate.TAKEN, "[[bucket]] num_frames, and dataset.lengths where directories differ"


def _in_buckets(value: Any, draft: ImportDraft) -> Outcome:
    """Tell what becomes of sizes, which all datasets share here; the entries are made of all settings together."""
    if draft.key.startswith("directory.") and draft.settings.count("directory") > 1:
        return Fate.NOT_POSSIBLE, "all datasets share the [[bucket]] entries, which have these sizes too"
    return Fate.TAKEN, "[[bucket]] entries and buckets.aspect_ratios"


def _sizes(value: Any, draft: ImportDraft) -> Outcome:
    """Tell where fixed sizes become others: an entry has one area for all shapes of a length, and the largest comes first."""
    areas: dict[int, list[int]] = {}
    for width, height, frames in starmap(data.fixed_size, value):
        areas.setdefault(frames, []).append(width * height)
    if sum(frames > 1 for frames in areas) < 2 and all(max(each) <= _SAME_AREA * min(each) for each in areas.values()):
        return _in_buckets(value, draft)
    return Fate.NOT_POSSIBLE, (
        "[[bucket]] entries with the mean area of each length: a clip takes the largest area that it fills, or each that "
        "dataset.resolutions names, and there the size of the nearest shape"
    )


def _inherited(value: Any, draft: ImportDraft, set_one: str) -> Outcome:
    """Take a setting of a directory, which all directories without it take from the top of the file."""
    name = draft.key.rpartition(".")[2]
    others = enumerate(draft.settings.each("directory", name))
    numbers = draft.numbers[:1] or [number for number, own in others if own is None]
    remarks = ", ".join(filter(None, (_SETTERS[set_one](value, draft, number) for number in numbers)))
    return (Fate.TAKEN, remarks) if remarks else (Fate.DEFAULT, "as here")


_SETTERS = {"prefix": _prefix, "shuffle": _shuffle, "delimiter": _delimiter, "skip": _skip}
