"""Decide which clips may be trained, whatever their shape: filters, captions, companions, the exclude list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelworks.core.arrays import Mask
from reelworks.data.buckets.assign import Reason
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.catalog.query import filter_failures
from reelworks.data.catalog.store.companions import CompanionMatches, Problem
from reelworks.data.catalog.store.rows import CatalogRows
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
