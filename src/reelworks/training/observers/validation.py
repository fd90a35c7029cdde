"""Loss on held-out clips at fixed timesteps with fixed noise, in training and in `reelworks eval`.

It does not depend on the step, so two checkpoints, or two runs, can be compared.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from reelworks.core import digests
from reelworks.core.errors import UserError
from reelworks.data.catalog.sources import REJECTED
from reelworks.data.distributed.mesh import World
from reelworks.data.loader import decode_requests
from reelworks.data.loader.dataset import Dataset
from reelworks.data.loader.failures import FailedClip, failed_clips
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.schedule.plan import Samples
from reelworks.models.api import DenoiserInputs
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.models.sequence.sequence_parallel import SequenceParallel
from reelworks.training.encoding.batch_encoder import BatchEncoder
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step.examples import Predicted, validation_example

# Keys on which the loss of a clip depends, beside its content, shape and caption.
_READING = {"frame_interval", "fps", "clip_start", "short_clips", "crop", "resize", "alpha_color"}
_OBJECTIVE = {"name", "prediction", "zero_terminal_snr", "crop_conditioning"}
_SOUND = {"name", "weights", "sample_rate", "timestep_shift", "loss_weight"}
_SHIFTED_SOUND = {"timestep_shift", "opensora_frame_quantization", "timestep_range"}  # of [objective]


@dataclass(frozen=True)
class HeldOutLoss:
    """Loss of some held-out clips.

    Attributes:
        loss: Mean over clips and timesteps; every clip has the same weight. NaN if none could be decoded.
        loss_by_time: Mean over clips at each timestep.
        clips: Number of clips that could be decoded.
    """

    loss: float
    loss_by_time: dict[str, float]
    clips: int

    @classmethod
    def of_sums(cls, sums: Tensor, times: Sequence[float]) -> HeldOutLoss:
        """Return the means for the sums of the loss at each timestep, and last the number of clips."""
        clips = int(sums[-1])
        means = (sums[:-1] / sums[-1]).tolist()
        by_time = {f"{time:g}": mean for time, mean in zip(times, means, strict=True)}
        return cls(sum(means) / len(means), by_time, clips)


@dataclass(frozen=True)
class Validation(HeldOutLoss):
    """Result of a validation, equal on all ranks: the loss of all clips, and that of each bucket's.

    Attributes:
        measured_on: Digest of all that the loss depends on besides the weights, and after it one of the clips that were not
            read, if any: only losses with equal ones can be compared.
        unread: Clips that could not be decoded.
    """

    by_bucket: dict[str, HeldOutLoss]
    measured_on: str
    unread: tuple[FailedClip, ...] = ()


@dataclass(frozen=True)
class Validator:
    """Measure the loss of the weights that a network holds, on the same held-out clips each time.

    Attributes:
        recipe: Its `validation_timesteps` are those to measure at.
        times_at_once: Timesteps of a clip that run as one batch; None for as many as clips in a micro-batch of its bucket, or
            of one that another rank measures at the same time, if fewer, so that validation takes no more memory than
            training. Losses differ by rounding only.
        on_clip: Called after each clip with the number of clips that are measured, and of all.
    """

    boundary: DtypeBoundary[DenoiserInputs]
    encoder: BatchEncoder[Any]
    world: World
    source: StepSource
    held_out: Samples
    recipe: Recipe
    times_at_once: int | None = None
    on_clip: Callable[[int, int], None] = lambda done, total: None
    sequence: SequenceParallel = field(default_factory=SequenceParallel)

    @torch.no_grad()
    def run(self, pool: DecodePool, stops: Callable[[], bool] = lambda: False) -> Validation | None:
        """Validate; returns None if there is no held-out clip, or if `stops`, which is asked before each, is True.

        Raises:
            UserError: On all ranks, if a clip was not read for a reason that is not its own, see `MicroBatch.stops`.
        """
        if not len(self.held_out):
            return None
        times, buckets = self.recipe.validation_timesteps, self.source.data.table.buckets
        # Of all clips, and then of each bucket's: sums of the loss at each timestep, and of clips.
        sums = torch.zeros(1 + len(buckets), len(times) + 1, dtype=torch.float64)
        budget_bytes = self.recipe.data.prefetch_budget_bytes
        requests = shared_out(self.source, self.world, len(self.held_out), lambda i: self.held_out.take(np.array([i])))
        unread: list[FailedClip] = []
        stuck: UserError | None = None
        for i, batch in enumerate(self.encoder.read(requests, pool, budget_bytes)):
            if stops():
                return None
            stuck = stuck or batch.stops
            # Groups of fewer ranks than a sequence group has measure the same clip, and one of them counts.
            self.sequence.use(batch.request.sequence_degree)
            losses, batch = self._losses(batch, self._times_at_once(i))
            if self.world.leads(self.world.sequence_degree):
                unread += failed_clips([batch])
                if bool(batch.is_valid.all()):
                    for row in (0, 1 + batch.request.bucket):
                        sums[row, :-1] += losses
                        sums[row, -1] += 1
            self.on_clip((i + 1) * self.world.data_size, len(self.held_out))
        sums = self.world.sum(sums)
        of_ranks: list[Any] = self.world.gather((unread, stuck))
        for _, reason in of_ranks:
            if reason is not None:
                raise reason
        by_bucket = {
            bucket.name: HeldOutLoss.of_sums(row, times)
            for bucket, row in zip(buckets, sums[1:], strict=True)
            if row[-1]
        }
        lost = tuple(sorted((clip for part, _ in of_ranks for clip in part), key=lambda clip: clip.uid))
        measured_on = self.digest + (f"-{digests.digest_json([clip.uid for clip in lost])[:8]}" if lost else "")
        return Validation(
            **vars(HeldOutLoss.of_sums(sums[0], times)), by_bucket=by_bucket, measured_on=measured_on, unread=lost
        )

    @cached_property
    def digest(self) -> str:
        """Digest of all that a loss depends on besides the weights, if all clips are read."""
        return digest_of_loss(self.recipe, self.source.data, self.held_out)

    def _times_at_once(self, i: int) -> int:
        """Return how many timesteps the i-th clips of all ranks run at once: ranks with shards pass at the same time."""
        size, buckets = self.world.data_size, self.source.data.table.buckets
        least = min(buckets[bucket].batch_size for bucket in self.held_out.bucket[i * size : (i + 1) * size].tolist())
        return self.times_at_once or max(least, 1) * self.recipe.clips_per_place

    def _losses(self, batch: MicroBatch, at_once: int) -> tuple[Tensor, MicroBatch]:
        """Return the loss of one clip at each timestep, float64 on the CPU, and the clip, which may have failed as it was encoded."""
        objective, times = self.recipe.objective.for_validation(), self.recipe.validation_timesteps
        example = validation_example(batch, self.encoder, objective, seed=self.recipe.seed, times=times)
        outputs = []
        for first in range(0, len(times), at_once):
            part = example.inputs.each(operator.itemgetter(slice(first, first + at_once)))
            outputs.append(Predicted.from_inputs(self.boundary, part))
        return example.losses(Predicted.joined(outputs)).cpu().double(), example.batch


def digest_of_loss(recipe: Recipe, data: Dataset, clips: Samples) -> str:
    """Return the digest of all that the loss of clips depends on besides the weights."""
    sound, shift = recipe.sound, recipe.objective.timestep_shift
    if sound is not None and sound.timestep_shift == (1.0 if shift == "none" else shift):
        sound = sound.model_copy(update={"timestep_shift": None})  # that of the picture, as without the key
    shifted = _SHIFTED_SOUND if sound is not None and sound.timestep_shift is not None else set()
    settings = [
        recipe.objective.model_dump(mode="json", include=_OBJECTIVE | shifted),
        recipe.autoencoder.model_dump(mode="json"),
        recipe.text_encoder.model_dump(mode="json", exclude={"device"}),
        recipe.model.image_encoder,
        sound and sound.model_dump(mode="json", include=_SOUND),
    ]
    return digests.digest_json([digest_of(data, clips), recipe.validation_timesteps, recipe.seed, settings])[:16]


def digest_of(data: Dataset, clips: Samples) -> str:
    """Return the digest of clips that a loss is measured on: their content and captions, and how they are read."""
    rows, row = data.rows, data.rows.find(clips.uid)
    captions = [decode_requests.caption_of_row(data, each) for each in row.tolist()]
    shapes = [str(bucket.shape) for bucket in data.table.buckets]
    shape_of = [shapes[bucket] for bucket in clips.bucket.tolist()]
    fingerprints = rows.fingerprint.take(pa.array(row)).to_pylist()
    reading = data.spec.data.model_dump(mode="json", include=_READING)
    shown = [(kind, of.rows, of.row[row]) for kind, of in sorted(data.companions.items()) if kind != REJECTED]
    beside = [[kind, data.catalog.digest_of(of.take(np.unique(at[at >= 0])))] for kind, of, at in shown]
    return digests.digest_json([clips.uid.tolist(), shape_of, fingerprints, captions, reading, beside])


def shared_out(
    source: StepSource, world: World, count: int, clips_of: Callable[[int], Samples]
) -> Iterator[MicroBatchRequest]:
    """Yield this rank's part of so many micro-batches; all ranks get the same number, filled up with fillers."""
    for first in range(0, count, world.data_size):
        own = first + world.data_rank
        yield source.build_request(clips_of(min(own, count - 1)), epoch=0, is_idle=own >= count, augments=False)
