"""Request the micro-batches that a rank reads of a plan, in the order of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from reelworks.core.arrays import I32
from reelworks.data.buckets.table import BucketTable
from reelworks.data.loader import decode_requests
from reelworks.data.loader.dataset import Dataset
from reelworks.data.loader.micro_batch import MicroBatchRequest
from reelworks.data.loader.position import DataPosition, next_epoch
from reelworks.data.media.decode import FrameReader
from reelworks.data.schedule import plan as planning
from reelworks.data.schedule.plan import EpochPlan, Samples


@dataclass(frozen=True)
class StepSource:
    """The micro-batches that one rank reads, in the order of the plan.

    Attributes:
        max_steps: Optimizer steps of the run after which it ends, or None.
        max_epochs: Epochs after which it ends, or None.
        skips: Whether a step, by its number from 1, is skipped without reading its clips.
        decoder: Decoder of videos in place of PyAV, or None.
        sequence_rank: Place of the process in its sequence group, which decides what it takes of a column whose bucket
            has several parts; None reads whole columns.
    """

    data: Dataset
    rank: int
    world: int
    max_steps: int | None = None
    max_epochs: int | None = None
    skips: Callable[[int], bool] = lambda step: False
    decoder: FrameReader | None = None
    sequence_rank: int | None = None

    def requests_from(self, position: DataPosition) -> Iterator[MicroBatchRequest]:
        """Yield the micro-batches from a position on, across epochs, to the end of training."""
        max_steps, max_epochs = self.max_steps, self.max_epochs
        while max_epochs is None or position.epoch < max_epochs:
            left = position.plan.num_steps - position.plan_step
            if max_steps is not None:
                left = min(left, max_steps - position.global_step)
            for ahead in range(left):
                if not self.skips(position.global_step + ahead + 1):
                    yield from self.requests_of_step(position.plan, position.epoch, position.plan_step + ahead)
            done = replace(position, global_step=position.global_step + left)
            last_epoch = max_epochs is not None and position.epoch + 1 >= max_epochs
            if last_epoch or (max_steps is not None and done.global_step >= max_steps):
                return
            position, _ = next_epoch(self.data, position.spec, done)

    def requests_of_step(self, plan: EpochPlan, epoch: int, plan_step: int) -> Iterator[MicroBatchRequest]:
        """Yield this rank's micro-batches of a step of the plan."""
        columns = list(planning.columns(plan.steps[plan_step], self.rank, self.world))
        clips = sum(count for _, count in batches_of_step(plan, plan_step))
        for index, (micro_batch, is_idle) in enumerate(columns):
            places = plan.places(micro_batch)
            of = self.data.table.buckets[int(plan.bucket[places.start])]
            part, parts = (0, 1) if self.sequence_rank is None else (self.sequence_rank // of.sequence_degree, of.parts)
            # Dealt out, since the clips of an incomplete column come first.
            where = slice(places.start + part, places.stop, parts)
            if where.start >= where.stop:
                where, is_idle = slice(places.start, places.start + 1), True
            clips_here = Samples(plan.uid[where], plan.copy[where], plan.ordinal[where], plan.bucket[where]).wide()
            repeat_index = plan.repeat_index[where].astype(np.int32)
            yield replace(
                self.build_request(clips_here, epoch=epoch, is_idle=is_idle, repeat_index=repeat_index),
                plan_step=plan_step,
                index=index * self.world + self.rank,
                ends_step=index == len(columns) - 1,
                clips_in_step=clips,
                part=part,
                parts=parts,
            )

    def paths(self, position: DataPosition, rank: int, sequence_rank: int | None) -> list[str]:
        """Return the files that a rank reads for the step at a position, with those of fillers."""
        other = replace(self, rank=rank, sequence_rank=sequence_rank)
        work = other.requests_of_step(position.plan, position.epoch, position.plan_step)
        return list(dict.fromkeys(str(request.path) for each in work for request in each.requests))

    def build_request(
        self,
        clips: Samples,
        *,
        epoch: int,
        is_idle: bool = False,
        repeat_index: I32 | None = None,
        augments: bool = True,
    ) -> MicroBatchRequest:
        """Return the request of one micro-batch, whose clips have one bucket, as if it were a step.

        Without `augments`, clips are neither flipped, rotated nor recoloured, have their first caption, and no part of
        them is given.
        """
        data, rows, bucket = self.data, np.searchsorted(self.data.rows.ordinal, clips.ordinal), int(clips.bucket[0])
        of = data.table.buckets[bucket]
        repeat_index = np.zeros(len(clips), dtype=np.int32) if repeat_index is None else repeat_index
        copies = planning.draw_copies(clips.copy, repeat_index)
        words = decode_requests.clip_hash(data, rows, copies, epoch=epoch)
        read = decode_requests.decode_requests(data, rows, words, bucket, augments=augments, decoder=self.decoder)
        return MicroBatchRequest(
            uids=clips.uid,
            copies=clips.copy,
            repeat_index=repeat_index,
            requests=tuple(read),
            captions=decode_requests.captions_of(data, rows, words, draws=augments),
            fps=tuple(decode_requests.shown_fps(data, r) for r in rows.tolist()),
            companions=decode_requests.companion_requests(data, rows, read),
            sounds=decode_requests.sound_requests(data, read),
            target_is_base=tuple(decode_requests.dataset_of_row(data, r).prior_prediction for r in rows.tolist()),
            masks=decode_requests.part_masks_of(data, words, bucket) if augments else (),
            crops=decode_requests.crop_boxes(data, rows, read),
            epoch=epoch,
            bucket=bucket,
            shape=of.shape,
            is_idle=is_idle,
            clips_in_step=len(clips),
            sequence_degree=of.sequence_degree,
        )


def batches_of_step(plan: EpochPlan, plan_step: int) -> list[tuple[int, int]]:
    """Return the bucket of each column of a plan's step, over all ranks, and the number of its clips that count."""
    buckets = plan.bucket[plan.offsets[plan.micro_batches(plan_step)]].tolist()
    return list(zip(buckets, plan.real_in(plan_step), strict=True))


def parts_of_step(plan: EpochPlan, plan_step: int, table: BucketTable) -> list[tuple[int, int]]:
    """Return what `batches_of_step` does, of the parts of each column that have a clip."""
    return [
        (bucket, -(-(clips - part) // parts))
        for bucket, clips in batches_of_step(plan, plan_step)
        for parts in (table.buckets[bucket].parts,)
        for part in range(min(parts, clips))
    ]
