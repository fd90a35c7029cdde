"""List what a training needs encoded: every clip in every bucket and variant that its epochs reach, or that any epoch may."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reelworks.core import digests
from reelworks.data.buckets import assign
from reelworks.data.buckets.entry import Draws
from reelworks.data.loader.dataset import Dataset
from reelworks.data.loader.micro_batch import MicroBatchRequest
from reelworks.data.loader.step_source import StepSource
from reelworks.data.schedule.plan import PlanSpec, Samples

_CHUNK_CLIPS = 1024
_CHUNKS = 16  # at least, so that processes can share a small job


@dataclass(frozen=True)
class Chunk:
    """Clips of one bucket, variant and layout of sources, which one process encodes.

    Attributes:
        epoch: An epoch that shows this variant of the clips.
        held_out: Whether they are those of validation, which nothing is drawn for.
    """

    clips: Samples
    epoch: int
    held_out: bool = False

    @property
    def name(self) -> str:
        """Name by which processes claim the chunk, equal in all of them."""
        c = self.clips
        return digests.digest_arrays(uid=c.uid, bucket=c.bucket, epoch=np.array([self.epoch]))

    def build_request(self, data: Dataset, where: list[int] | None = None) -> MicroBatchRequest:
        """Return the request of the clips of the chunk, or of some of them."""
        clips = self.clips if where is None else self.clips.take(np.array(where))
        return request(data, clips, self.epoch, augments=not self.held_out)


def request(data: Dataset, clips: Samples, epoch: int, *, augments: bool = True) -> MicroBatchRequest:
    """Return what training reads of some clips of one bucket, or without `augments` what validation does."""
    return StepSource(data, rank=0, world=1).build_request(clips, epoch=epoch, augments=augments)


def chunks(data: Dataset, trained: Samples, limit: int | None = None) -> list[Chunk]:
    """Return clips of training and those held out in chunks, each clip, bucket and variant once; held-out clips come last."""
    held_out = data.held_out()
    if limit is not None:
        trained, held_out = trained.take(np.arange(min(limit, len(trained)))), held_out.take(np.arange(0))
    variants = data.spec.variants or 1
    size = max(min(_CHUNK_CLIPS, -(-len(trained) * variants // _CHUNKS)), 1)
    return [
        *(chunk for epoch in range(variants) for chunk in _cut(data, trained, epoch, size)),
        *(replace(chunk, held_out=True) for chunk in _cut(data, held_out, 0, size)),
    ]


def _cut(data: Dataset, clips: Samples, epoch: int, size: int) -> Iterator[Chunk]:
    sizes = data.table.batch_sizes()
    layouts = data.source_layouts
    layout = 0 * clips.bucket if layouts is None else layouts[data.rows_at(clips.ordinal)]
    for bucket, of_layout in np.unique(np.stack([clips.bucket, layout], axis=1), axis=0).tolist():
        where = np.flatnonzero((clips.bucket == bucket) & (layout == of_layout))
        batch = max(int(sizes[bucket]), 1)
        whole = max(size // batch, 1) * batch  # whole micro-batches
        for first in range(0, len(where), whole):
            yield Chunk(clips.take(where[first : first + whole]), epoch)


def in_epochs(data: Dataset, spec: PlanSpec, epochs: range) -> Samples:
    """Return clips once for each bucket that they have in an epoch, in the order of the catalog."""
    epochs = epochs if varies(data) else epochs[:1]
    if data.table.config.incomplete_batch != "merge":
        return _once(data, [data.entries(epoch) for epoch in epochs])
    plans = (data.plan(spec, epoch) for epoch in epochs)  # which move clips to other buckets
    return _once(data, [Samples(plan.uid, plan.copy, plan.ordinal, plan.bucket).wide() for plan in plans])


def in_any_epoch(data: Dataset) -> Samples:
    """Return clips once for each bucket that chance may give them, whatever epochs a run comes to, and with any shape of steps."""
    clips, row = data.clips()
    moved_to = assign.targets(data.table) if data.table.config.incomplete_batch == "merge" else None
    seen = []
    for index in [i for i, entry in enumerate(data.table.entries) if entry.is_used]:
        bucket = assign.assign(clips, data.table.with_one_entry(index), seed=0, epoch=0).bucket.astype(np.int64)
        bucket[clips.held_out] = -1
        while (bucket >= 0).any():
            at = np.flatnonzero(bucket >= 0)
            ordinal = data.rows.ordinal[row[at]].astype(np.int64)
            seen.append(Samples(clips.uid[at], 0 * ordinal, ordinal, bucket[at]))
            bucket = np.full_like(bucket, -1) if moved_to is None else np.where(bucket >= 0, moved_to[bucket], -1)
    return _once(data, seen or [data.entries(0)])


def _once(data: Dataset, seen: Sequence[Samples]) -> Samples:
    names = ("uid", "ordinal", "bucket")
    uid, ordinal, bucket = (np.concatenate([getattr(clips, name) for clips in seen]) for name in names)
    _, first = np.unique(ordinal * len(data.table.buckets) + bucket, return_index=True)
    return Samples(uid[first], np.zeros(len(first), dtype=np.int64), ordinal[first], bucket[first])


def varies(data: Dataset) -> bool:
    """Whether clips or their buckets differ between epochs."""
    chance = any(entry.keep_prob < 1 for entry in data.table.entries) or data.table.draws is not Draws.ONE
    of_datasets = any(d.repeats != int(d.repeats) or d.duplicates == "weight" for d in data.spec.datasets)
    return chance or of_datasets or data.table.config.incomplete_batch == "merge"
