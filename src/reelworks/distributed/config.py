"""`[parallel]` of a recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from reelworks.core.config import Config


class ParallelConfig(Config):
    """Distribution of weights over ranks, and offloading to CPU memory."""

    strategy: Literal["replicated", "fsdp"] = Field(
        "fsdp",
        description='"replicated" holds a full copy on every rank; "fsdp" shards weights, gradients and optimizer',
    )
    offload: bool = Field(
        False,
        description="keep weights, optimizer state and average in CPU memory and copy each block's weights to the GPU "
        "when it is used; slower, for networks that do not fit; also works with one process",
    )
