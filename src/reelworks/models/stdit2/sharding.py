"""The units of STDiT2 that parallel strategies wrap."""

from __future__ import annotations

from reelworks.models.api import ShardingPlan
from reelworks.models.stdit2.model import STDiT2


def plan(module: STDiT2) -> ShardingPlan:
    """Name the blocks in order of use, so that each can be gathered while the one before computes."""
    return ShardingPlan(blocks=list(module.blocks))
