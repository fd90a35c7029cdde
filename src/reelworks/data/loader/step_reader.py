"""Read whole steps, so that the weights of each sum to 1 over the clips that were decoded on all ranks.

A rank knows how many clips of a step failed only when it has decoded all of its own, so that a step is given out when it
lies in memory. Frames that are read ahead, up to a number of bytes, come on top of it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.loader import failures
from reelworks.data.loader.dataset import Dataset
from reelworks.data.loader.failures import FailedClip, FailureWarnings, failed_clips
from reelworks.data.loader.micro_batch import MicroBatch, one_step
from reelworks.data.loader.position import DataPosition, next_epoch
from reelworks.data.loader.ranks import AllReduce
from reelworks.data.loader.step import Step, StepClips
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.media.patience import StorageAway
from reelworks.data.run.folder import RunFolder

# As many consecutive steps without a clip end a training run, by the default of `train.max_non_finite`.
_MOST_WITHOUT_CLIP = 10


class StepReader:
    """Give out one step after the other, and keep the position behind those that are done.

    Attributes:
        position: Position of the next step. Whoever sets it ends the iteration that is under way.
    """

    def __init__(
        self, dataset: Dataset, position: DataPosition, world_size: int, max_failures: float, run: RunFolder | None
    ) -> None:
        self.position = position
        self._dataset, self._world_size, self._max_failures, self._run = dataset, world_size, max_failures, run
        self._warnings = FailureWarnings()
        self._iteration: object = None
        self._given: weakref.ref[Step] | None = None
        self._own_failures: list[FailedClip] = []  # of this rank in this iteration

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the iteration."""
        return vars(self) | {"_iteration": None, "_given": None}

    def begin(self) -> tuple[DataPosition, object]:
        """End the iteration before; return the first step of another one, perhaps of the next epoch, and what it is known by."""
        self._iteration, self._own_failures = object(), []
        if self.position.at_end:
            self.position, _ = next_epoch(self._dataset, self.position.spec, self.position)
        if self._given is not None and (left := self._given()) is not None:
            left.drop_rest()  # of an earlier iteration; the step is read again
        return self.position, self._iteration

    def steps(
        self, mine: object, stream: Iterator[MicroBatch], pool: DecodePool, all_reduce: AllReduce | None
    ) -> Iterator[Step]:
        """Yield the steps of an iteration from the position on, whose micro-batches are the next ones of a stream. Collective.

        Without `all_reduce`, failed clips of this rank alone are known. Then weights remain shares of the planned clips, so
        that they agree on all ranks.
        """
        begun, without_clip = self.position, 0
        knows_all = self._world_size == 1 or all_reduce is not None
        for plan_step in range(begun.plan_step, begun.plan.num_steps):
            before = self.position
            step, clips = self._read(stream, all_reduce, knows_all=knows_all)
            self._require_few_failures(clips, step.failures, knows_all=knows_all)
            if knows_all and not clips.valid:
                self._advance(before, clips, step.failures, trained=False)
                without_clip += 1
                is_empty = self.position.at_end and not (before.counts.trained or before.counts.skipped)
                if is_empty or without_clip == _MOST_WITHOUT_CLIP:
                    raise self._no_clip(without_clip)
                continue
            without_clip = 0
            self._given = weakref.ref(step)
            yield step
            pool.require_open()
            if self._iteration is not mine:
                raise RuntimeError(
                    "another iteration of this loader began, which took over its position; iterate one at a time, or "
                    "make a loader for each: copy.deepcopy(loader)"
                )
            if self.position is before:
                if step.has_begun:
                    logger.warning("step %d was left before its end; its clips count as skipped", step.number)
                self._advance(before, clips, step.failures, trained=False)
            step.drop_rest()
            if self.position.plan_step != plan_step + 1 or self.position.plan is not begun.plan:
                return  # the caller loaded a state in the meantime

    def _read(
        self, stream: Iterator[MicroBatch], all_reduce: AllReduce | None, *, knows_all: bool
    ) -> tuple[Step, StepClips]:
        """Return the step at the position, decoded, with the account of its clips."""
        at = self.position
        batches = list(one_step(stream))
        failed_here = failed_clips(batches)
        stops = next((each.stops for each in batches if each.stops), None)
        counts = len(failed_here), sum(clip.repeat_index == 0 for clip in failed_here), int(stops is not None)
        failed = torch.tensor(counts, dtype=torch.int64, device="cpu")
        if all_reduce is not None:
            all_reduce(failed)
        if failed[2]:
            raise stops or StorageAway(
                "clips of another rank cannot be read, for a reason that is not theirs",
                code="storage-away",
                field="dataset",
                value=str(self._dataset.catalog.path),
                remedy="see the error of that rank",
            )
        planned = sum(at.plan.real_in(at.plan_step))
        clips = StepClips(planned, at.plan.planned_in(at.plan_step), *failed[:2].tolist())
        if clips.failed and knows_all:  # weights are shares of the clips that are left
            batches = [replace(each, request=replace(each.request, clips_in_step=clips.valid)) for each in batches]
        on_end = partial(self._advance, at, clips, failed_here, trained=True)
        return Step(at.global_step + 1, at.epoch, clips, failed_here, deque(batches), on_end), clips

    def _advance(
        self, before: DataPosition, clips: StepClips, failed: tuple[FailedClip, ...], *, trained: bool
    ) -> None:
        """Count a step, unless the caller loaded a state since it was given out."""
        if self.position is not before:
            return
        counts = clips.add_to(before.counts, trained=trained)
        step = before.global_step + 1
        self.position = replace(before, plan_step=before.plan_step + 1, global_step=step, counts=counts)
        if self._run is not None:
            failures.record(self._run, before.epoch, step, failed)

    def _require_few_failures(self, clips: StepClips, failed_here: tuple[FailedClip, ...], *, knows_all: bool) -> None:
        """Warn of a step's failed clips, and raise if too many of the epoch's have failed."""
        at, own = self.position, self._own_failures
        own += failed_here
        self._warnings.warn(at.epoch, at.global_step + 1, failed_here)
        failed = at.counts.failed + clips.failed_first_uses
        if not knows_all and own:
            self._warnings.warn_of_unknown(self._world_size)
            # As if they fail alike on all ranks.
            failed = self._world_size * sum(clip.repeat_index == 0 for clip in own)
        failures.require_few(
            failed,
            at.counts.planned,
            self._max_failures,
            field="max_decode_failures",
            remedy="repair the files or restore their folder, scan it again, or raise the limit",
            clips=own,
        )

    def _no_clip(self, steps: int) -> UserError:
        own = self._own_failures
        named = f" ({own[-1].path}: {own[-1].reason})" if own else " on any rank; the errors of other ranks name them"
        return UserError(
            f"none of the clips of {steps} consecutive steps could be decoded{named}",
            code="no-clip-decoded",
            field="dataset",
            value=str(self._dataset.catalog.path),
            remedy="see whether the folder of the footage is where it was when it was scanned, and is readable",
        )
