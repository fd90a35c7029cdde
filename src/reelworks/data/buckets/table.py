"""The bucket table: entries in the order in which clips try them, and their sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from reelworks.core import arguments, units
from reelworks.core.arguments import checked
from reelworks.core.arrays import I64
from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry, Shape
from reelworks.data.buckets import families, sizes
from reelworks.data.buckets.config import OF_RECIPES, BucketEntryConfig, BucketsConfig, parse_ratio
from reelworks.data.buckets.entry import Draws, Entry, Recomputation, recomputed_share
from reelworks.data.buckets.opensora.ratios import COMPUTED_MULTIPLE, Resolution


@dataclass(frozen=True)
class BucketEntry:
    """A resolution crossed with frame counts: one `[[bucket]]` of a recipe.

    Attributes:
        resolution: "480p" (480 lines at 16:9), "512px" (512 × 512 pixels in total), or one size as "480x854".
        num_frames: Frame counts; 1 takes pictures, all others take videos.
        batch_size: Clips per micro-batch: one number, or one for each frame count.
        keep_prob: Probability that a clip which fits is assigned here: one number, or one for each frame count.

    Examples:
        >>> import reelworks as rw
        >>> rw.BucketEntry("480p", num_frames=[1, 17], batch_size=[8, 4]).keep_prob
        1.0
    """

    resolution: Annotated[str, arguments.any_of(arguments.TEXT, arguments.whole(1))]
    num_frames: Annotated[int | list[int], arguments.one_or_each(arguments.whole(1))]
    batch_size: Annotated[int | list[int] | None, arguments.optional(arguments.one_or_each(arguments.whole(1)))] = None
    keep_prob: Annotated[float | list[float], arguments.one_or_each(arguments.number(0, 1))] = 1.0

    def __post_init__(self) -> None:
        arguments.check(self)


@dataclass(frozen=True)
class Bucket:
    """An entry at one aspect ratio, with its exact shape.

    Attributes:
        batch_size: Clips of a micro-batch.
        sequence_degree: Ranks that share its clips.
        parts: Micro-batches that the ranks of a sequence group train side by side.
        recomputation: What its backward passes compute again; None for what the model's key says.
    """

    entry: int
    ratio: str
    shape: Shape
    name: str
    batch_size: int
    tokens: int
    sequence_degree: int = 1
    parts: int = 1
    recomputation: Recomputation | None = None

    @property
    def column_size(self) -> int:
        """Clips of a column of a plan, which a sequence group trains at once."""
        return self.batch_size * self.parts


@dataclass(frozen=True)
class BucketTable:
    """The entries of a recipe and their buckets.

    Attributes:
        entries: Entries by pixels and then by frames, descending.
        buckets: Buckets of all entries, in the order of the entries.
        upscale: Whether clips smaller than a bucket are enlarged.
        max_crop: Largest share of a frame that may be cropped away.
        extends_short: Whether a video shorter than every entry whose size it fills goes to the shortest of these; a `Dataset`
            sets it by its `short_clips`.
        draws: How entries draw clips, which in a table of Open-Sora they do otherwise.
        config: The recipe's `[buckets]`.
        given: The recipe's `[[bucket]]` entries.

    Examples:
        >>> import reelworks as rw
        >>> entry = rw.BucketEntry("64px", num_frames=[1, 5], batch_size=[4, 2])
        >>> geometry = rw.Geometry(stride=(4, 8, 8), patch=(1, 2, 2))
        >>> table = rw.BucketTable.from_entries([entry], geometry=geometry, aspect_ratios=["1:1"])
        >>> [bucket.name for bucket in table.buckets]
        ['64px 1:1 ×5', '64px 1:1 ×1']
    """

    entries: tuple[Entry, ...]
    buckets: tuple[Bucket, ...]
    upscale: bool
    max_crop: float
    extends_short: bool = False
    draws: Draws = Draws.ONE
    config: BucketsConfig = field(default_factory=BucketsConfig)
    given: tuple[BucketEntryConfig, ...] = ()

    @classmethod
    @checked(entries=arguments.each(arguments.a(BucketEntry)), geometry=arguments.a(Geometry))
    def from_entries(cls, entries: Iterable[BucketEntry], *, geometry: Geometry, **settings: Any) -> BucketTable:
        """Compute the bucket table of entries.

        Args:
            entries: Resolutions with their frame counts.
            geometry: Multiples and frame rule of the model and its autoencoder.
            **settings: Keys of a recipe's `[buckets]`, such as `aspect_ratios` or `incomplete_batch`.

        Raises:
            UserError: A value is invalid; the error names it and what is allowed.
        """
        given = [BucketEntryConfig(**asdict(entry)) for entry in entries]
        arguments.refuse_of_recipes(settings, OF_RECIPES)
        config = BucketsConfig(**settings)
        if config.batch_size == "auto":
            raise UserError(
                "it is measured for a recipe, by `reelworks tune`",
                code="batch-size-not-measured",
                field="batch_size",
                value="auto",
                remedy="give a number, or one to each entry",
            )
        return build(given, config, geometry)

    def __repr__(self) -> str:
        return f"BucketTable({', '.join(map(str, self.entries))}: {len(self.buckets)} buckets)"

    def with_short_clips(self, short_clips: str) -> BucketTable:
        """Return the table for what `data.short_clips` says, which decides whether videos may be shorter than their bucket."""
        # If clips of exactly an entry's length are refused, as some tables of Open-Sora do, shorter ones must be too.
        extends = short_clips != "reject" and not any(entry.spare_frames for entry in self.entries)
        return self if extends == self.extends_short else replace(self, extends_short=extends)

    def of_entry(self, entry: int) -> list[int]:
        """Return the indices of an entry's buckets."""
        return [i for i, bucket in enumerate(self.buckets) if bucket.entry == entry]

    def batch_sizes(self) -> I64:
        """Return the batch size of every bucket."""
        return np.array([b.batch_size for b in self.buckets], dtype=np.int64)

    def column_sizes(self) -> I64:
        """Return the clips of a column of a plan of every bucket, which a sequence group trains at once."""
        return np.array([b.column_size for b in self.buckets], dtype=np.int64)

    def parts(self) -> I64:
        """Return how many micro-batches of every bucket a sequence group trains at once."""
        return np.array([b.parts for b in self.buckets], dtype=np.int64)

    def shared_by(self, ranks: int) -> BucketTable:
        """Return the table for sequence groups of so many ranks, which share all clips of buckets without a degree."""
        degrees = [entry.sequence_degree or ranks for entry in self.entries]
        buckets = [replace(b, sequence_degree=degrees[b.entry], parts=ranks // degrees[b.entry]) for b in self.buckets]
        return replace(self, buckets=tuple(buckets))

    def recomputed_shares(self) -> list[float]:
        """Return the share of a forward pass that is computed again, for every bucket; 0 where the model's key says it."""
        return [recomputed_share(bucket.recomputation) for bucket in self.buckets]

    def with_one_entry(self, index: int) -> BucketTable:
        """Return the table as chance may make it for a clip: one entry takes all that fit it, and the others take none."""
        # In a table of Open-Sora a clip that leaves a length tries the next one, but none if it leaves the resolution.
        left = 0.0 if self.draws is Draws.ONE else 1.0
        entries = [replace(entry, keep_prob=left, keep_length=1.0 - left) for entry in self.entries]
        entries[index] = replace(self.entries[index], keep_prob=1.0, keep_length=1.0)
        return replace(self, entries=tuple(entries))

    def tokens(self) -> I64:
        """Return the number of latent tokens of one clip of every bucket."""
        return np.array([b.tokens for b in self.buckets], dtype=np.int64)


EMPTY = BucketTable((), (), upscale=False, max_crop=1.0)


def joined(tables: Sequence[BucketTable]) -> BucketTable:
    """Return a table with the entries and buckets of several, each name once."""
    entries = {str(entry): entry for table in tables for entry in table.entries}
    number = {name: i for i, name in enumerate(entries)}
    buckets = {b.name: replace(b, entry=number[str(own.entries[b.entry])]) for own in tables for b in own.buckets}
    return replace(tables[0], entries=tuple(entries.values()), buckets=tuple(buckets.values()))


def build(entries: Sequence[BucketEntryConfig], config: BucketsConfig, geometry: Geometry) -> BucketTable:
    """Compute the bucket table of a recipe's `[[bucket]]` entries, or of the table of Open-Sora in `[buckets]`."""
    if config.opensora is not None:
        if entries:
            raise UserError(
                "the recipe has both [[bucket]] entries and a bucket table of Open-Sora",
                code="two-bucket-tables",
                field="bucket",
                value=[entry.resolution for entry in entries],
                remedy="keep the [[bucket]] entries or [buckets.opensora], and remove the other",
            )
        return _of_opensora(config, geometry)
    if not entries:
        raise UserError(
            "the recipe has no bucket",
            code="no-bucket",
            field="bucket",
            remedy='add e.g. [[bucket]] resolution = "256px", num_frames = [1, 17], or a table of Open-Sora as '
            '[buckets.opensora], or write buckets = "auto" to have entries proposed',
        )
    expanded = sorted(
        (entry for config_entry in entries for entry in _expand(config_entry, config, geometry)),
        key=lambda e: (-e.pixels, -e.num_frames, e.size or ()),
    )
    for first, second in itertools.pairwise(expanded):
        # Different sizes may have equal pixels; between equal entries a clip could not choose.
        alike = first.size is None or second.size is None or first.size == second.size
        if alike and (first.pixels, first.num_frames) == (second.pixels, second.num_frames):
            raise UserError(
                "two entries have the same resolution and number of frames",
                code="duplicate-bucket",
                field="bucket",
                value=f"{first} and {second}",
                remedy="remove one of them",
            )
    named = _with_recomputation(expanded, config)
    buckets = tuple(b for i, e in enumerate(named) for b in _sizes_of(i, e, config, geometry))
    return BucketTable(named, buckets, config.upscale, config.max_crop, config=config, given=tuple(entries))


def _with_recomputation(entries: Sequence[Entry], config: BucketsConfig) -> tuple[Entry, ...]:
    told = config.gradient_checkpointing
    return tuple(replace(entry, recomputation=told.get(str(entry))) for entry in entries)


def _of_opensora(config: BucketsConfig, geometry: Geometry) -> BucketTable:
    """Build the table of Open-Sora; entries without a batch size have no bucket, since no clip stays there."""
    plain, draws = config.opensora_entries(_computed_multiple(geometry))
    entries = _with_recomputation(plain, config)
    buckets: list[Bucket] = []
    for index, entry in enumerate(entries):
        _check_frames(entry.num_frames, geometry, f'buckets.opensora."{entry.resolution}"')
        if entry.batch_size and (named := entry.named):
            _check_strides(named, geometry)
            buckets += [_bucket(index, entry, *of, geometry) for of in zip(named.keys, named.sizes, strict=True)]
    # Open-Sora has its own minimum clip size, and crops as much as its sizes need.
    return BucketTable(entries, tuple(buckets), True, 1.0, draws=draws, config=config)


def _bucket(index: int, entry: Entry, ratio: str, size: tuple[int, int], geometry: Geometry) -> Bucket:
    shape = Shape(entry.num_frames, *size)
    name = f"{entry.resolution} {ratio} ×{entry.num_frames}"
    tokens = geometry.tokens(shape)
    return Bucket(index, ratio, shape, name, entry.batch_size, tokens, recomputation=entry.recomputation)


def _computed_multiple(geometry: Geometry) -> int:
    """Return the divisor of computed sizes: the autoencoder's stride where it is a multiple of the usual one."""
    stride = max(geometry.stride[1:])
    return COMPUTED_MULTIPLE if stride % COMPUTED_MULTIPLE else stride


def _check_strides(resolution: Resolution, geometry: Geometry) -> None:
    """Refuse sizes that are not multiples of the autoencoder's stride; the denoiser pads incomplete patches."""
    if geometry.drops_rest:
        return
    _, down, across = geometry.stride
    wrong = [size for size in resolution.sizes if size[0] % down or size[1] % across]
    if wrong:
        side = round(resolution.pixels**0.5)
        raise UserError(
            f"this autoencoder takes multiples of {down} × {across} pixels, which {len(wrong)} of the "
            f"{len(resolution.sizes)} sizes {units.verb(len(wrong), 'are')} not, for example {wrong[0][0]} × {wrong[0][1]}",
            code="size-not-a-multiple",
            field="buckets.opensora",
            value=resolution.name,
            remedy=f'write "{side}px" instead, which has about as many pixels at multiples of '
            f"{_computed_multiple(geometry)}, or choose an autoencoder whose stride (autoencoder.stride) divides all sizes",
        )


def _expand(entry: BucketEntryConfig, config: BucketsConfig, geometry: Geometry) -> list[Entry]:
    pixels, size = sizes.pixel_budget(entry.resolution)
    result = []
    values = entry.batch_sizes(), entry.keep_probs(), entry.sequence_degrees()
    for frames, batch, keep, degree in zip(entry.frames(), *values, strict=True):
        _check_frames(frames, geometry, "bucket.num_frames")
        size_of_batch = batch or config.batch_size
        assert size_of_batch != "auto", "tuned.measured or tuned.unmeasured was called"
        result.append(Entry(entry.resolution, pixels, frames, size_of_batch, keep, size, sequence_degree=degree))
    return result


def _check_frames(frames: int, geometry: Geometry, field: str) -> None:
    if not geometry.accepts_frames(frames):
        a, b = geometry.frame_rule
        below = (frames - b) // max(a, 1) * a + b
        raise UserError(
            geometry.frame_words,
            code="frame-count-not-taken",
            field=field,
            value=frames,
            remedy=f"use {max(below, 1)} or {below + a}" if a else "use 1",
        )


def _sizes_of(index: int, entry: Entry, config: BucketsConfig, geometry: Geometry) -> list[Bucket]:
    if entry.size is not None:
        _check_multiple(entry, entry.size, geometry)
        return [_bucket(index, entry, f"{entry.size[1]}:{entry.size[0]}", entry.size, geometry)]
    ratios = tuple(parse_ratio(text) for text in config.aspect_ratios)
    of_ratios: Sequence[tuple[int, int]] = (
        families.sizes_of(entry.resolution, ratios, geometry.multiple, config.token_family_crop)
        if config.token_families
        else [sizes.size_at(entry.resolution, ratio, geometry.multiple) for ratio in ratios]
    )
    chosen: dict[tuple[int, int], str] = {}  # of ratios that have the same size, the first
    for text, size in zip(config.aspect_ratios, of_ratios, strict=True):
        chosen.setdefault(size, text)
    return [_bucket(index, entry, ratio, size, geometry) for size, ratio in chosen.items()]


def _check_multiple(entry: Entry, size: tuple[int, int], geometry: Geometry) -> None:
    if size[0] % geometry.multiple[0] or size[1] % geometry.multiple[1]:
        height, width = sizes.nearest_size(size[0] * size[1], size[1] / size[0], geometry.multiple)
        raise UserError(
            f"this model takes multiples of {geometry.multiple[0]} × {geometry.multiple[1]} pixels",
            code="size-not-a-multiple",
            field="bucket.resolution",
            value=entry.resolution,
            remedy=f'use "{height}x{width}"',
        )
