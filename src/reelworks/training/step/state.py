"""The training state that a checkpoint saves: weights, their moving average, and the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from reelworks.data.distributed.mesh import local, local_parts
from reelworks.models.adapters import inject
from reelworks.models.api import Denoiser
from reelworks.training.loop.config import TrainConfig
from reelworks.training.step.nonfinite import not_finite
from reelworks.training.step.optimizers import ShardedOptimizer, experts, matrices
from reelworks.training.step.spikes import SpikeDetector

_SPIKES = "recent_losses.json"


@dataclass
class TrainState:
    """Weights in training, their float32 average by name, sharded as the weights are, the optimizer, losses so far.

    Attributes:
        observed: Files of observers in the checkpoint that was loaded, by name, until they have begun.
    """

    module: nn.Module
    ema: dict[str, Tensor]
    optimizer: ShardedOptimizer
    spikes: SpikeDetector = field(default_factory=SpikeDetector)
    observed: dict[str, bytes] = field(default_factory=dict)
    blocks: tuple[nn.Module, ...] = ()  # of the module

    @classmethod
    def start(cls, denoiser: Denoiser, config: TrainConfig) -> TrainState:
        """Start training a network: copy the average from the weights, and allocate the optimizer's state."""
        module = denoiser.module
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        blocks = tuple(denoiser.sharding().blocks)
        optimizer = ShardedOptimizer(config, trained, matrices(module, blocks), experts(module))
        # With the weights' placement, also for shards in CPU memory.
        ema = {name: parameter.detach().clone() for name, parameter in trained.items()}
        if config.ema_device == "cpu":
            ema = {name: average.cpu() for name, average in ema.items()}
        return cls(module, ema, optimizer, blocks=blocks)

    def begin_average(self) -> None:
        """Copy the average from the weights again."""
        for name, average in self.ema.items():
            local(average).copy_(local(self.optimizer.trained[name].detach()))

    def take_average(self) -> None:
        """Copy the average into the weights: of schedule-free AdamW, they are no more than points that it trained on."""
        self._put(self.ema)

    def begin_again(self) -> None:
        """Copy the average from the weights again, and reset the optimizer's state and the recent losses."""
        self.begin_average()
        self.optimizer.begin()
        self.spikes = SpikeDetector()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a checkpoint; its tensors are loaded in place, the rest by `optimizer.load_state_dict`."""
        return {"model": inject.weights(self.module), "ema": self.ema, "optimizer": self.optimizer.state_dict()}

    def files(self) -> dict[str, bytes]:
        """Return what a checkpoint has of the state beside tensors, by the names of its files."""
        return {_SPIKES: self.spikes.to_bytes()} if self.spikes.recent else {}

    def load_files(self, files: dict[str, bytes]) -> None:
        """Load what `files` returned; the others are left to observers."""
        self.observed = dict(files)
        if (content := self.observed.pop(_SPIKES, None)) is not None:
            self.spikes.load(content)

    def not_finite(self) -> list[str]:
        """Return the names of the tensors that hold infinities or NaN in this rank's shards."""
        weights = inject.weights(self.module)
        averages = {f"the average of {name}": value for name, value in self.ema.items()}
        states = {f"the optimizer's {key} of {name}": value for (name, key), value in self.optimizer.tensors().items()}
        return [*not_finite(weights | averages | states), *self.optimizer.not_finite()]

    @torch.no_grad()
    def update_ema(self, step: int, decay: float | None) -> None:
        """Move the average towards the weights; the decay is lower in early steps, whose weights are mostly noise.

        Without a decay, copy the average that the optimizer has by itself.
        """
        if decay is None:
            for name, average in self.optimizer.own_averages().items():
                local(self.ema[name]).copy_(average)
            return
        rate = min(decay, (1 + step) / (10 + step))
        averages = local_parts(self.ema.values())
        current = local_parts(self.optimizer.trained[name] for name in self.ema)
        current = [value.to(average.device) for value, average in zip(current, averages, strict=True)]
        torch._foreach_lerp_(averages, current, 1 - rate)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the averaged weights into the module, in eval mode, while open; then restore the trained ones exactly."""
        parameters = dict(self.module.named_parameters())
        trained = {name: local(parameters[name].detach()).clone() for name in self.ema}
        in_training = [module for module in self.module.modules() if module.training]  # it may keep others in eval
        self._put(self.ema)
        self.module.eval()
        try:
            yield
        finally:
            self._put(trained)
            for module in in_training:
                module.training = True

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        parameters = dict(self.module.named_parameters())
        for name, value in values.items():
            local(parameters[name].detach()).copy_(local(value))
