"""Datasets of sd-scripts: subsets of a dataset config, or folders whose names begin with their repeats."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.kohya import reading
from reelworks.annexes.imports.kohya.levels import FormerDataset, Found
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.annexes.imports.sd_scripts.keys import ALSO
from reelworks.annexes.imports.values import whole_of

_FOR_VALIDATION: Outcome = (
    Fate.NOT_POSSIBLE,
    "a folder for validation alone is not there, and is left out: validation.split holds back a share of the others",
)


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
        with suppress(ValueError):
            if 1 <= (repeats := int(number)) <= 100_000:
                found.append(RepeatedFolder(str(folder / name), repeats, words))
    return found


class UsedDatasets(NamedTuple):
    """Datasets that become those of the recipe, and why others do not, by the beginning of their settings' names."""

    used: list[FormerDataset]
    left_out: dict[str, Outcome]


def usable(settings: FormerSettings) -> UsedDatasets:
    """Return the datasets that sd-scripts trains: none of no repeats, for validation alone, or twice in a dataset."""
    found = _configured(settings) or _of_folders(settings)
    used: list[FormerDataset] = []
    left_out: dict[str, Outcome] = {}
    seen: set[tuple[int, str]] = set()
    for dataset in found:
        path = dataset.get(settings, "image_dir", "")
        is_list = any(dataset.find(settings, name) is not None for name in ("metadata_file", "in_json"))
        if path and not is_list and count_pictures(path) == 0:
            place = dataset.own["image_dir"].key if "image_dir" in dataset.own else dataset.places[0]
            left_out[place] = Fate.TAKEN, f"{path} has no pictures, and is left out, as there"
        elif repeats_of(settings, dataset) < 1:
            left_out[dataset.places[0]] = Fate.TAKEN, "a folder without repeats is left out, as there"
        elif path and (dataset.group, path) in seen:
            left_out[dataset.places[0]] = Fate.TAKEN, "of a folder that a dataset has twice, the first counts, as there"
        elif dataset.get(settings, "validation_split", 0.0) >= 1:
            left_out[dataset.places[0]] = _FOR_VALIDATION
        else:
            used.append(dataset)
        seen.add((dataset.group, path))
    if not used:
        return UsedDatasets(found[:1] or [FormerDataset(("general.", ""), ALSO)], {})
    return UsedDatasets(used, left_out)


def repeats_of(settings: FormerSettings, dataset: FormerDataset) -> int:
    """Return how often a dataset is repeated; 1 for what is no whole number."""
    found = dataset.find(settings, "num_repeats")
    with suppress(ValueError):
        return 1 if found is None else whole_of(found.value)
    return 1


def count_pictures(path: str) -> int | None:
    """Return the number of pictures that the trainer reads in a folder; None if the folder is not there."""
    folder = reading.existing_folder(path)
    try:
        return None if folder is None else sum(is_picture(file.name) for file in folder.iterdir())
    except OSError:
        return None


def is_picture(name: str) -> bool:
    """Return whether a file is a picture that sd-scripts reads, by its name."""
    return name.lower().endswith((".png", ".jpg", ".jpeg", ".webp", ".bmp"))


def _configured(settings: FormerSettings) -> list[FormerDataset]:
    found = []
    for group in range(settings.count("datasets")):
        for subset in range(settings.count(f"datasets.{group}.subsets")):
            places = (f"datasets.{group}.subsets.{subset}.", f"datasets.{group}.", "general.", "")
            found.append(FormerDataset(places, ALSO, group=group))
    return found


def _of_folders(settings: FormerSettings) -> list[FormerDataset]:
    """Return the datasets of `train_data_dir` and `reg_data_dir`."""
    found = []
    for key, is_reg in (("train_data_dir", False), ("reg_data_dir", True)):
        value = settings.get(key)
        if not isinstance(value, str) or not value:
            continue
        folder = reading.existing_folder(value)
        inside = repeated_folders(folder) if folder is not None and settings.get("in_json") is None else []
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
