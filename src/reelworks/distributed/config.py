"""Recipe keys of parallel training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from reelworks.core.config import Config


class ParallelConfig(Config):
    """`[parallel]`: where weights lie."""

    strategy: Literal["replicated", "fsdp"] = Field(
        "fsdp", description="a copy on every rank, or weights, gradients and optimizer in shards"
    )
    offload: bool = Field(
        False,
        description="weights, optimizer and average lie in CPU memory, and each block's weights come to the GPU when it "
        "is used; slower, for networks that do not fit; with one process too",
    )
