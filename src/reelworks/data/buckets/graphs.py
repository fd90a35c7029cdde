"""Graphs that compiled blocks need: one for each batch size, number of latent frames and number of tokens.

Text has one length in nearly all models, since captions are padded to it; the others are named by
`models.family.Network`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reelworks.core.shape import Geometry
from reelworks.data.buckets.table import Bucket, BucketTable

Key = tuple[int, ...]


def key(bucket: Bucket, clips: int, geometry: Geometry, *, by_shape: bool) -> Key:
    """Return what a graph of a micro-batch is compiled for: clips, latent frames and tokens, or the latent shape.

    `by_shape` says that blocks see heights and widths, and not tokens alone.
    """
    latent = geometry.latent(bucket.shape)
    return (clips, *latent) if by_shape else (clips, latent[0], bucket.tokens)


@dataclass(frozen=True)
class Graphs:
    """Graphs of a plan.

    Attributes:
        compiled: Keys of the graphs that fit the limit, those with the most tokens first.
        eager: Indices of the buckets whose micro-batches do not fit it, and run without compilation.
    """

    compiled: tuple[Key, ...]
    eager: tuple[int, ...]


def choose(table: BucketTable, full: Sequence[int], geometry: Geometry, most: int, *, by_shape: bool) -> Graphs:
    """Choose the graphs of at most `most` kinds of micro-batches, by the tokens that each of them trains.

    `full` is the number of micro-batches of each bucket that have all their clips; others are not compiled.
    """
    tokens: dict[Key, int] = {}
    keys = [key(bucket, bucket.batch_size, geometry, by_shape=by_shape) for bucket in table.buckets]
    for bucket, own, count in zip(table.buckets, keys, full, strict=True):
        if count:
            tokens[own] = tokens.get(own, 0) + count * bucket.batch_size * bucket.tokens
    compiled = sorted(tokens, key=lambda each: (-tokens[each], each))[:most]
    return Graphs(tuple(compiled), tuple(i for i, own in enumerate(keys) if full[i] and own not in compiled))
