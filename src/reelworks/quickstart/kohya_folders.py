"""Turn folders into datasets: plain folders, and those in the layout of kohya's tools, such as `10_mug cup`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from reelworks.catalog import probe
from reelworks.catalog.config import DatasetConfig
from reelworks.catalog.source import Source, is_list
from reelworks.core.errors import UserError

_KOHYA = re.compile(r"([1-9][0-9]*)_(.+)")


def require(folders: Sequence[Path]) -> None:
    """Refuse paths that are neither folders nor lists of files.

    Raises:
        UserError: A path is neither; the error names it.
    """
    for folder in folders:
        if folder.is_dir() or (folder.is_file() and is_list(folder)):
            continue
        raise UserError(
            "this is a file, not a folder" if folder.exists() else "there is no such folder",
            code="no-such-folder",
            field="--data",
            value=str(folder),
            remedy="give the folder that holds the videos and pictures",
        )


def datasets(folders: Sequence[Path]) -> tuple[list[DatasetConfig], list[str]]:
    """Return the datasets of folders.

    A folder named `REPEATS_WORDS`, or each such folder in a given one, is a dataset as for kohya's tools: its pictures
    are repeated `REPEATS` times per epoch, and those without a text file have `WORDS` as their caption.

    Returns:
        The datasets, each with a unique name; and remarks on files and folders that are left out.

    Raises:
        UserError: A folder is listed twice or lies in another one, so that its clips would be trained twice.
    """
    result: list[DatasetConfig] = []
    remarks: list[str] = []
    for folder in folders:
        inside = [child for child in _folders(folder) if _KOHYA.fullmatch(child.name)]
        for path in inside or [folder]:
            _refuse_overlap(path, [Path(dataset.path) for dataset in result])
            repeats, words = _repeats_and_words(path)
            name = _unique(Source.from_path(path).name, {dataset.dataset_name for dataset in result})
            result.append(DatasetConfig(path=str(path), name=name, repeats=repeats, missing_caption=words))
        remarks += _left_out(folder, inside)
    return result, remarks


def _refuse_overlap(folder: Path, others: Sequence[Path]) -> None:
    resolved = folder.resolve()
    for other in others:
        taken = other.resolve()
        if resolved.is_relative_to(taken) or taken.is_relative_to(resolved):
            raise UserError(
                "it is given twice" if resolved == taken else f"one of this and {other} lies in the other",
                code="folders-overlap",
                field="--data",
                value=str(folder),
                remedy="give only the outer one; to repeat clips, set `repeats` of a [[dataset]] in the recipe",
            )


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []  # the scan reports it
    with os.scandir(folder) as entries:
        return sorted(Path(e.path) for e in entries if e.is_dir() and not e.name.startswith("."))


def _repeats_and_words(folder: Path) -> tuple[int, str | None]:
    match = _KOHYA.fullmatch(folder.resolve().name)
    return (int(match[1]), match[2].strip()) if match else (1, None)


def _unique(name: str, taken: set[str]) -> str:
    """Return the name, with a number appended if it is taken, since dataset names identify clips."""
    candidates = (name, *(f"{name}-{i}" for i in range(2, len(taken) + 3)))
    return next(candidate for candidate in candidates if candidate not in taken)


def _left_out(folder: Path, inside: Sequence[Path]) -> list[str]:
    """Return a remark on the contents of a folder that are outside its folders for kohya's tools, if any."""
    if not inside:
        return []
    with os.scandir(folder) as entries:
        loose = [e.name for e in entries if e.is_file() and probe.kind_of(e.name) is not None]
    others = [child.name for child in _folders(folder) if child not in inside]
    if not loose and not others:
        return []
    parts = [f"{len(loose)} file{'s' * (len(loose) > 1)}"] * bool(loose)
    parts += [f"the folder {name}" for name in others]
    return [f"left out, because {folder} has folders named REPEATS_WORDS: {', '.join(parts)}"]
