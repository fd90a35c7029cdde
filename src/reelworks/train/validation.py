"""Validation loss of the averaged weights, on held-out clips at fixed timesteps with fixed noise.

It does not depend on the step, so two checkpoints, or two runs, can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from reelworks.data.loader import StepSource
from reelworks.data.micro_batch import MicroBatchRequest
from reelworks.distributed.mesh import World
from reelworks.encoders import stored_batches
from reelworks.encoders.stored_batches import StoredLatents
from reelworks.media.decode_pool import DecodePool
from reelworks.recipe.recipe import Recipe
from reelworks.schedule.plan import Samples
from reelworks.train import encoding, shared_batches
from reelworks.train.batch_inputs import validation_example
from reelworks.train.build import TrainedModel


@dataclass(frozen=True)
class Validation:
    """Result of a validation, equal on all ranks.

    Attributes:
        loss: Mean over clips and timesteps; every clip has the same weight.
        loss_by_time: Mean over clips at each timestep.
        clips: Number of clips that could be decoded.
    """

    loss: float
    loss_by_time: dict[str, float]
    clips: int


@dataclass(frozen=True)
class Validator:
    """Validate on the same held-out clips each time."""

    model: TrainedModel
    world: World
    source: StepSource
    held_out: Samples
    recipe: Recipe
    stored: StoredLatents | None = None

    @torch.no_grad()
    def run(self, pool: DecodePool) -> Validation | None:
        """Validate; returns None if there is no held-out clip, or none could be decoded."""
        if not len(self.held_out):
            return None
        model, times = self.model, self.recipe.validation.timesteps
        objective = self.recipe.objective.for_validation()
        sums = torch.zeros(len(times) + 1, dtype=torch.float64)  # of the loss at each timestep, and of clips
        with model.state.averaged():
            budget_bytes = self.recipe.data.prefetch_budget_bytes
            device = encoding.frames_device(self.recipe, self.world.device, stored=self.stored is not None)
            batches = stored_batches.read_ahead(self._requests(), pool, budget_bytes, self.stored, device)
            if self.stored is None:
                batches = shared_batches.over_group(batches, self.world)
            for batch in batches:
                example = validation_example(batch, model.encoder, objective, seed=self.recipe.seed, times=times)
                losses = example.losses(model.boundary(example.inputs), objective).double().cpu()
                if self.world.counts and bool(batch.is_valid.all()):
                    sums[:-1] += losses
                    sums[-1] += 1
        sums = self.world.sum(sums)
        clips = int(sums[-1])
        if not clips:
            return None
        means = (sums[:-1] / clips).tolist()
        by_time = {f"{time:g}": mean for time, mean in zip(times, means, strict=True)}
        return Validation(sum(means) / len(means), by_time, clips)

    def _requests(self) -> Iterator[MicroBatchRequest]:
        """Yield this rank's clips one by one; all ranks get the same number, filled up with fillers."""
        clips = len(self.held_out)
        for first in range(0, clips, self.world.data_size):
            own = first + self.world.data_rank
            clip = self.held_out.take(np.array([min(own, clips - 1)]))
            yield self.source.work(clip, epoch=0, is_idle=own >= clips, augments=False)
