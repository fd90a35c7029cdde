"""Read the micro-batches of the plan, with a loader that resumes exactly."""

from __future__ import annotations

import base64
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reelworks.core.errors import UserError
from reelworks.data import decode_requests, resume, segment_record
from reelworks.data.dataset import Dataset
from reelworks.data.micro_batch import MicroBatch, MicroBatchRequest, one_step
from reelworks.data.position import DataPosition, next_epoch
from reelworks.data.prefetch import read_ahead
from reelworks.media.config import PREFETCH_BYTES
from reelworks.media.decode_pool import DecodePool
from reelworks.run.folder import RunFolder
from reelworks.schedule import plan as planning
from reelworks.schedule.cursor import Aliases, Cursor, Excluded
from reelworks.schedule.plan import EpochPlan, PlanSpec, Samples


@dataclass(frozen=True)
class StepSource:
    """The micro-batches that one rank reads, in the order of the plan.

    Attributes:
        max_steps: Optimizer steps of the run after which it ends, or None.
        max_epochs: Epochs after which it ends, or None.
        skips: Whether a step, by its number from 1, is skipped without reading its clips.
    """

    data: Dataset
    rank: int
    world: int
    max_steps: int | None = None
    max_epochs: int | None = None
    skips: Callable[[int], bool] = lambda step: False

    def rows(self, position: DataPosition) -> Iterator[MicroBatchRequest]:
        """Yield the micro-batches from a position on, across epochs, to the end of training."""
        max_steps, max_epochs = self.max_steps, self.max_epochs
        while max_epochs is None or position.epoch < max_epochs:
            left = position.plan.steps - position.row
            if max_steps is not None:
                left = min(left, max_steps - position.global_step)
            for ahead in range(left):
                if not self.skips(position.global_step + ahead + 1):
                    yield from self.row(position.plan, position.epoch, position.row + ahead)
            done = replace(position, global_step=position.global_step + left)
            last_epoch = max_epochs is not None and position.epoch + 1 >= max_epochs
            if last_epoch or (max_steps is not None and done.global_step >= max_steps):
                return
            position, _ = next_epoch(self.data, position.spec, done)

    def row(self, plan: EpochPlan, epoch: int, row: int) -> Iterator[MicroBatchRequest]:
        """Yield this rank's micro-batches of one step."""
        columns = list(planning.columns(plan.rows[row], self.rank, self.world))
        clips = _clips_of_row(plan, row)
        for index, (micro_batch, is_idle) in enumerate(columns):
            where = plan.places(micro_batch)
            yield self.work(
                Samples(plan.uid[where], plan.copy[where], plan.ordinal[where], plan.bucket[where]),
                epoch=epoch,
                row=row,
                index=index * self.world + self.rank,
                ends_step=index == len(columns) - 1,
                is_idle=is_idle,
                repeat_index=plan.repeat_index[where],
                clips_in_step=clips,
            )

    def paths(self, position: DataPosition, rank: int) -> list[str]:
        """Return the files that a rank reads for the step at a position, with those of fillers."""
        other = replace(self, rank=rank)
        work = other.row(position.plan, position.epoch, position.row)
        return list(dict.fromkeys(str(request.path) for each in work for request in each.requests))

    def work(
        self,
        clips: Samples,
        *,
        epoch: int,
        row: int = 0,
        index: int = 0,
        ends_step: bool = True,
        is_idle: bool = False,
        repeat_index: NDArray[np.int32] | None = None,
        clips_in_step: int | None = None,
        augments: bool = True,
    ) -> MicroBatchRequest:
        """Return the complete request of one micro-batch, whose clips have one bucket.

        Without `augments`, clips are neither flipped, rotated nor recoloured, have their first caption, and no part of
        them is given.
        """
        rows, bucket = np.searchsorted(self.data.rows.ordinal, clips.ordinal), int(clips.bucket[0])
        repeat_index = np.zeros(len(clips), dtype=np.int32) if repeat_index is None else repeat_index
        copies = planning.draw_copies(clips.copy, repeat_index)
        words = decode_requests.draw_words(self.data, rows, copies, epoch=epoch)
        read = decode_requests.decode_requests(self.data, rows, words, bucket, augments=augments)
        return MicroBatchRequest(
            epoch=epoch,
            row=row,
            index=index,
            ends_step=ends_step,
            is_idle=is_idle,
            bucket=bucket,
            shape=self.data.table.buckets[bucket].shape,
            uids=clips.uid,
            copies=clips.copy,
            repeat_index=repeat_index,
            requests=tuple(read),
            captions=decode_requests.captions_of(self.data, rows, words, draws=augments),
            fps=tuple(decode_requests.shown_fps(self.data, r) for r in rows.tolist()),
            companions=decode_requests.companion_requests(self.data, rows, read),
            sounds=decode_requests.sound_requests(self.data, read),
            target_is_base=tuple(decode_requests.dataset_of_row(self.data, r).prior_prediction for r in rows.tolist()),
            masks=decode_requests.part_masks_of(self.data, words, bucket) if augments else (),
            crops=decode_requests.crop_boxes(self.data, rows, read),
            clips_in_step=len(clips) if clips_in_step is None else clips_in_step,
        )


class Step:
    """An optimizer step: an iterable of this rank's micro-batches, to be iterated once, before the next step.

    Attributes:
        number: Number of the step in the run, from 1.
        clips: Clips that count in the step's loss, over all ranks.
    """

    def __init__(self, number: int, epoch: int, clips: int, micro_batches: Iterator[MicroBatch]) -> None:
        self.number, self.epoch, self.clips = number, epoch, clips
        self._micro_batches = micro_batches
        self._passed = False

    def __iter__(self) -> Iterator[MicroBatch]:
        if self._passed:
            raise RuntimeError(
                f"the micro-batches of step {self.number} were dropped when the next step was requested; "
                "iterate each step before requesting the next"
            )
        return self._micro_batches

    def drop_rest(self) -> None:
        """Drop the micro-batches that were not iterated."""
        self._passed = True
        deque(self._micro_batches, maxlen=0)


class Loader:
    """Steps of decoded micro-batches for one rank, with an exact resume.

    Iterating yields the remaining steps of the epoch; iterating again yields the next epoch. All ranks get the same
    number of steps, and of micro-batches in each. `state_dict` may be taken between any two steps, is the same on
    every rank, and loads with another number of ranks: each clip of the epoch is still trained exactly once.

    Args:
        dataset: The dataset to read.
        micro_batches_per_step: Micro-batches of an optimizer step, over all ranks; None for one on each rank.
        rank: This rank; None takes it from torch.distributed or the environment (RANK), else 0.
        world_size: Number of ranks; None takes it from torch.distributed or the environment (WORLD_SIZE), else 1.
        num_workers: Spawned processes that decode, with two threads each; 0 decodes in threads of this process.
        prefetch_bytes: Frames that are decoded ahead, in bytes; at least one micro-batch is.
        decode_timeout: Seconds after which a process that still decodes the same clip is ended; the clip has failed.
        device: Device where plain videos are resized and converted to RGB, and where all frames then lie; None leaves
            both to the decoders.
        record_to: Folder of records of the trained clips, the same on all ranks. With it a resume is exact even if
            the data or the buckets changed in between.

    Raises:
        UserError: The rank is not below the number of ranks, or no clip fits a bucket.

    Examples:
        >>> import reelworks as rw
        >>> from reelworks.testing import sample_dataset
        >>> loader = rw.Loader(sample_dataset(), micro_batches_per_step=2)
        >>> clips = sum(int(m.is_valid.sum()) for step in loader for m in step)
        >>> clips, loader.epoch, loader.state_dict()["cursor"]["row"] == len(loader)
        (12, 0, True)
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        micro_batches_per_step: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int = 0,
        prefetch_bytes: int = PREFETCH_BYTES,
        decode_timeout: float = 120.0,
        device: torch.device | str | None = None,
        record_to: str | Path | None = None,
    ) -> None:
        self.dataset = dataset
        self.rank, self.world_size = place_of(rank, world_size)
        self.micro_batches_per_step = micro_batches_per_step or self.world_size
        self._workers, self._timeout, self._prefetch = num_workers, decode_timeout, prefetch_bytes
        self._device = None if device is None else torch.device(device)
        self._run = None if record_to is None else RunFolder(Path(record_to))
        self._recorded: tuple[int, int, int] | None = None
        self._pool: DecodePool | None = None
        self.changes: list[str] = []
        self._spec = self._spec_of(self.world_size)
        self._position, _ = next_epoch(dataset, self._spec, None)

    @property
    def epoch(self) -> int:
        """Number of the current epoch, or of the last one done; from 0."""
        return self._position.epoch

    @property
    def step(self) -> int:
        """Optimizer steps yielded so far."""
        return self._position.global_step

    def __len__(self) -> int:
        """Return the optimizer steps of the epoch, or of its rest if the data changed in the middle of it."""
        return self._position.plan.steps

    def __iter__(self) -> Iterator[Step]:
        if self._position.at_end:
            self._position, _ = next_epoch(self.dataset, self._spec, self._position)
        begun = self._position
        self._record(begun)
        if self._pool is None:
            self._pool = DecodePool(self._workers, self._timeout)
            weakref.finalize(self, self._pool.close)
        feed = StepSource(self.dataset, self.rank, self.world_size, max_epochs=begun.epoch + 1)
        stream = read_ahead(feed.rows(begun), self._pool, self._prefetch, self._device)
        for row in range(begun.row, begun.plan.steps):
            now = self._position
            clips, first = _clips_of_row(begun.plan, row), begun.plan.planned_in(row)
            counts = now.counts.add(first, 0, 0, clips - first)
            self._position = replace(now, row=row + 1, global_step=now.global_step + 1, counts=counts)
            step = Step(self._position.global_step, now.epoch, clips, one_step(stream))
            yield step
            step.drop_rest()
            if self._position.row != row + 1 or self._position.plan is not begun.plan:
                return  # the caller loaded a state in the meantime

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data as plain, serializable values, the same on every rank."""
        position = self._position
        return {
            "cursor": position.to_cursor(self.dataset).to_json(),
            "same_bucket_run": self._spec.same_bucket_run,
            "excluded": base64.b64encode(position.excluded.to_bytes()).decode(),
            "aliases": base64.b64encode(position.aliases.to_bytes()).decode(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; `changes` then lists the differences from the data of that state.

        Raises:
            UserError: The data or the settings changed, and there is no record of the trained clips.
        """
        cursor = Cursor(**state["cursor"])
        spec = self._spec_of(state["same_bucket_run"])
        if self._run is None and (cursor.catalog, cursor.spec) != (self.dataset.digest, spec.digest()):
            raise UserError(
                "the data, the buckets or micro_batches_per_step changed since the state was taken, and there is no "
                "record of the clips that were trained",
                code="data-changed",
                field="record_to",
                remedy="undo the change, or write records from the first step on: Loader(..., record_to=FOLDER)",
            )
        excluded = Excluded.from_bytes(base64.b64decode(state["excluded"]))
        aliases = Aliases.from_bytes(base64.b64decode(state["aliases"]))
        run = self._run or RunFolder(Path())
        self._position, self.changes = resume.resume(self.dataset, spec, run, cursor, excluded, aliases)
        self._spec = spec

    def close(self) -> None:
        """End the decoding processes; the loader can still be used afterwards and starts them again."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _spec_of(self, same_bucket_run: int) -> PlanSpec:
        per_step = self.micro_batches_per_step
        return self.dataset.plan_spec(per_step, same_bucket_run if per_step % same_bucket_run == 0 else 1)

    def _record(self, position: DataPosition) -> None:
        if self._run is not None and self.rank == 0 and self._recorded != position.key:
            segment_record.begin(self._run, self.dataset, position, "")
        self._recorded = position.key


def batches_of_row(plan: EpochPlan, row: int) -> list[tuple[int, int]]:
    """Return the bucket of each micro-batch of a row, over all ranks, and the number of its clips that count."""
    columns = plan.micro_batches(row)
    buckets = plan.bucket[plan.offsets[columns]]
    return list(zip(buckets.tolist(), plan.real_clips[columns].tolist(), strict=True))


def _clips_of_row(plan: EpochPlan, row: int) -> int:
    return sum(clips for _, clips in batches_of_row(plan, row))


def place_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and number of ranks: the arguments, else from torch.distributed, the environment, or 0 and 1."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        known = torch.distributed.get_rank(), torch.distributed.get_world_size()
    else:
        known = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    rank, world_size = (
        default if value is None else value for value, default in zip((rank, world_size), known, strict=True)
    )
    if not 0 <= rank < world_size:
        raise UserError(
            f"the rank is not below the number of ranks, {world_size}",
            code="rank-outside-world",
            field="rank",
            value=rank,
            remedy=f"set a rank from 0 to {world_size - 1}, or omit rank and world_size",
        )
    return rank, world_size
