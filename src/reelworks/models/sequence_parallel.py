"""Let the ranks of a group share the tokens of a network: our own networks know how, others have a plan in diffusers.

diffusers' hooks split inputs and gather the output, and its attention exchanges tokens for heads. `enable_parallelism`
would set both, but refuses CPUs, and its plan for LTX-Video shares captions, for which its attention has no backward pass.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from reelworks.distributed.mesh import World
from reelworks.models.api import Denoiser
from reelworks.models.family import Network, SequenceSplit


class SequenceParallel:
    """The networks of a denoiser whose tokens the ranks of a sequence group share.

    All ranks of a group call them together, with the same inputs, and get the same output. A gradient is the sum over
    the group. Without a group, nothing is shared.
    """

    def __init__(self, denoiser: Denoiser, network: Network, world: World) -> None:
        """Begin to share the tokens of a denoiser, which is not yet sharded. Collective."""
        self._world = world
        self._networks: list[Any] = []
        if world.sequence is None:
            return
        assert network.sequence is not None, "the recipe was checked"
        self._networks = [m for m in denoiser.module.modules() if type(m).__name__ == network.name]
        self._is_own = all(hasattr(m, "sequence") for m in self._networks)
        self._split = network.sequence
        self._config: Any = None if self._is_own else _diffusers_config(world)
        self._start()

    @contextmanager
    def paused(self) -> Iterator[Self]:
        """While open, each rank computes all tokens, as many as they may be."""
        self._stop()
        try:
            yield self
        finally:
            self._start()

    def _start(self) -> None:
        for network in self._networks:
            if self._is_own:
                network.sequence = self._world.sequence
                continue
            for attention in _self_attentions(network, self._split):
                attention.processor._parallel_config = self._config
            _hooks().apply_context_parallel(network, self._config.context_parallel_config, _plan(network, self._split))

    def _stop(self) -> None:
        for network in self._networks:
            if self._is_own:
                network.sequence = None
                continue
            for attention in _self_attentions(network, self._split):
                attention.processor._parallel_config = None
            _hooks().remove_context_parallel(network, _plan(network, self._split))


def _hooks() -> Any:
    return importlib.import_module("diffusers.hooks.context_parallel")


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
