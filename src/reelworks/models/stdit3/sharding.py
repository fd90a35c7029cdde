"""The units of STDiT3 that parallel strategies wrap."""

from __future__ import annotations

from torch import nn

from reelworks.models.api import ShardingPlan
from reelworks.models.stdit3.model import STDiT3


def plan(module: STDiT3) -> ShardingPlan:
    """Name the blocks in order of use, so that each can be gathered while the one before computes."""
    blocks: list[nn.Module] = []
    for spatial, temporal in zip(module.spatial_blocks, module.temporal_blocks, strict=True):
        blocks += [spatial, temporal]
    return ShardingPlan(blocks=blocks)
