"""Let the ranks of a group share the tokens of a network.

Our own networks know how. Some networks of diffusers have hooks and attentions of ours (`divided_tokens`). For the others,
diffusers' hooks split inputs and gather the output, and its attention exchanges tokens for heads; `enable_parallelism`
would set both, but refuses CPUs.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from torch.distributed.device_mesh import init_device_mesh

from reelworks.data.distributed.mesh import World
from reelworks.data.distributed.sequence import SequenceGroup
from reelworks.models.api import Denoiser
from reelworks.models.family import Network, SequenceSplit
from reelworks.models.sequence.divided_tokens import DividedTokens, Places


class SequenceParallel:
    """The networks of a denoiser whose tokens the ranks of a sequence group share.

    All ranks of a group call them together, with the same inputs, and get the same output. A gradient is the sum over
    the group. Without a group, nothing is shared.
    """

    def __init__(self, by_degree: Mapping[int, Networks] | None = None) -> None:
        self._by_degree, self._degree = by_degree or {}, 1

    @classmethod
    def of_denoiser(cls, denoiser: Denoiser, network: Network, world: World) -> Self:
        """Share the tokens of a denoiser, which is not yet sharded, by all ranks of a group. Collective."""
        modules: list[Any] = [m for m in denoiser.module.modules() if type(m).__name__ == network.name]
        shared = cls({degree: _networks(modules, network, world, degree) for degree in world.sequences})
        shared.use(world.sequence_degree)
        return shared

    def use(self, degree: int) -> None:
        """Let so many ranks share the tokens of a clip from now on: as many as those of a group, or a divisor of that."""
        if degree == self._degree:
            return
        for each in self._by_degree.get(self._degree, ()):
            each.stop()
        for each in self._by_degree.get(degree, ()):
            each.start()
        self._degree = degree

    @contextmanager
    def paused(self) -> Iterator[Self]:
        """While open, each rank computes all tokens, as many as they may be."""
        former = self._degree
        self.use(1)
        try:
            yield self
        finally:
            self.use(former)


def _networks(modules: list[Any], network: Network, world: World, degree: int) -> Networks:
    """Return the networks that so many ranks are to share. Collective."""
    split, group = network.sequence, world.sequences[degree]
    assert split is not None, "the recipe was checked"
    if all(hasattr(m, "sequence") for m in modules):
        return [_Own(m, group) for m in modules]
    if split.divided:
        return [_Divided(m, split, group) for m in modules]
    config = _diffusers_config(world, degree)
    return [_OfDiffusers(m, split, config) for m in modules]


class _Own:
    """A network that divides its tokens itself."""

    def __init__(self, module: Any, group: SequenceGroup) -> None:
        self._module, self._group = module, group

    def start(self) -> None:
        self._module.sequence = self._group

    def stop(self) -> None:
        self._module.sequence = None


class _Divided:
    """A network of diffusers with hooks and attentions of our own."""

    def __init__(self, module: Any, split: SequenceSplit, group: SequenceGroup) -> None:
        places: Places = importlib.import_module(split.divided).PLACES
        self._divided = DividedTokens(module, places, group)
        self._attentions: list[Any] = [m for path, m in module.named_modules() if places.attentions(path)]
        self._former = [each.processor for each in self._attentions]
        self._own = [places.processor(self._divided, former._attention_backend) for former in self._former]

    def start(self) -> None:
        for attention, processor in zip(self._attentions, self._own, strict=True):
            attention.processor = processor
        self._divided.start()

    def stop(self) -> None:
        for attention, processor in zip(self._attentions, self._former, strict=True):
            attention.processor = processor
        self._divided.stop()


class _OfDiffusers:
    """A network with diffusers' hooks and exchange."""

    def __init__(self, module: Any, split: SequenceSplit, config: Any) -> None:
        self._module, self._config = module, config
        self._hooks: Any = importlib.import_module("diffusers.hooks.context_parallel")
        family: Any = importlib.import_module(split.plan) if split.plan else None
        # Where tokens are divided and gathered, by module; and the attentions among shared tokens.
        self._plan: dict[str, Any] = module._cp_plan if family is None else family.plan(module)
        self._attentions: list[Any] = [
            child
            for path, child in module.named_modules()
            if hasattr(getattr(child, "processor", None), "_parallel_config")
            and (family is None or re.fullmatch(family.ATTENTIONS, path))
        ]

    def start(self) -> None:
        for attention in self._attentions:
            attention.processor._parallel_config = self._config
        self._hooks.apply_context_parallel(self._module, self._config.context_parallel_config, self._plan)

    def stop(self) -> None:
        for attention in self._attentions:
            attention.processor._parallel_config = None
        self._hooks.remove_context_parallel(self._module, self._plan)


Networks = Sequence[_Own | _Divided | _OfDiffusers]


def _diffusers_config(world: World, degree: int) -> Any:
    """Return the ranks that share clips of this degree with this one, as diffusers wants them."""
    parallel: Any = importlib.import_module("diffusers.models._modeling_parallel")
    mesh = init_device_mesh(
        world.device.type, (world.size // degree, 1, degree), mesh_dim_names=("data", "ring", "ulysses")
    )
    ulysses = parallel.ContextParallelConfig(ulysses_degree=degree, mesh=mesh)
    config = parallel.ParallelConfig(context_parallel_config=ulysses)
    config.setup(world.rank, world.size, world.device, mesh=mesh)
    return config
