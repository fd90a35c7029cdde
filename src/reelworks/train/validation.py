"""Validation loss of the averaged weights: held-out clips, fixed times, fixed noise.

Nothing in it depends on the step, so two checkpoints, or two runs, can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from reelworks.data import loader
from reelworks.data.loader import MicroBatchRequest, StepSource
from reelworks.diffusion.config import ObjectiveConfig
from reelworks.distributed.mesh import World
from reelworks.encoders.encoders import LiveEncoder
from reelworks.media.decode import DecodePool
from reelworks.models.api import DenoiserInputs
from reelworks.precision.boundary import DtypeBoundary
from reelworks.schedule.plan import Entries
from reelworks.train.batch_inputs import validation_example
from reelworks.train.state import TrainState


@dataclass(frozen=True)
class Validation:
    """Result, equal on all ranks.

    Attributes:
        loss: Mean over clips and times; every clip counts alike.
        loss_by_time: Mean over clips at each time.
        clips: Clips that could be decoded.
    """

    loss: float
    loss_by_time: dict[str, float]
    clips: int


@dataclass(frozen=True)
class Validator:
    """Validates on the same held-out clips each time."""

    boundary: DtypeBoundary[DenoiserInputs]
    encoder: LiveEncoder
    state: TrainState
    world: World
    source: StepSource
    held_out: Entries
    times: list[float]
    objective: ObjectiveConfig
    seed: int

    @torch.no_grad()
    def run(self, pool: DecodePool) -> Validation | None:
        """Validate; None where no clip is held out."""
        if not len(self.held_out):
            return None
        sums = torch.zeros(len(self.times) + 1, dtype=torch.float64)
        with self.state.averaged():
            for batch in loader.read_ahead(self._work(), pool, depth=4):
                example = validation_example(batch, self.encoder, self.objective, seed=self.seed, times=self.times)
                losses = example.losses(self.boundary(example.inputs), self.objective).double().cpu()
                if bool(batch.is_valid.all()):
                    sums[:-1] += losses
                    sums[-1] += 1
        sums = self.world.sum(sums)
        clips = int(sums[-1])
        if not clips:
            return None
        means = (sums[:-1] / clips).tolist()
        by_time = {f"{time:g}": mean for time, mean in zip(self.times, means, strict=True)}
        return Validation(sum(means) / len(means), by_time, clips)

    def _work(self) -> Iterator[MicroBatchRequest]:
        """This rank's clips one by one; every rank gets as many, the last ones as fillers if need be."""
        rounds = -(-len(self.held_out) // self.world.size)
        for i in range(rounds):
            own = i * self.world.size + self.world.rank
            one = self.held_out.take(torch.tensor([min(own, len(self.held_out) - 1)]).numpy())
            yield self.source.work(one, epoch=0, is_idle=own >= len(self.held_out))
