"""Decide which clips may be trained, whatever their shape: filters, captions, companions, the exclude list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.core import digests, user_files
from reelworks.core.arrays import Mask
from reelworks.core.errors import UserError
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.query import filter_failures
from reelworks.data.catalog.store.companions import CompanionMatches, Problem
from reelworks.data.catalog.store.rows import CatalogRows, without_range
from reelworks.data.catalog.store.schema import as_numpy
from reelworks.data.media import decode
from reelworks.data.media.config import DataConfig
from reelworks.data.media.sound import SoundSpec


def exclusion_reasons(
    rows: CatalogRows,
    datasets: Sequence[DatasetConfig],
    data: DataConfig,
    *,
    filtered: Mask | None = None,
    companions: Iterable[CompanionMatches],
    in_exclude_file: Mask,
    sound: SoundSpec | None = None,
) -> NDArray[np.int8]:
    """Return why each row is excluded, or `Reason.NONE`; of several reasons the one assigned last below."""
    excluded = np.full(len(rows), Reason.NONE, dtype=np.int8)
    if filtered is not None:
        excluded[filtered] = Reason.FILTERED
    if data.hdr == "reject":
        excluded[rows.is_hdr] = Reason.HDR
    if data.interlaced == "reject":
        excluded[rows.interlaced] = Reason.INTERLACED
    if sound is not None:
        excluded[~_keeps_time(rows, data, sound)] = Reason.SOUND_TIMING
        excluded[rows.is_image] = Reason.NO_SOUND
        if sound.missing == "leave_out":
            excluded[~rows.has_sound] = Reason.NO_SOUND
    for found in companions:
        excluded[found.problem != Problem.NONE] = Reason.NO_COMPANION
    filled = rows.of_datasets([d.dataset_name for d in datasets if d.missing_caption is not None])
    excluded[~rows.captioned & ~filled] = Reason.NO_CAPTION
    excluded[in_exclude_file] = Reason.IN_EXCLUDE_FILE
    excluded[~rows.readable] = Reason.UNREADABLE
    return excluded


def failed_filters(rows: CatalogRows, datasets: Sequence[DatasetConfig]) -> Any:
    """Return the parts of its dataset's filter that each row fails, as a dictionary array; null where it fails none."""
    code = np.full(len(rows), -1, dtype=np.int32)
    words: list[str] = []
    for text in dict.fromkeys(d.filter for d in datasets if d.filter is not None):
        mine = np.flatnonzero(rows.of_datasets([d.dataset_name for d in datasets if d.filter == text]))
        failed = filter_failures.failed_parts(rows if len(mine) == len(rows) else rows.take(mine), text)
        code[mine] = as_numpy(failed.indices.fill_null(-1 - len(words))) + len(words)
        words += failed.dictionary.to_pylist()
    return pa.DictionaryArray.from_arrays(pa.array(code, mask=code < 0), pa.array(words, type=pa.string()))


_SAME_RATE = 0.005  # 23.976 counts as 24 frames per second


def _keeps_time(rows: CatalogRows, data: DataConfig, sound: SoundSpec) -> Mask:
    """Return for which rows evenly spaced frames at the rate of reading last as long as their sound."""
    shown = decode.shown_fps(rows.fps, data, rows.variable_fps)
    near: Mask = np.abs(shown / sound.frame_rate - 1) <= _SAME_RATE
    return near if data.frame_rate is not None else near & ~rows.variable_fps


@dataclass(frozen=True)
class ExcludeList:
    """The distinct lines of a list of clips not to train, each named as "dataset/path"."""

    lines: tuple[str, ...] = ()

    def digest(self) -> str:
        """Return the digest of the lines, independent of their order and of comments."""
        return digests.digest_json(sorted(self.lines))

    def rows(self, rows: CatalogRows) -> Mask:
        """Return True for the rows that a line names."""
        named = np.zeros(len(rows), dtype=np.bool_)
        named[[row for found in self._matches(rows).values() for row in found]] = True
        return named

    def unmatched(self, rows: CatalogRows) -> list[str]:
        """Return the lines that name no row."""
        matches = self._matches(rows)
        return [line for line in self.lines if not any(clip in matches for clip in _readings(line))]

    def _matches(self, rows: CatalogRows) -> dict[str, list[int]]:
        """Return the rows of each clip or file that a line names; of a line's readings the first that is a clip counts."""
        known = _rows_by_name(rows, {clip for line in self.lines for clip in _readings(line)})
        chosen = (next((clip for clip in _readings(line) if clip in known), None) for line in self.lines)
        return {clip: known[clip] for clip in chosen if clip is not None}


def _readings(line: str) -> list[str]:
    """Return the clips that a line may name: a `#` may belong to a file name or begin a comment after a path."""
    path, comment, _ = line.partition(" #")
    return [line, path.rstrip()] if comment else [line]


def _rows_by_name(rows: CatalogRows, clips: set[str]) -> dict[str, list[int]]:
    """Return the rows of those `clips` that exist, by "dataset/path", which names all ranges of a file, or by label."""
    rows_of: dict[str, list[int]] = {}
    # Compare the paths alone: joining millions of them with their datasets would copy them all.
    for dataset in set(rows.dataset.dictionary.to_pylist()):
        below = [clip.removeprefix(f"{dataset}/") for clip in clips if clip.startswith(f"{dataset}/")]
        below += [without_range(path) for path in below]
        if not below:
            continue
        inside = pc.is_in(rows.path, value_set=pa.array(below, type=rows.path.type))
        for row in np.flatnonzero(inside.to_numpy(zero_copy_only=False)).tolist():
            if rows.dataset_name(row) == dataset:
                for name in {rows.label(row), f"{dataset}/{rows.path[row].as_py()}"} & clips:
                    rows_of.setdefault(name, []).append(row)
    return rows_of


def read_exclude_list(path: str | None) -> ExcludeList:
    """Read an exclude list; None stands for an empty one."""
    if path is None:
        return ExcludeList()
    try:
        text = user_files.read_text(Path(path), user_files.TABLE, encoding="utf-8-sig")
    except OSError as error:
        raise UserError(
            f"the exclude list cannot be read ({error.strerror})",
            code="file-unreadable",
            field="exclude_file",
            value=path,
            remedy="check the path; relative paths start at the folder in which the command runs",
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"the file is not UTF-8, from byte {error.start} on",
            code="not-utf-8",
            field="exclude_file",
            value=path,
            remedy="save the file as UTF-8",
        ) from error
    # splitlines() would also split at characters that a file name may contain
    lines = (line.strip() for line in text.split("\n"))
    return ExcludeList(tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#"))))
