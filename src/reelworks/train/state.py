"""What training changes: weights, their average, the optimizer. Nothing else has to be saved of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from reelworks.models.lora import inject as lora
from reelworks.parallel.mesh import local
from reelworks.train.config import TrainConfig
from reelworks.train.finite import not_finite

_OPTIMIZERS = {"adamw": torch.optim.AdamW}


@dataclass
class TrainState:
    """Weights under training.

    Attributes:
        module: The network, sharded or not.
        ema: Float32 average of every trained parameter by name, placed as the parameter is.
        optimizer: AdamW.
    """

    module: nn.Module
    ema: dict[str, Tensor]
    optimizer: torch.optim.AdamW

    @classmethod
    def start(cls, module: nn.Module, config: TrainConfig) -> TrainState:
        """Begin with the module's weights as their own average."""
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        optimizer = _OPTIMIZERS[config.optimizer](
            trained.values(),
            lr=config.learning_rate,
            betas=(config.betas[0], config.betas[1]),
            eps=config.eps,
            weight_decay=config.weight_decay,
        )
        # Allocated now, so that memory fails at the start; and by hand, since torch's own way to fill an
        # empty state counts as a step.
        for parameter in trained.values():
            optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        ema = {name: parameter.detach().clone() for name, parameter in trained.items()}
        return cls(module, ema, optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Tensors of a checkpoint; loading into them in place is half of a resume."""
        return {
            "model": lora.weights(self.module),
            "ema": self.ema,
            "optimizer": get_optimizer_state_dict(self.module, self.optimizer),
        }

    def not_finite(self) -> list[str]:
        """Name what holds infinities or NaN in this rank's part."""
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        moments = {
            f"the optimizer's {key} of {names[id(parameter)]}": value
            for parameter, values in self.optimizer.state.items()
            for key, value in values.items()
            if key != "step"  # a plain count, beside the device
        }
        weights = lora.weights(self.module)
        averages = {f"the average of {name}": value for name, value in self.ema.items()}
        return not_finite(weights | averages | moments)

    def load_optimizer(self, state: dict[str, Any]) -> None:
        """Take over an optimizer state that was loaded into `state_dict()`'s."""
        set_optimizer_state_dict(self.module, self.optimizer, state)

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


def learning_rate(config: TrainConfig, step: int) -> float:
    """Learning rate of the step after `step` done ones: linear warm-up, then constant."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    return config.learning_rate
