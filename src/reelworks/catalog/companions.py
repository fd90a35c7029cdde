"""Files that belong to clips: a control, an edit's source, a loss mask; found by path and name.

A folder of companions is scanned as a dataset of its own beside that of its clips, so that a companion is measured
as a clip is, and a changed one makes a new version of the catalog. It belongs to the clip of the same path without
its suffix. Two million strings are compared in a second: Arrow hashes them, no row becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.catalog.rows import CatalogRows
from reelworks.catalog.source import Source
from reelworks.core.errors import UserError

KINDS = ("control", "source", "loss_mask")
_RATE_TOLERANCE = 0.01  # 23.976 and 24 are one rate
_ASPECT_TOLERANCE = 0.02  # what rounding to even sizes makes of a small frame


class Problem(IntEnum):
    """Why a clip cannot be trained with a companion."""

    NONE = 0
    MISSING = 1
    SEVERAL = 2
    UNREADABLE = 3
    CLIP_FOR_PICTURE = 4
    SHORTER = 5
    OTHER_RATE = 6
    OTHER_ASPECT = 7


@dataclass(frozen=True)
class Found:
    """Companions of one kind, beside clips.

    Attributes:
        kind: Of `KINDS`.
        folder: Of the companions, by the name of the clips' dataset.
        rows: Companions.
        row: Of each clip that of its companion, -1 where there is none; of several, of any.
        problem: `Problem` of each clip; NONE too where its dataset has no companions of this kind.
    """

    kind: str
    folder: Mapping[str, str]
    rows: CatalogRows
    row: NDArray[np.int64]
    problem: NDArray[np.int8]

    def explain(self, clips: CatalogRows, index: int) -> str:
        """Say what is wrong with the companion of a clip that has a problem."""
        problem, row = Problem(int(self.problem[index])), int(self.row[index])
        if problem == Problem.MISSING:
            folder = self.folder[clips.dataset[index].as_py()]
            return f"no {self.kind} {Path(folder, Path(clips.path[index].as_py()).with_suffix('.*'))}"
        theirs = self.rows
        what = {
            Problem.SEVERAL: "is not the only file of its name",
            Problem.UNREADABLE: f"is unusable: {theirs.error[row].as_py()}",
            Problem.CLIP_FOR_PICTURE: "is a clip, and this a picture",
            Problem.SHORTER: f"has {theirs.num_frames[row]} frames, the clip {clips.num_frames[index]}",
            Problem.OTHER_RATE: f"has {theirs.fps[row]:g} frames a second, the clip {clips.fps[index]:g}",
            Problem.OTHER_ASPECT: f"is {theirs.height[row]} × {theirs.width[row]} pixels, "
            f"the clip {clips.height[index]} × {clips.width[index]}",
        }[problem]
        return f"{self.kind} {theirs.file(row)} {what}"


def dataset_of(name: str, kind: str) -> str:
    """Name under which a catalog holds the companions of a dataset."""
    return f"{name}:{kind}"


def sources(clips: Source, folders: Mapping[str, str]) -> list[Source]:
    """List the folders that are scanned besides a dataset.

    Raises:
        UserError: A folder lies in that of the clips, whose companions would pass for clips.
    """
    for kind, folder in folders.items():
        inside = Path(folder).resolve().is_relative_to(clips.root.resolve())
        if inside and clips.list_file is None:
            raise UserError(
                f"it lies in the dataset's own folder {clips.root}, so that its files would be trained as clips",
                code="companion-inside-dataset",
                field=f"dataset.{kind}",
                value=folder,
                remedy="move it beside that folder",
            )
    return [Source(dataset_of(clips.name, kind), Path(folder)) for kind, folder in folders.items()]


def without(rows: CatalogRows) -> CatalogRows:
    """Leave companions out of a catalog's rows."""
    ends = tuple(dataset_of("", kind) for kind in KINDS)
    beside = rows.of_datasets([name for name in rows.dataset.dictionary.to_pylist() if name.endswith(ends)])
    return rows.take(~beside) if beside.any() else rows


def find(clips: CatalogRows, companions: CatalogRows, kind: str, folder: Mapping[str, str]) -> Found:
    """Find the companions of clips, and what is wrong with them.

    Args:
        clips: The clips.
        companions: Rows among which those of this kind are.
        kind: Of `KINDS`.
        folder: Of the companions, by the name of the clips' dataset.
    """
    row = np.full(len(clips), -1, dtype=np.int64)
    problem = np.zeros(len(clips), dtype=np.int8)
    for dataset in folder:
        mine = np.flatnonzero(clips.of_datasets([dataset]))
        theirs = np.flatnonzero(companions.of_datasets([dataset_of(dataset, kind)]))
        place, several = _match(_stems(clips, mine), _stems(companions, theirs))
        row[mine] = np.where(place < 0, -1, theirs[place] if len(theirs) else -1)
        problem[mine] = np.where(place < 0, Problem.MISSING, np.where(several, Problem.SEVERAL, Problem.NONE))
    there = np.flatnonzero((row >= 0) & (problem == Problem.NONE))
    problem[there] = _compare(clips, there, companions, row[there])
    return Found(kind, folder, companions, row, problem)


def _stems(rows: CatalogRows, where: NDArray[np.int64]) -> Any:
    return pc.replace_substring_regex(rows.path.take(pa.array(where)), pattern=r"\.[^./]*$", replacement="")


def _match(wanted: Any, stems: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Place in `stems` of each wanted one, -1 where it is not there, and whether it is there more than once."""
    words = stems.dictionary_encode()
    number = words.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    last = np.full(len(words.dictionary) + 1, -1, dtype=np.int64)
    last[number] = np.arange(len(number))
    count = np.bincount(number, minlength=len(last))
    word = pc.index_in(wanted, value_set=words.dictionary).fill_null(len(last) - 1)
    at = word.to_numpy(zero_copy_only=False)
    return last[at], count[at] > 1


def _compare(
    clips: CatalogRows, at: NDArray[np.int64], companions: CatalogRows, row: NDArray[np.int64]
) -> NDArray[np.int8]:
    """The first problem of each clip's companion."""
    readable, moves = companions.readable[row], companions.is_video[row]
    fps, their_fps = clips.fps[at], companions.fps[row]
    aspect = np.maximum(clips.width[at], 1) / np.maximum(clips.height[at], 1)
    their_aspect = np.maximum(companions.width[row], 1) / np.maximum(companions.height[row], 1)
    found = np.zeros(len(at), dtype=np.int8)
    for problem, wrong in (
        (Problem.OTHER_ASPECT, np.abs(np.log(their_aspect / aspect)) > _ASPECT_TOLERANCE),
        (Problem.OTHER_RATE, moves & (np.abs(their_fps - fps) > _RATE_TOLERANCE * fps)),
        (Problem.SHORTER, moves & (companions.num_frames[row] < clips.num_frames[at])),
        (Problem.CLIP_FOR_PICTURE, moves & clips.is_image[at]),
        (Problem.UNREADABLE, ~readable),
    ):
        found[wrong] = problem
    return found
