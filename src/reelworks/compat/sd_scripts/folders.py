"""Datasets of sd-scripts: subsets of a dataset config, or folders whose names begin with their repeats."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from reelworks.compat.draft import ImportDraft
from reelworks.compat.kohya import reading
from reelworks.compat.kohya.levels import FormerDataset, Found
from reelworks.compat.kohya.values import whole_of
from reelworks.compat.sd_scripts.keys import ALSO


class RepeatedFolder(NamedTuple):
    """A folder with repeats and words in its name, such as 10_word."""

    path: str
    repeats: int
    words: str


def repeated_folders(folder: Path) -> list[RepeatedFolder]:
    """Return the folders in a folder whose names begin with a number of repeats, by name."""
    found = []
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError:
        return []
    for name in names:
        number, _, words = name.partition("_")
        try:
            repeats = int(number)
        except ValueError:
            continue
        if 1 <= repeats <= 100_000:
            found.append(RepeatedFolder(str(folder / name), repeats, words))
    return found


def usable(draft: ImportDraft) -> list[FormerDataset]:
    """Return the datasets that sd-scripts trains: without those of no repeats, and those that a dataset has twice."""
    found = _configured(draft) or _of_folders(draft)
    result, seen = [], set[tuple[int, str]]()
    for dataset in found:
        path = dataset.get(draft.settings, "image_dir", "")
        if _repeats(draft, dataset) < 1 or (path and (dataset.group, path) in seen):
            continue
        seen.add((dataset.group, path))
        result.append(dataset)
    return result or found[:1] or [FormerDataset(("general.", ""), ALSO)]


def _repeats(draft: ImportDraft, dataset: FormerDataset) -> int:
    found = dataset.find(draft.settings, "num_repeats")
    try:
        return 1 if found is None else whole_of(found.value)
    except (TypeError, ValueError):
        return 1


def _configured(draft: ImportDraft) -> list[FormerDataset]:
    settings = draft.settings
    found = []
    for group in range(settings.count("datasets")):
        for subset in range(settings.count(f"datasets.{group}.subsets")):
            places = (f"datasets.{group}.subsets.{subset}.", f"datasets.{group}.", "general.", "")
            found.append(FormerDataset(places, ALSO, group=group))
    return found


def _of_folders(draft: ImportDraft) -> list[FormerDataset]:
    """Return the datasets of `train_data_dir` and `reg_data_dir`, or those of `--data` in place of the former."""
    found = []
    for key, is_reg in (("train_data_dir", False), ("reg_data_dir", True)):
        value = draft.settings.get(key)
        if not is_reg and draft.request.data:
            value = str(draft.request.data[0])
        if not isinstance(value, str) or not value:
            continue
        folder = reading.existing(value)
        inside = repeated_folders(folder) if folder is not None and draft.settings.get("in_json") is None else []
        if inside and not is_reg:
            draft.took_data = True
        own = [
            {
                "image_dir": Found(key, each.path),
                "num_repeats": Found(key, each.repeats),
                "class_tokens": Found(key, each.words),
            }
            for each in inside
        ]
        for values in own or [{"image_dir": Found(key, value)}]:
            if is_reg:
                values["is_reg"] = Found(key, True)
            found.append(FormerDataset(("general.", ""), ALSO, values))
    return found
