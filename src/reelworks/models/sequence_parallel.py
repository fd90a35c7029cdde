"""Let the ranks of a group share the tokens of a network: our own networks know how, others have a plan in diffusers.

diffusers' hooks split inputs and gather the output, and its attention exchanges tokens for heads. `enable_parallelism`
would set both, but refuses CPUs, and its plan for LTX-Video shares captions, for which its attention has no backward pass.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from reelworks.distributed.mesh import World
from reelworks.distributed.sequence import SequenceGroup
from reelworks.models.api import Denoiser
from reelworks.models.family import Network, SequenceSplit


class SequenceParallel:
    """The networks of a denoiser whose tokens the ranks of a sequence group share.

    All ranks of a group call them together, with the same inputs, and get the same output. A gradient is the sum over
    the group. Without a group, nothing is shared.
    """

    def __init__(self, denoiser: Denoiser, network: Network, world: World) -> None:
        """Begin to share the tokens of a denoiser, which is not yet sharded. Collective."""
        self._networks: list[_Own | _OfDiffusers] = []
        if world.sequence is None:
            return
        assert network.sequence is not None, "the recipe was checked"
        modules: list[Any] = [m for m in denoiser.module.modules() if type(m).__name__ == network.name]
        if all(hasattr(m, "sequence") for m in modules):
            self._networks += [_Own(m, world.sequence) for m in modules]
        else:
            config = _diffusers_config(world)
            self._networks += [_OfDiffusers(m, network.sequence, config, world.sequence) for m in modules]
        for each in self._networks:
            each.start()

    @contextmanager
    def paused(self) -> Iterator[Self]:
        """While open, each rank computes all tokens, as many as they may be."""
        for each in self._networks:
            each.stop()
        try:
            yield self
        finally:
            for each in self._networks:
                each.start()


class _Own:
    """A network that divides its tokens itself."""

    def __init__(self, module: Any, group: SequenceGroup) -> None:
        self._module, self._group = module, group

    def start(self) -> None:
        self._module.sequence = self._group

    def stop(self) -> None:
        self._module.sequence = None


class _OfDiffusers:
    """A network whose inputs and outputs hooks divide and gather, with its attentions among divided tokens."""

    def __init__(self, module: Any, split: SequenceSplit, config: Any, group: SequenceGroup) -> None:
        self._module, self._config = module, config
        self._hooks: Any = importlib.import_module("diffusers.hooks.context_parallel")
        self._exchanging: list[Any] | None = None  # processors in place of diffusers'
        if split.module:
            family: Any = importlib.import_module(split.module)
            self._plan = family.plan(module)
            self._attentions = [m for name, m in module.named_modules() if re.fullmatch(family.ATTENTIONS, name)]
            if family.Processor is not None:
                self._former = [m.processor for m in self._attentions]
                self._exchanging = [family.Processor(group, former._attention_backend) for former in self._former]
        else:
            self._plan = _plan(module, split)
            self._attentions = list(_self_attentions(module, split))

    def start(self) -> None:
        for i, attention in enumerate(self._attentions):
            if self._exchanging is None:
                attention.processor._parallel_config = self._config
            else:
                attention.processor = self._exchanging[i]
        self._hooks.apply_context_parallel(self._module, self._config.context_parallel_config, self._plan)

    def stop(self) -> None:
        for i, attention in enumerate(self._attentions):
            if self._exchanging is None:
                attention.processor._parallel_config = None
            else:
                attention.processor = self._former[i]
        self._hooks.remove_context_parallel(self._module, self._plan)


def _diffusers_config(world: World) -> Any:
    """Return the ranks of this one's group, as diffusers wants them."""
    parallel: Any = importlib.import_module("diffusers.models._modeling_parallel")
    mesh = init_device_mesh(
        world.device.type,
        (world.data_size, 1, world.sequence_degree),
        mesh_dim_names=("data", "ring", "ulysses"),
    )
    ulysses = parallel.ContextParallelConfig(ulysses_degree=world.sequence_degree, mesh=mesh)
    config = parallel.ParallelConfig(context_parallel_config=ulysses)
    config.setup(world.rank, world.size, world.device, mesh=mesh)
    return config


def _self_attentions(network: nn.Module, split: SequenceSplit) -> Iterator[Any]:
    """Yield the attentions among shared tokens."""
    for name, module in network.named_modules():
        exchanges = hasattr(getattr(module, "processor", None), "_parallel_config")
        if exchanges and name.rpartition(".")[2] != split.caption_attention:
            yield module


def _plan(network: Any, split: SequenceSplit) -> dict[str, Any]:
    """Return diffusers' plan by module, with captions whole if no attention is among them and other tokens."""
    parallel: Any = importlib.import_module("diffusers.models._modeling_parallel")
    plan = dict(network._cp_plan)
    inputs = dict(plan.get("", {}))
    if not split.captions:
        inputs = {name: how for name, how in inputs.items() if not name.startswith("encoder_")}
    inputs |= {name: parallel.ContextParallelInput(split_dim=1, expected_dims=2) for name in split.inputs}
    return {**plan, "": inputs} if inputs else plan
