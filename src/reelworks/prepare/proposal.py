"""Buckets for what a catalog holds, each with its reason: a pure function of rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from reelworks.buckets import assign, sizes, table
from reelworks.buckets.assign import Clips, Reason
from reelworks.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.catalog.rows import CatalogRows
from reelworks.core.shape import Geometry
from reelworks.prepare import advice

T = TypeVar("T")
MOST, NEARLY_ALL = 0.6, 0.9
_PICTURES = (
    "64px",
    "96px",
    "128px",
    "192px",
    "256px",
    "384px",
    "512px",
    "640px",
    "768px",
    "1024px",
    "1536px",
)
_VIDEOS = ("64px", "96px", "128px", "144p", "240p", "360p", "480p", "720p", "1080p")
# All but 5 are both 4n+1 and 8n+1, which every video autoencoder in use takes.
_FRAMES = (5, 9, 17, 33, 49, 65, 81, 97, 121)
_LARGEST_BATCH = 64
# 8-fold autoencoder and patches of 2, the commonest multiple.
_GEOMETRY = Geometry(stride=(1, 8, 8), patch=(1, 2, 2))


@dataclass(frozen=True)
class Entry:
    """One proposed `[[bucket]]`, with the reason for it."""

    resolution: str
    num_frames: int
    batch_size: int
    why: str


@dataclass(frozen=True)
class Proposal:
    """Entries, largest first.

    Attributes:
        entries: The buckets.
        reached: Readable clips that fit one of them.
        clips: Readable clips.
        upscale: True if part of the clips fill none of the resolutions known here.
    """

    entries: tuple[Entry, ...]
    reached: int
    clips: int
    upscale: bool

    def to_toml(self) -> str:
        """The entries as they stand in a recipe, reasons as comments."""
        lines = [f"# from what the catalog holds: {self.reached} of {self.clips} clips fit"]
        lines += ["[buckets]", "upscale = true", ""] if self.upscale else [""]
        for entry in self.entries:
            lines += [f"# {entry.why}", "[[bucket]]", f'resolution = "{entry.resolution}"']
            lines += [f"num_frames = {entry.num_frames}", f"batch_size = {entry.batch_size}", ""]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain values, the TOML text among them."""
        return {**asdict(self), "toml": self.to_toml()}


def propose(rows: CatalogRows) -> Proposal:
    """Propose buckets: what most clips fill, and what nearly all do, in size and in length.

    Batch sizes give each micro-batch about as many pixels as one clip of the largest entry has.
    """
    good = rows.take(rows.readable)
    video = advice.is_video(good)
    entries = [*_of_videos(good.take(video)), *_of_pictures(good.take(~video))]
    largest = max((_pixels(e.resolution) * e.num_frames for e in entries), default=1)
    sized = [
        Entry(e.resolution, e.num_frames, _batch_size(largest, e), e.why)
        for e in sorted(entries, key=lambda e: (-_pixels(e.resolution), -e.num_frames))
    ]
    upscale = _fitting(good, sized, upscale=False) == 0 < len(good)
    return Proposal(tuple(sized), _fitting(good, sized, upscale=upscale), len(good), upscale)


def _pixels(resolution: str) -> int:
    budget = sizes.pixel_budget(resolution)
    return budget if isinstance(budget, int) else budget[0] * budget[1]


def _batch_size(largest: int, entry: Entry) -> int:
    return int(np.clip(largest // (_pixels(entry.resolution) * entry.num_frames), 1, _LARGEST_BATCH))


def _of_pictures(rows: CatalogRows) -> list[Entry]:
    if not len(rows):
        return []
    filled = [(name, float(_fills(rows, name).mean())) for name in _PICTURES]
    return [
        Entry(name, 1, 1, f"{name}: {share:.0%} of {len(rows)} pictures fill it")
        for name, share in _rungs(filled)
    ]


def _of_videos(rows: CatalogRows) -> list[Entry]:
    if not len(rows):
        return []
    filled = [(name, float(_fills(rows, name).mean())) for name in _VIDEOS]
    entries = []
    for name, share in _rungs(filled):
        # Lengths of those that fill the size: others never come here.
        inside = rows.num_frames[_fills(rows, name)] if share else rows.num_frames
        have = [(frames, float((inside >= frames).mean())) for frames in _FRAMES]
        for frames, long_enough in _rungs(have):
            why = f"{name}: {share:.0%} of {len(rows)} videos fill it; {long_enough:.0%} of these have {frames} frames"
            entries.append(Entry(name, frames, 1, why))
    return entries


def _rungs(shares: list[tuple[T, float]]) -> list[tuple[T, float]]:
    """The highest rungs that most and that nearly all reach; the lowest where too few reach any."""
    chosen = [next((r for r in reversed(shares) if r[1] >= least), shares[0]) for least in (MOST, NEARLY_ALL)]
    return chosen[:1] if chosen[0] == chosen[1] else chosen


def _fills(rows: CatalogRows, resolution: str) -> NDArray[np.bool_]:
    """True for clips that fill a resolution at the nearest aspect ratio, whatever their length."""
    entry = BucketEntryConfig(resolution=resolution, num_frames=1)
    buckets = table.build([entry], BucketsConfig(), _GEOMETRY)
    clips = _clips(rows, np.ones(len(rows), dtype=np.int64), np.ones(len(rows), dtype=np.bool_))
    filled: NDArray[np.bool_] = assign.assign(clips, buckets, seed=0, epoch=0).reason == Reason.NONE
    return filled


def _fitting(rows: CatalogRows, entries: list[Entry], *, upscale: bool) -> int:
    if not entries:
        return 0
    configs = [BucketEntryConfig(resolution=e.resolution, num_frames=e.num_frames) for e in entries]
    buckets = table.build(configs, BucketsConfig(upscale=upscale), _GEOMETRY)
    result = assign.assign(_clips(rows, rows.num_frames, ~advice.is_video(rows)), buckets, seed=0, epoch=0)
    return int((result.reason == Reason.NONE).sum())


def _clips(rows: CatalogRows, num_frames: NDArray[np.int64], is_image: NDArray[np.bool_]) -> Clips:
    n = len(rows)
    return Clips(
        uid=rows.uid,
        copy=np.zeros(n, dtype=np.int64),
        num_frames=num_frames,
        height=rows.height,
        width=rows.width,
        is_image=is_image,
        excluded=np.zeros(n, dtype=np.int8),
        held_out=np.zeros(n, dtype=np.bool_),
    )
