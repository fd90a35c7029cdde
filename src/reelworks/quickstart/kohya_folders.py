"""Folders of a command line as datasets: plain ones, and those of kohya's tools, `10_mug cup`."""

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
    """Refuse what is no folder, nor a list of files.

    Raises:
        UserError: Names it.
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
    """Say which datasets folders mean.

    A folder that is named or holds folders named `REPEATS_WORDS` is read as kohya's tools read it: each is a dataset
    whose pictures are shown `REPEATS` times an epoch, and those without a text file have `WORDS` as caption.

    Returns:
        The datasets, each with a name of its own; and remarks on what such tools would leave out too.

    Raises:
        UserError: A folder is given twice, or lies in another one: its clips would be trained twice.
    """
    found: list[DatasetConfig] = []
    remarks: list[str] = []
    for folder in folders:
        inside = [child for child in _folders(folder) if _KOHYA.fullmatch(child.name)]
        for one in inside or [folder]:
            _refuse_twice(one, [Path(dataset.path) for dataset in found])
            repeats, words = _meaning(one)
            name = _free(Source.from_path(one).name, {dataset.dataset_name for dataset in found})
            found.append(DatasetConfig(path=str(one), name=name, repeats=repeats, missing_caption=words))
        remarks += _beside(folder, inside)
    return found, remarks


def _refuse_twice(folder: Path, others: Sequence[Path]) -> None:
    here = folder.resolve()
    for other in others:
        there = other.resolve()
        if here.is_relative_to(there) or there.is_relative_to(here):
            raise UserError(
                "it is given twice" if here == there else f"one of this and {other} lies in the other",
                code="folders-overlap",
                field="--data",
                value=str(folder),
                remedy="give the outer one alone; `repeats` of a [[dataset]] in the recipe shows clips more often",
            )


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []  # told by the scan
    with os.scandir(folder) as entries:
        return sorted(Path(e.path) for e in entries if e.is_dir() and not e.name.startswith("."))


def _meaning(folder: Path) -> tuple[int, str | None]:
    match = _KOHYA.fullmatch(folder.resolve().name)
    return (int(match[1]), match[2].strip()) if match else (1, None)


def _free(name: str, taken: set[str]) -> str:
    """The name, or with a number behind it: clips are known by their dataset's."""
    candidates = (name, *(f"{name}-{i}" for i in range(2, len(taken) + 3)))
    return next(one for one in candidates if one not in taken)


def _beside(folder: Path, inside: Sequence[Path]) -> list[str]:
    """List what lies beside folders of kohya's tools."""
    if not inside:
        return []
    with os.scandir(folder) as entries:
        loose = [e.name for e in entries if e.is_file() and probe.kind_of(e.name) is not None]
    others = [child.name for child in _folders(folder) if child not in inside]
    if not loose and not others:
        return []
    told = [f"{len(loose)} file{'s' * (len(loose) > 1)}"] * bool(loose) + [
        f"the folder {name}" for name in others
    ]
    return [f"left out, beside folders named REPEATS_WORDS in {folder}: {', '.join(told)}"]
