"""Cut videos into clips: ranges of their frames, which are rows of the catalog like separate files.

A range has a text, which is part of its clip's uid: "120:240" has the frames from 120 on and before 240, "5.0s:7.5s"
those shown from 5 s on and before 7.5 s, and without a second number a range lasts to the end of the file. Lists
give ranges; otherwise a `Source.cut` says how videos are cut: "5.0s" into clips of that length, "scenes" at the cuts
that `scenes` finds, "scenes 5.0s" at both.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelworks.core import units
from reelworks.data.catalog.scan.source_files import STATE, Listing
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.data.catalog.store.schema import as_numpy
from reelworks.data.media import probe, scenes
from reelworks.data.media.formats import ProbeError, kind_of
from reelworks.data.media.frame_times import FrameTimes
from reelworks.data.media.location import MediaPath

SCENES = "scenes"
_ROUNDING = 0.001  # seconds by which a time may lie before that of its frame


class ClipRange(NamedTuple):
    """A range of frames of a file, with the measures that differ from those of the file."""

    first_frame: int
    num_frames: int
    fps: float
    duration_seconds: float
    variable_fps: bool

    @property
    def text(self) -> str:
        """The range as text."""
        return text(self.first_frame, self.num_frames)


def text(first_frame: int, num_frames: int) -> str:
    """Return a range of frames as text."""
    return f"{first_frame}:{first_frame + num_frames}"


def expand(files: Listing, live: CatalogRows, dataset: str, cut: str) -> Listing:
    """Replace each video of a listing by its clips, if its live rows are those of the file as it is, cut this way.

    The others have to be cut: they have `cut`, but no `clip`.
    """
    cut_this_way = as_numpy(pc.equal(live.cut.cast(pa.string()), cut)) & live.of_datasets([dataset])
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row in np.flatnonzero(cut_this_way & as_numpy(pc.not_equal(live.fingerprint, ""))).tolist():
        rows_of[live.path[row].as_py()].append(row)
    entries, number = [], []
    for i, entry in enumerate(files.entries):
        if kind_of(entry.path) != "video" or entry.problem is not None:
            clips = [entry]
        else:
            rows = rows_of.get(entry.path, [])
            same = [live.column(name)[row] == getattr(entry, name) for row in rows for name in STATE]
            # The row of a file that could not be cut has no frames.
            frames = [(int(live.first_frame[row]), int(live.num_frames[row])) for row in rows]
            texts = [text(*one) if one[1] else "" for one in frames] if rows and all(same) else [""]
            clips = [entry._replace(cut=cut, clip=clip) for clip in texts]
        entries += clips
        number += [i] * len(clips)
    captions = None if files.captions is None else files.captions.take(pa.array(number, type=pa.int64()))
    return Listing(entries, captions, {name: score[number] for name, score in files.scores.items()}, files.note)


def find(path: MediaPath, cut: str, clip: str, read_times: Callable[[], FrameTimes]) -> tuple[ClipRange, ...]:
    """Return the clips of a video: the one with the text `clip`, or else all; raise `ProbeError` if it has no such."""
    if kind_of(path.name) != "video":
        raise ProbeError("a picture has no range of frames; convert an animated one to MP4 to cut it")
    times = read_times()
    if clip:
        return (_measured(times, *_listed(times, clip)),)
    *found, length = ["", *cut.split()] if not cut.endswith(SCENES) else [cut, ""]
    ranges = scenes.find(path, len(times.ticks)) if SCENES in found else [(0, len(times.ticks))]
    if length:
        ranges = [piece for start, end in ranges for piece in pieces(times, start, end, float(length.rstrip("s")))]
    return tuple(_measured(times, start, end) for start, end in ranges)


def pieces(times: FrameTimes, start: int, end: int, seconds: float) -> list[tuple[int, int]]:
    """Cut the frames from `start` to before `end` every so many seconds; less than half of it is added to the last."""
    shown = times.seconds
    until = float(shown[end]) if end < len(shown) else times.end_seconds()
    last = max(int((until - shown[start]) / seconds + 0.5), 1) - 1
    piece = np.minimum((shown[start:end] - shown[start] + _rounding(times)) // seconds, last)  # of each frame
    return list(itertools.pairwise([start, *(start + 1 + np.flatnonzero(np.diff(piece))).tolist(), end]))


def _rounding(times: FrameTimes) -> float:
    """Return by how much a frame may be early: timestamps are rounded to ticks."""
    return min(times.tick_seconds / 2, _ROUNDING)


def _at(times: FrameTimes, seconds: float) -> int:
    """Return the first frame at or after a time."""
    return int(np.searchsorted(times.seconds, seconds - _rounding(times)))


def _listed(times: FrameTimes, clip: str) -> tuple[int, int]:
    """Return the range of frames that the text of a list means."""
    first, last = clip.split(":")
    total = len(times.ticks)
    if clip.endswith("s") or first.endswith("s"):
        begin = float(first.rstrip("s"))
        start = _at(times, begin)
        end = _at(times, float(last.rstrip("s"))) if last else total
        if start >= total:
            raise ProbeError(f"the clip begins at {begin:g} s, but the file ends at {times.end_seconds():.6g} s")
    else:
        start, end = int(first), int(last) if last else total
        if start >= total or end > total:
            raise ProbeError(
                f"the clip has frames {start} to {max(end, start + 1) - 1}, but the file has {units.plural(total, 'frame')}"
            )
    if start >= end:
        raise ProbeError(f"no frame is shown from {first} to {last}")
    return start, end


def _measured(times: FrameTimes, start: int, end: int) -> ClipRange:
    last = int(times.ticks[end] - times.ticks[end - 1]) if end < len(times.ticks) else 0
    if not times.timed:
        fps = float(times.declared_fps or 0)
        return ClipRange(start, end - start, fps, (end - start) / fps if fps else 0.0, False)
    tick = Fraction(times.tick_seconds).limit_denominator(10**9)
    measures = probe.measure(end - start, times.ticks[start:end].tolist(), last, tick, times.declared_fps)
    return ClipRange(start, end - start, *measures)
