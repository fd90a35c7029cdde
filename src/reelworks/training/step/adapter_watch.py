"""Notice layers of an adapter that learn nothing: by no gradient or one that is not finite, a zero update, or standing still.

An update is a product of factors in all adapter types, so it is zero where one of them is. Weights stand still if neither their sum
nor the sum of their squares has changed in a bit; then they are told, once, as every later save would hold the same.

Layers outside of the family's blocks may rightly get no gradient, such as those of sound that is not trained. They are told as a
note, and layers within blocks as an alarm: a network uses these in every training.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from reelworks.core import machine
from reelworks.core.errors import first_few
from reelworks.core.units import plural
from reelworks.data.distributed.mesh import World, local
from reelworks.models.adapters import inject
from reelworks.training.step import block_norms, nonfinite

Problem = Literal["no gradient", "unused", "zero", "unchanged", "not finite"]
STEPS = 20  # that were applied, after which a layer must have moved
LAST_STEPS = 5  # at the end of a short training
_PER_EXPERT = 10  # times as many, where a step may train one of two networks alone
_LENGTHS = "magnitude_vector"  # of a DoRA: no factor of its update
_REASONS: dict[Problem, str] = {
    "unused": "no gradient has reached them in {steps} steps, since the network does not use them for these clips; "
    "leave them out with lora.targets",
    "no gradient": "no gradient has reached them in {steps} steps, although such layers learn in other trainings of this network: "
    "weights behind them may be zero; see whether model.weights are whole, or leave them out with lora.targets",
    "zero": "their update is still zero after {steps} steps; begin with another lora.weights, or without",
    "not finite": "every gradient in them is infinite or NaN, and such steps are skipped; lower train.learning_rate, or see where "
    "it began in the message of the step",
    "unchanged": "their weights have not changed in a bit in {steps} steps, with gradients that are not zero; "
    "train.learning_rate is too low for them ({learning_rate:g} in the last step)",
}


@dataclass(frozen=True)
class IdleLayers:
    """Layers of an adapter that have learnt nothing in so many steps, for one reason."""

    problem: Problem
    layers: tuple[str, ...]
    all_layers: int
    steps: int
    learning_rate: float

    @property
    def is_note(self) -> bool:
        """Whether a healthy training may have such layers."""
        return self.problem == "unused" and len(self.layers) < self.all_layers

    def __str__(self) -> str:
        some = f"{len(self.layers)} of {plural(self.all_layers, 'layer')}"
        which = "all layers" if len(self.layers) == self.all_layers else f"{some} ({first_few(self.layers)})"
        reason = _REASONS[self.problem].format(steps=self.steps, learning_rate=self.learning_rate)
        return f"the adapter learns nothing in {which}: {reason}"


class _Sums(NamedTuple):
    of_squares: float
    of_values: float
    of_gradients: float  # largest numbers of the gradients since the last time, added up


class AdapterWatch:
    """Compares the weights of an adapter's layers with those before, and sums up their gradients; nothing without an adapter.

    A step costs one norm of each gradient, and no waiting for the device. Every rank finds the same.
    """

    def __init__(
        self,
        trained: Mapping[str, nn.Parameter],
        world: World,
        *,
        experts: int = 1,
        always_used: Collection[str] | None = None,
        told: Collection[tuple[str, Problem]] = (),
    ) -> None:
        """Begin with the weights as they are.

        `always_used` are layers that every training of the network uses, by default all; `told` is what earlier starts told.
        """
        self._world, self._factor = world, _PER_EXPERT if experts > 1 else 1
        self._always_used = None if always_used is None else frozenset(always_used)
        self._layers: dict[str, list[int]] = {}
        self._is_factor: list[bool] = []
        self._weights: list[nn.Parameter] = []
        for name, (layer, kind) in inject.parts(trained).items():
            self._layers.setdefault(layer, []).append(len(self._weights))
            self._is_factor.append(kind != _LENGTHS)
            self._weights.append(trained[name])
        device = local(self._weights[0].detach()).device if self._weights else world.device
        self._gradients = torch.zeros(len(self._weights), device=device)
        self._steps, self._rate, self._has_compared = 0, 0.0, False
        self._told = set(told)
        self._former = self._measured()

    @classmethod
    def none(cls) -> AdapterWatch:
        """Return one that watches nothing."""
        return cls({}, World(0, 1, torch.device("cpu")))

    @torch.no_grad()
    def note(self, learning_rate: float) -> None:
        """Note the gradients of a step before it is applied, with this rate."""
        if not self._weights or not learning_rate:
            return
        self._steps, self._rate = self._steps + 1, learning_rate
        parts = [None if weight.grad is None else local(weight.grad) for weight in self._weights]
        # A number of zero in place of none: an index would be copied to the device, for which the host waits.
        zero = torch.zeros_like(self._gradients[0])
        gradients = [zero if part is None or not part.numel() else part for part in parts]
        # The largest number, as squares of small ones would be zero.
        self._gradients += torch.stack(torch._foreach_norm(gradients, math.inf)).to(self._gradients)

    def find_idle(self, *, is_end: bool = False) -> list[IdleLayers]:
        """Return what is new since the last time that saw enough steps: the first one is due by itself. Collective."""
        if not self._weights or self._steps < (LAST_STEPS if is_end else STEPS) * self._factor:
            return []
        now = self._measured()
        found: dict[Problem, list[str]] = {}
        for layer, places in self._layers.items():
            problem = self._problem([(now[i], self._former[i], self._is_factor[i]) for i in places])
            if problem == "no gradient" and self._always_used is not None and layer not in self._always_used:
                problem = "unused"
            if problem is not None:
                found.setdefault(problem, []).append(layer)
        idle = self._news(found)
        self._former, self._steps, self._has_compared = now, 0, True
        self._gradients.zero_()
        return idle

    def find_not_finite(self) -> list[IdleLayers]:
        """Return the layers whose gradients in this step all hold infinities or NaN, if these are news. Collective."""
        gradients = {str(i): weight.grad for i, weight in enumerate(self._weights) if weight.grad is not None}
        of_ranks: list[Any] = self._world.gather(nonfinite.not_finite(gradients))
        bad = {int(place) for places in of_ranks for place in places}
        return self._news({"not finite": [layer for layer, places in self._layers.items() if bad.issuperset(places)]})

    def _news(self, found: Mapping[Problem, list[str]]) -> list[IdleLayers]:
        """Return what was not told before, and keep it as told."""
        idle = []
        for problem, layers in found.items():
            if news := [layer for layer in layers if (layer, problem) not in self._told]:
                self._told.update((layer, problem) for layer in news)
                idle.append(IdleLayers(problem, tuple(news), len(self._layers), self._steps, self._rate))
        return idle

    @property
    def is_first_due(self) -> bool:
        """Whether enough steps were applied for the first time, which does not wait for a save."""
        return not self._has_compared and bool(self._weights) and self._steps >= STEPS * self._factor

    @staticmethod
    def _problem(tensors: Sequence[tuple[_Sums, _Sums, bool]]) -> Problem | None:
        zeros = [now.of_squares == 0 for now, _, is_factor in tensors if is_factor]
        # One factor of zeros gets a gradient through the others, and a single one by itself.
        if len(zeros) > 1 and all(zeros):
            return "zero"
        if not any(now.of_gradients for now, _, _ in tensors):
            return "no gradient"
        if any(zeros):
            return "zero"
        return "unchanged" if all(now[:2] == former[:2] for now, former, _ in tensors) else None

    @torch.no_grad()
    def _measured(self) -> list[_Sums]:
        """Return the sums of each tensor over ranks."""
        if not self._weights:
            return []
        rows = []
        for weight, gradient in zip(self._weights, self._gradients, strict=True):
            value = _double(local(weight.detach()))
            row = torch.stack([value.square().sum(), value.sum(), _double(gradient).to(value.device)])
            rows.append(row / block_norms.copies(weight.detach(), self._world))
        return [_Sums(*row) for row in self._world.sum(torch.stack(rows)).tolist()]


def _double(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, on the CPU where its device has none."""
    return tensor.to(machine.exact_device(tensor.device)).double()
