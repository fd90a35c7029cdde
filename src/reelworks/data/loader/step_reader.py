"""Read whole steps, so that the weights of each sum to 1 over the clips that were decoded on all ranks.

A rank knows how many clips of a step failed only when it has decoded all of its own, so that a step is given out when it
lies in memory. Frames that are read ahead, up to a number of bytes, come on top of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch

from reelworks.data.loader.failures import FailedClip, failed_clips
from reelworks.data.loader.micro_batch import MicroBatch, one_step
from reelworks.data.loader.ranks import AllReduce
from reelworks.data.loader.step import StepClips
from reelworks.data.schedule.plan import EpochPlan


class WholeStep(NamedTuple):
    """A step that is decoded, with the account of its clips and this rank's failed ones.

    Whoever takes micro-batches takes them out, so that their memory is let go of.
    """

    micro_batches: deque[MicroBatch]
    clips: StepClips
    failures: tuple[FailedClip, ...]


class StepReader:
    """Take whole steps from a stream of micro-batches.

    Attributes:
        knows_all: Whether the failed clips of all ranks are known: there is one rank, or a sum over them. Otherwise those
            of this rank are counted, and weights remain shares of the planned clips, so that they agree on all ranks.
    """

    def __init__(self, stream: Iterator[MicroBatch], world_size: int, all_reduce: AllReduce | None) -> None:
        self._stream, self._all_reduce = stream, all_reduce
        self.knows_all = world_size == 1 or all_reduce is not None

    def read(self, plan: EpochPlan, plan_step: int) -> WholeStep:
        """Return the next step, which is step `plan_step` of the plan. Collective."""
        batches = list(one_step(self._stream))
        failures = failed_clips(batches)
        failed = torch.tensor([len(failures), sum(clip.repeat_index == 0 for clip in failures)])
        if self._all_reduce is not None:
            self._all_reduce(failed)
        clips = StepClips(sum(plan.real_in(plan_step)), plan.planned_in(plan_step), *failed.tolist())
        if clips.failed and self.knows_all:  # weights are shares of the clips that are left
            batches = [replace(each, request=replace(each.request, clips_in_step=clips.valid)) for each in batches]
        return WholeStep(deque(batches), clips, failures)
