"""The state of training: weights, their average, the optimizer. Nothing else has to be saved of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reelworks.distributed.mesh import local
from reelworks.models.api import Denoiser
from reelworks.models.lora import inject
from reelworks.train.config import TrainConfig
from reelworks.train.nonfinite import not_finite
from reelworks.train.optimizers import ShardedOptimizer, matrices


@dataclass
class TrainState:
    """Weights under training.

    Attributes:
        module: The network, sharded or not.
        ema: Float32 average of every trained parameter by name, placed as the parameter is.
        optimizer: With its state.
    """

    module: nn.Module
    ema: dict[str, Tensor]
    optimizer: ShardedOptimizer

    @classmethod
    def start(cls, denoiser: Denoiser, config: TrainConfig) -> TrainState:
        """Begin with the network's weights as their own average; memory for the optimizer is taken now.

        Raises:
            UserError: The optimizer's package is missing, or nothing that is trained is for it.
        """
        module = denoiser.module
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        optimizer = ShardedOptimizer(config, trained, matrices(module, denoiser.sharding().blocks))
        ema = {name: parameter.detach().clone() for name, parameter in trained.items()}
        return cls(module, ema, optimizer)

    def begin_again(self) -> None:
        """Begin with the weights as they are now: they are their own average, and the optimizer knows nothing."""
        for name, average in self.ema.items():
            local(average).copy_(local(self.optimizer.trained[name].detach()))
        self.optimizer.begin()

    def state_dict(self) -> dict[str, Any]:
        """Tensors of a checkpoint; loading into them in place is half of a resume."""
        return {
            "model": inject.weights(self.module),
            "ema": self.ema,
            "optimizer": self.optimizer.state_dict(),
        }

    def not_finite(self) -> list[str]:
        """Name what holds infinities or NaN in this rank's part."""
        weights = inject.weights(self.module)
        averages = {f"the average of {name}": value for name, value in self.ema.items()}
        states = {f"the optimizer's {key} of {name}": value for (name, key), value in self.optimizer.tensors().items()}
        return [*not_finite(weights | averages | states), *self.optimizer.not_finite()]

    def load_optimizer(self, state: dict[str, Any]) -> None:
        """Take over an optimizer state that was loaded into `state_dict()`'s."""
        self.optimizer.load_state_dict(state)

    @torch.no_grad()
    def update_ema(self, step: int, decay: float) -> None:
        """Move the average towards the weights; early steps count more, since the start is noise."""
        rate = min(decay, (1 + step) / (10 + step))
        parameters = dict(self.module.named_parameters())
        averages = [local(average) for average in self.ema.values()]
        current = [local(parameters[name].detach()) for name in self.ema]
        torch._foreach_lerp_(averages, current, 1 - rate)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Run with the averaged weights in the module, without dropout; the trained ones come back bit by bit."""
        parameters = dict(self.module.named_parameters())
        trained = {name: local(parameters[name].detach()).clone() for name in self.ema}
        self._put(self.ema)
        self.module.eval()
        try:
            yield
        finally:
            self._put(trained)
            self.module.train()

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        parameters = dict(self.module.named_parameters())
        for name, value in values.items():
            local(parameters[name].detach()).copy_(local(value))
