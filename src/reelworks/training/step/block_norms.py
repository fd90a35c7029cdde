"""Gradient norms of the blocks of a network, which show where a gradient grows or vanishes.

Rank by rank, the squares of local shards are summed, and then over ranks in one all-reduce. Every parameter with a
gradient belongs to one block, or to `REST`, so the squares of all norms sum to the square of the whole norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from reelworks.data.distributed.mesh import World, local

REST = "rest"  # parameters outside of all blocks, such as embeddings


def by_name(module: nn.Module, blocks: Sequence[nn.Module], squared: Sequence[float]) -> dict[str, float]:
    """Return the gradient norm of each block by its path in the module, and of `REST`, from what `squares` returned."""
    paths = {id(child): path for path, child in module.named_modules()}
    names = [*(paths[id(block)] for block in blocks), REST]
    return {name: math.sqrt(square) for name, square in zip(names, squared, strict=True)}


@torch.no_grad()
def squares(module: nn.Module, blocks: Sequence[nn.Module], world: World) -> Tensor:
    """Return the squared gradient norm of each block and of the rest, `[blocks + 1]`, on the device. Collective."""
    place = {id(p): i for i, block in enumerate(blocks) for p in block.parameters()}
    with_gradient = [(place.get(id(p), len(blocks)), p.grad) for p in module.parameters() if p.grad is not None]
    total = torch.zeros(len(blocks) + 1, device=world.device)
    if with_gradient:
        places, gradients = zip(*with_gradient, strict=True)
        norms = torch.stack([norm.float().to(world.device) for norm in torch._foreach_norm([*map(local, gradients)])])
        share = torch.tensor([1 / copies(g, world) for g in gradients], device=world.device)
        # A matrix product sums in the same order each time, which index_add does not on a GPU.
        belongs = torch.tensor(places, device=world.device) == torch.arange(len(total), device=world.device)[:, None]
        total = belongs.float() @ (norms.square() * share)
    return world.sum(total)


def copies(tensor: Tensor, world: World) -> int:
    """Return how many ranks hold the same part of a weight or gradient."""
    if not isinstance(tensor, DTensor):
        return world.size
    mesh = tensor.device_mesh
    shards = [mesh.size(dim) for dim, kind in enumerate(tensor.placements) if isinstance(kind, Shard)]
    return world.size // math.prod(shards)
