"""Proposal of bucket entries with reasons, as a pure function of the clips' sizes and lengths."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import numpy as np

from reelworks.core import hash_rng
from reelworks.core.arrays import F64, I64, Mask
from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry, Shape
from reelworks.data.buckets import assign, sizes, table
from reelworks.data.buckets.assign import Clips, Reason
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.data.buckets.entry import Entry
from reelworks.data.buckets.table import BucketTable
from reelworks.data.catalog.store.rows import CatalogRows

NEARLY_ALL = 0.98
# Another rung must increase the average size or length of the clips by this share.
_LEAST_GAIN = 0.1
# All but 5 are both 4n+1 and 8n+1, which every video autoencoder in use accepts.
_FRAMES = (5, 9, 17, 33, 49, 65, 81, 97, 121)


@dataclass(frozen=True)
class Ladder:
    """Candidate sizes (rungs), smallest first."""

    names: tuple[str, ...]  # sizes in the format of `bucket.resolution`
    table: BucketTable  # bucket table with a one-frame entry for each rung; entry `-1 - i` is that of rung `i`
    geometry: Geometry

    @classmethod
    def from_steps(cls, steps: Sequence[int | str], config: BucketsConfig, geometry: Geometry) -> Ladder:
        """Build a ladder of the distinct sizes of `steps` (sides of squares, or resolutions) that the model supports.

        Its lowest rung is a square of the model's multiple. Clips are never enlarged, else all would fill all rungs.
        """
        multiple = max(geometry.multiple)
        names = [f"{step}px" if isinstance(step, int) else step for step in (multiple, *steps)]
        by_pixels = {sizes.pixel_budget(name)[0]: name for name in names}
        rules = config.model_copy(update={"entries": "recipe", "upscale": False})
        shapes: dict[tuple[Shape, ...], str] = {}
        for _, name in sorted(item for item in by_pixels.items() if item[0] >= multiple**2):
            built = table.build([BucketEntryConfig(resolution=name, num_frames=1)], rules, geometry)
            shapes.setdefault(tuple(bucket.shape for bucket in built.buckets), name)
        chosen = tuple(shapes.values())
        entries = [BucketEntryConfig(resolution=name, num_frames=1) for name in chosen]
        return cls(chosen, table.build(entries, rules, geometry), geometry)

    @property
    def worth(self) -> F64:
        """Logarithm of the pixels of each rung."""
        return np.log([sizes.pixel_budget(name)[0] for name in self.names])

    def highest(self, height: I64, width: I64) -> I64:
        """Return the highest rung that each clip fills, or -1."""
        n = len(height)
        clips = Clips.unrestricted(
            np.zeros(n, np.uint64), np.ones(n, np.int64), height, width, is_image=np.ones(n, np.bool_)
        )
        assigned = assign.assign(clips, self.table, seed=0, epoch=0).bucket
        entry = np.array([bucket.entry for bucket in self.table.buckets], dtype=np.int64)
        return np.asarray(np.where(assigned >= 0, len(self.names) - 1 - entry[assigned], -1))

    def nearly(self, height: I64, width: I64) -> I64:
        """Return the highest rung that each clip fills if it is enlarged by a few percent, see `FILLS`."""
        return self.highest(*np.ceil(np.stack([height, width]) / math.sqrt(FILLS)).astype(np.int64))

    def tokens(self, rung: int, num_frames: int) -> int:
        """Return the most latent tokens of one clip at a rung, over all aspect ratios."""
        buckets = self.table.of_entry(len(self.names) - 1 - rung)
        shapes = [self.table.buckets[i].shape for i in buckets]
        return max(self.geometry.tokens(Shape(num_frames, s.height, s.width)) for s in shapes)


def frame_counts(geometry: Geometry) -> I64:
    """Return frame counts of videos that the model accepts: the shortest, and those near the usual ones."""
    a, b = geometry.frame_rule
    if a == 0:
        return np.zeros(0, dtype=np.int64)
    usual = {(frames - b) // a * a + b for frames in _FRAMES}
    shortest = next(n for n in range(2, 2 + a + b) if geometry.accepts_frames(n))
    return np.array(sorted({shortest} | {n for n in usual if n > shortest}), dtype=np.int64)


def rungs(highest: I64, worth: F64, most: int) -> list[int]:
    """Choose at most `most` rungs, highest first: the highest that nearly all clips reach, and those that add most.

    `highest` is the highest rung of each clip or -1, `worth` the logarithm of the size or length of each rung.
    """
    count = np.bincount(highest[highest >= 0], minlength=len(worth))
    total = count.sum()
    if not total:
        return []
    reach = np.cumsum(count[::-1])[::-1] / total
    chosen = [int(np.flatnonzero(reach >= NEARLY_ALL)[-1])]
    rung = np.arange(len(worth))
    while len(chosen) < most:
        has = np.max([np.where(rung >= c, worth[c], worth[chosen[0]]) for c in chosen], axis=0)
        gains = [(count[r:] * np.maximum(worth[r] - has[r:], 0)).sum() / total for r in rung]
        best = int(np.argmax(gains))
        if gains[best] < _LEAST_GAIN:
            break
        chosen.append(best)
    return sorted(chosen, reverse=True)


_PICTURES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 1024, 1536)
_VIDEOS = (16, 32, 48, 64, 96, 128, "144p", 256, "240p", "360p", "480p", "720p", "1080p")
_MOST_SIZES, _MOST_LENGTHS = 3, 2
# Share of a size's area that a clip must have: releases train at sizes of nearly equal area, such as 832 × 1216 beside
# 1024 × 1024, and who cut data for them wants that size. Enlarging by 8 % in each direction is not seen.
FILLS = 0.85
_FEWEST_FRAMES = 5  # fewer show no motion
_SAMPLE = 1 << 18  # number of clips that suffices to estimate shares
_FLOOR_FROM = 0.01
_LEAST_SHARE = 0.1  # share of the clips that an entry must suit best to be proposed
# An 8-fold autoencoder and patches of 2 give the most common multiple.
_COMMON = Geometry(stride=(1, 8, 8), patch=(1, 2, 2))


@dataclass(frozen=True)
class Suggestion:
    """One proposed `[[bucket]]`, with the reason for it."""

    resolution: str
    num_frames: int
    batch_size: int = 1
    keep_prob: float = 1.0
    why: str = ""

    def to_text(self) -> str:
        """Return the entry and its reason as one line of text."""
        text = f"{self.resolution} ×{self.num_frames}, batch size {self.batch_size}, keep_prob {self.keep_prob:g}"
        return f"{text}: {self.why}" if self.why else text

    def config(self) -> BucketEntryConfig:
        """Return the entry in the format of a recipe."""
        return BucketEntryConfig.model_validate({k: v for k, v in asdict(self).items() if k != "why"})


@dataclass(frozen=True)
class Proposal:
    """Proposed entries, largest first, and how many of the clips fit one (`reached`)."""

    JSON_KEYS: ClassVar = ("entries", "reached", "clips", "max_tokens", "toml")

    entries: tuple[Suggestion, ...]
    reached: int
    clips: int
    max_tokens: int

    def headline(self) -> str:
        """Return one line with the number of clips that fit and the token limit."""
        return f"{self.reached} of {self.clips} clips fit; a micro-batch has at most {self.max_tokens} latent tokens"

    @property
    def toml(self) -> str:
        """Entries as TOML for a recipe, with the reasons as comments."""
        lines = [f"# proposed from the clips of the catalog: {self.headline()}", ""]
        for entry in self.entries:
            lines += [f"# {entry.why}", "[[bucket]]", f'resolution = "{entry.resolution}"']
            lines += [f"num_frames = {entry.num_frames}", f"batch_size = {entry.batch_size}"]
            lines += [f"keep_prob = {entry.keep_prob:g}", ""] if entry.keep_prob < 1 else [""]
        return "\n".join(lines)


def of_rows(rows: CatalogRows) -> Proposal:
    """Propose buckets for the readable rows of a catalog, with default settings and the most common geometry."""
    return propose(clips_of(rows.take(rows.readable)), BucketsConfig(), _COMMON)


def clips_of(rows: CatalogRows) -> Clips:
    """Return readable rows as clips of which none is excluded."""
    num_frames = np.where(rows.is_video, rows.num_frames, 1).astype(np.int64)
    size = rows.height.astype(np.int64), rows.width.astype(np.int64)
    return Clips.unrestricted(rows.uid, num_frames, *size, is_image=~rows.is_video)


def table_of(proposal: Proposal) -> BucketTable:
    """Return the table of what `of_rows` proposes, whose entries take every clip that fits."""
    return _build([replace(entry, keep_prob=1.0) for entry in proposal.entries], BucketsConfig(), _COMMON)


def propose(clips: Clips, config: BucketsConfig, geometry: Geometry) -> Proposal:
    """Propose a few sizes and lengths that nearly all clips fill and that preserve most of their content.

    If a size and a length together exceed `max_tokens`, one entry has this length at a smaller size, and another
    this size at a shorter length. Clips that fit several entries are divided among them, excluded ones ignored.
    """
    wanted = clips.take(np.flatnonzero(clips.excluded == Reason.NONE))
    suggestions: list[Suggestion] = []
    for is_image in (False, True):
        of_kind = wanted.take(np.flatnonzero(wanted.is_image == is_image))
        if len(of_kind.uid):
            # By hash, since an even stride could coincide with patterns of copies or folders.
            share = min(_SAMPLE / len(of_kind.uid), 1.0)
            drawn = hash_rng.bernoulli(hash_rng.hash64(0, of_kind.uid, of_kind.copy), share)
            sample = of_kind.take(np.flatnonzero(drawn))
            entries = (_of_pictures if is_image else _of_videos)(sample, config, geometry)
            entries = _shared_out(entries, sample, config, geometry)
            suggestions += _with_batch_sizes(entries, sample, len(of_kind.uid), config, geometry)
    certain = [replace(entry, keep_prob=1.0) for entry in suggestions]
    built = _build(certain, config, geometry) if certain else table.EMPTY
    by_shape = {(entry.resolution, entry.num_frames): entry for entry in suggestions}
    fit = assign.assign(wanted, built, seed=0, epoch=0).bucket >= 0
    ordered = tuple(by_shape[entry.resolution, entry.num_frames] for entry in built.entries)
    return Proposal(ordered, int(fit.sum()), len(wanted.uid), config.max_tokens)


def _of_pictures(clips: Clips, config: BucketsConfig, geometry: Geometry) -> list[Suggestion]:
    ladder = Ladder.from_steps(_PICTURES, config, geometry)
    chosen = rungs(_reached(ladder, clips, config), ladder.worth, _MOST_SIZES)
    return [Suggestion(ladder.names[i], 1) for i in dict.fromkeys(_fit(ladder, s, 1, config) for s in chosen)]


def _reached(ladder: Ladder, clips: Clips, config: BucketsConfig) -> I64:
    """Return the highest rung of each clip; only where clips are enlarged may one be a little smaller than its bucket."""
    return (ladder.nearly if config.upscale else ladder.highest)(clips.height, clips.width)


def _of_videos(clips: Clips, config: BucketsConfig, geometry: Geometry) -> list[Suggestion]:
    ladder, counts = Ladder.from_steps(_VIDEOS, config, geometry), frame_counts(geometry)
    highest = _reached(ladder, clips, config)
    longest = np.searchsorted(counts, clips.num_frames, side="right") - 1
    usable = (highest >= 0) & (longest >= 0)
    chosen = rungs(highest[usable], ladder.worth, _MOST_SIZES)
    lengths = [int(counts[i]) for i in rungs(longest[usable], np.log(counts), _MOST_LENGTHS)]
    if not chosen:
        return []
    reasons: dict[tuple[int, int], str] = {}
    for pair, why in _pairs(ladder, chosen, lengths, counts.tolist(), config):
        reasons.setdefault(pair, why)
    # If clips are too short for the smallest entry, a shorter one below all others takes them.
    smallest = min(reasons)
    left = (longest[usable] < np.searchsorted(counts, smallest[1])).mean()
    if left > _FLOOR_FROM:
        reasons.setdefault((smallest[0], lengths[-1]), "added so that shorter clips fit too")
    order = sorted(reasons, reverse=True)
    return [Suggestion(ladder.names[size], frames, why=reasons[size, frames]) for size, frames in order]


def _pairs(
    ladder: Ladder, chosen: list[int], lengths: list[int], counts: list[int], config: BucketsConfig
) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield (size, length) pairs within the budget with reasons: each length at its largest size, and vice versa."""
    few = min(lengths[-1], next((c for c in counts if c >= _FEWEST_FRAMES), counts[-1]))
    for size in chosen:
        for frames in lengths:
            if frames > lengths[-1] and ladder.tokens(0, frames) > config.max_tokens:
                continue
            fits = _fit(ladder, size, frames, config)
            why = "" if fits == size else f"the largest size at which {frames} frames fit max_tokens"
            yield (fits, frames), why
        fits = _fit(ladder, size, few, config)
        able = [c for c in counts if few <= c <= lengths[0] and ladder.tokens(fits, c) <= config.max_tokens]
        yield ((fits, able[-1]), "" if able[-1] == lengths[0] else "the most frames that fit max_tokens at this size")


def _fit(ladder: Ladder, size: int, num_frames: int, config: BucketsConfig) -> int:
    """Return the largest size, at most `size`, at which `num_frames` frames fit the budget."""
    for smaller in range(size, -1, -1):
        if ladder.tokens(smaller, num_frames) <= config.max_tokens:
            return smaller
    least = ladder.tokens(0, num_frames)
    raise UserError(
        f"one clip of {ladder.names[0]} × {num_frames} frames has {least} latent tokens",
        code="token-limit-too-low",
        field="buckets.max_tokens",
        value=config.max_tokens,
        remedy=f"set it to at least {least}",
    )


def _shared_out(entries: list[Suggestion], clips: Clips, config: BucketsConfig, geometry: Geometry) -> list[Suggestion]:
    """Return the entries that are needed, with keep probabilities that divide clips among the entries they fit.

    The uses of a clip are divided by the square root of the entries' tokens: evenly between large and long ones,
    and few for entries that exist for small or short clips.
    """
    noun = "pictures" if len(clips.uid) and clips.is_image[0] else "videos"
    native = config.model_copy(update={"upscale": False})  # else all clips would fit the largest
    tables = [_build([entry], native, geometry) for entry in entries]
    fits = [assign.assign(clips, built, seed=0, epoch=0).bucket >= 0 for built in tables]
    left = np.zeros(len(clips.uid))  # total weight of the entries from this one down that a clip fits
    needed = []
    for i in reversed(_needed([built.entries[0] for built in tables], fits)):
        weight = float(tables[i].tokens().max()) ** 0.5
        left[fits[i]] += weight
        chance = max(round(float((weight / left[fits[i]]).mean()), 2), 0.01) if fits[i].any() else 1.0
        parts = [f"{fits[i].mean():.0%} of the {noun} fill it", entries[i].why]
        parts.append(f"keep_prob {chance:g} leaves some to smaller or shorter entries" if chance < 1 else "")
        needed.append(replace(entries[i], keep_prob=chance, why="; ".join(part for part in parts if part)))
    return needed[::-1]


def _needed(entries: list[Entry], fits: list[Mask]) -> list[int]:
    """Return the indices of the entries that suit enough clips better than all others, and of the last entry."""
    remaining = list(range(len(entries)))
    while len(remaining) > 1:
        best = {i: fits[i].copy() for i in remaining[:-1]}  # clips that no other entry shows as completely
        for i, j in itertools.permutations(remaining, 2):
            a, b = entries[i], entries[j]
            if i in best and b.pixels >= a.pixels and b.num_frames >= a.num_frames:
                best[i] &= ~fits[j]
        least = min(best, key=lambda i: best[i].mean())
        if best[least].mean() >= _LEAST_SHARE:
            break
        remaining.remove(least)
    return remaining


def _with_batch_sizes(
    entries: list[Suggestion], sample: Clips, clips: int, config: BucketsConfig, geometry: Geometry
) -> list[Suggestion]:
    """Return the entries with the largest batch sizes that fit the budget and that their fullest bucket can fill."""
    if not entries:
        return []
    built = _build(entries, config, geometry)
    bucket = assign.assign(sample, built, seed=0, epoch=0).bucket
    inside = np.bincount(bucket[bucket >= 0], minlength=len(built.buckets)) * clips / len(sample.uid)
    most = {}
    for index, entry in enumerate(built.entries):
        buckets = built.of_entry(index)
        fit = config.max_tokens // int(built.tokens()[buckets].max())
        most[entry.resolution, entry.num_frames] = min(fit, int(inside[buckets].max()), config.max_batch_size)
    return [replace(e, batch_size=max(most[e.resolution, e.num_frames], 1)) for e in entries]


def _build(entries: list[Suggestion], config: BucketsConfig, geometry: Geometry) -> table.BucketTable:
    return table.build([e.config() for e in entries], config, geometry)
