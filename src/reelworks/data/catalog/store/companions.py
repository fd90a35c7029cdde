"""Match clips with their companions (a control, sources of an edit, masks, a rejected clip) by path and name.

A folder of companions is scanned as a dataset of its own, so that companions are measured like clips and a changed
one makes a new version of the catalog. A companion belongs to the clip with the same path apart from the suffix.
Arrow hashes the paths, two million a second, without a Python object for each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.core import digests, units
from reelworks.core.arrays import I64, Mask
from reelworks.core.errors import UserError
from reelworks.data.catalog import sources as sources_of
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.sources import ALIGNED, KINDS, SOURCES
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.schema import as_numpy

_ENDS_OF_SOURCES = tuple(f":{kind}" for kind in SOURCES)  # of names of datasets
_RATE_TOLERANCE = 0.01  # 23.976 and 24 count as the same rate


class Problem(IntEnum):
    """Reason why a clip cannot be trained with a companion."""

    NONE = 0
    MISSING = 1
    SEVERAL = 2
    UNREADABLE = 3
    CLIP_FOR_PICTURE = 4
    SHORTER = 5
    OTHER_RATE = 6
    OTHER_ASPECT = 7
    NOTHING_SHOWN = 8
    NOT_ANOTHER = 9


@dataclass(frozen=True)
class CompanionMatches:
    """Companions of one kind, matched with clips."""

    kind: str  # one of `KINDS`
    folder: Mapping[str, str]  # folder of the companions by the name of the clips' dataset
    rows: CatalogRows
    row: I64  # index into `rows` for each clip: any one of several matches, -1 if there is none
    problem: NDArray[np.int8]  # `Problem` of each clip; NONE also if its dataset has no companions of this kind
    ratio: I64  # of sources with sizes of their own; see `data.catalog.sources.ratios`

    def explain(self, clips: CatalogRows, index: int) -> str:
        """Describe the problem with the companion of a clip that has one."""
        problem, row = Problem(int(self.problem[index])), int(self.row[index])
        if problem == Problem.MISSING:
            folder = self.folder[clips.dataset_name(index)]
            return f"no {self.kind} {folder}/{PurePosixPath(clips.path[index].as_py()).with_suffix('.*')}"
        rows = self.rows
        description = {
            Problem.SEVERAL: "is not the only file of that name",
            Problem.UNREADABLE: f"is unusable: {rows.error[row].as_py()}",
            Problem.CLIP_FOR_PICTURE: "is a video, but the clip is a picture",
            Problem.SHORTER: f"has {units.plural(int(rows.num_frames[row]), 'frame')}, the clip {clips.first_frame[index] + clips.num_frames[index]}",
            Problem.OTHER_RATE: f"has {rows.fps[row]:g} frames a second, the clip {clips.fps[index]:g}",
            Problem.OTHER_ASPECT: f"is {rows.width[row]} × {rows.height[row]} pixels, "
            f"the clip {clips.width[index]} × {clips.height[index]}",
            Problem.NOT_ANOTHER: "is the clip itself, so that nothing is preferred",
            Problem.NOTHING_SHOWN: "is a sound, and the clip has no source with pictures beside it",
        }[problem]
        return f"{self.kind} {rows.file(row)} {description}"


def dataset_of(name: str, kind: str) -> str:
    """Return the dataset name under which a catalog holds the companions of a dataset."""
    return f"{name}:{kind}"


def holds_sources(dataset: str) -> bool:
    """Return whether a dataset of a catalog has the sources of another one, by its name."""
    return dataset.endswith(_ENDS_OF_SOURCES)


def sources(clips: Source, folders: Mapping[str, str]) -> list[Source]:
    """List the folders of companions that are scanned along with a dataset; refuse those inside its own folder."""
    for kind, folder in folders.items():
        companions = Source.from_path(folder, kind)
        inside = f"{companions.address}/".startswith(f"{clips.address}/")
        if inside and clips.list_file is None:
            raise UserError(
                f"the companions lie inside the dataset's own folder {clips.address} and would be trained as clips",
                code="companion-inside-dataset",
                field=f"dataset.{kind.partition('-')[0]}",
                value=folder,
                remedy="move them out of that folder",
            )
    return [replace(Source.from_path(path, kind), name=dataset_of(clips.name, kind)) for kind, path in folders.items()]


def without(rows: CatalogRows) -> CatalogRows:
    """Return a catalog's rows without those of companions."""
    ends = tuple(dataset_of("", kind) for kind in KINDS)
    is_companion = rows.of_datasets([n for n in rows.dataset.dictionary.to_pylist() if n.endswith(ends)])
    return rows.take(~is_companion) if is_companion.any() else rows


def find(
    clips: CatalogRows,
    companions: CatalogRows,
    kind: str,
    folder: Mapping[str, str],
    *,
    own_sizes: bool = False,
    sounds: bool = False,
) -> CompanionMatches:
    """Find the companions of clips and their problems; `folder` is by the name of the clips' dataset.

    With `own_sizes`, aspect ratios may differ, and with `sounds`, a companion may be a sound alone.
    """
    may_be = companions.is_video | companions.is_image | (companions.is_sound & sounds)
    row = np.full(len(clips), -1, dtype=np.int64)
    problem = np.zeros(len(clips), dtype=np.int8)
    for dataset in folder:
        mine = np.flatnonzero(clips.of_datasets([dataset]))
        theirs = np.flatnonzero(companions.of_datasets([dataset_of(dataset, kind)]) & may_be)
        index, several = _match(_stems(clips, mine), _stems(companions, theirs))
        row[mine] = np.where(index < 0, -1, theirs[index] if len(theirs) else -1)
        problem[mine] = np.where(index < 0, Problem.MISSING, np.where(several, Problem.SEVERAL, Problem.NONE))
    matched = np.flatnonzero((row >= 0) & (problem == Problem.NONE))
    problem[matched] = _compare(clips, matched, companions, row[matched])
    if kind == "rejected":
        own, other = clips.content_keys()[matched], companions.content_keys()[row[matched]]
        same = (own == other) & (own != digests.NO_CONTENT) & (problem[matched] == Problem.NONE)
        problem[matched[same]] = Problem.NOT_ANOTHER
    ratio = np.full(len(clips), ALIGNED, dtype=np.int64)
    if own_sizes:
        problem[problem == Problem.OTHER_ASPECT] = Problem.NONE
        sizes = (companions.width[row[matched]], companions.height[row[matched]])
        ratio[matched] = sources_of.ratios(*sizes, clips.width[matched], clips.height[matched])
    return CompanionMatches(kind, folder, companions, row, problem, ratio)


def excuse(clips: CatalogRows, sources: Sequence[CompanionMatches], least: Mapping[str, int]) -> None:
    """Accept in place that clips lack some sources, if they have the least number of their dataset, by its name."""
    have = sum((found.row >= 0 for found in sources), np.zeros(len(clips), dtype=np.int64))
    for dataset, count in least.items():
        enough = clips.of_datasets([dataset]) & (have >= count)
        for found in sources:
            found.problem[enough & (found.problem == Problem.MISSING)] = Problem.NONE


def require_shown(sources: Sequence[CompanionMatches]) -> None:
    """Refuse in place the sources of clips that have sounds and nothing else."""
    if not any(found.rows.is_sound.any() for found in sources):
        return
    heard = [(found.row >= 0) & found.rows.is_sound[found.row] for found in sources]
    shown = [(found.row >= 0) & ~sounds for found, sounds in zip(sources, heard, strict=True)]
    for found, sounds in zip(sources, heard, strict=True):
        found.problem[sounds & ~np.any(shown, axis=0) & (found.problem == Problem.NONE)] = Problem.NOTHING_SHOWN


def _stems(rows: CatalogRows, indices: I64) -> Any:
    return pc.replace_substring_regex(rows.path.take(pa.array(indices)), pattern=r"\.[^./]*$", replacement="")


def _match(wanted: Any, stems: Any) -> tuple[I64, Mask]:
    """Return the index in `stems` of each wanted one, -1 if absent, and whether it occurs more than once.

    Those that are left are matched in composed Unicode, as names that look alike are the same in captions and lists.
    """
    index, several = _equal(wanted, stems)
    rest, free = (np.flatnonzero(~as_numpy(pc.is_in(a, value_set=b))) for a, b in ((wanted, stems), (stems, wanted)))
    if len(rest) and len(free):
        left = (pc.utf8_normalize(a.take(pa.array(of)), "NFC") for a, of in ((wanted, rest), (stems, free)))
        at, several[rest] = _equal(*left)
        index[rest] = np.where(at < 0, -1, free[at])
    return index, several


def _equal(wanted: Any, stems: Any) -> tuple[I64, Mask]:
    words = stems.dictionary_encode()
    number = as_numpy(words.indices).astype(np.int64)
    last = np.full(len(words.dictionary) + 1, -1, dtype=np.int64)
    last[number] = np.arange(len(number))
    count = np.bincount(number, minlength=len(last))
    at = as_numpy(pc.index_in(wanted, value_set=words.dictionary).fill_null(len(last) - 1))
    return last[at], count[at] > 1


def _compare(clips: CatalogRows, at: I64, companions: CatalogRows, row: I64) -> NDArray[np.int8]:
    """Return each companion's most serious problem: the loop goes from the least to the most serious."""
    moves, fps, their_fps = companions.is_video[row], clips.fps[at], companions.fps[row]
    aspect = np.maximum(clips.width[at], 1) / np.maximum(clips.height[at], 1)
    their_aspect = np.maximum(companions.width[row], 1) / np.maximum(companions.height[row], 1)
    problems = np.zeros(len(at), dtype=np.int8)
    varies = companions.variable_fps[row] & clips.is_range[at]  # the mean rate of a range is not that of the whole
    for problem, wrong in (
        (Problem.OTHER_ASPECT, np.abs(np.log(their_aspect / aspect)) > sources_of.ASPECT_TOLERANCE),
        (Problem.OTHER_RATE, moves & ~varies & (np.abs(their_fps - fps) > _RATE_TOLERANCE * fps)),
        (Problem.SHORTER, moves & (companions.num_frames[row] < clips.first_frame[at] + clips.num_frames[at])),
        (Problem.CLIP_FOR_PICTURE, moves & clips.is_image[at]),
        (Problem.UNREADABLE, ~companions.readable[row]),
    ):
        problems[wrong] = problem
    return problems
