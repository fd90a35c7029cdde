"""Recipe keys of parallel training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from reelworks.core.config import Config


class ParallelConfig(Config):
    """`[parallel]`: how weights lie on several processes; with one process nothing is wrapped."""

    strategy: Literal["replicated", "fsdp"] = Field(
        "fsdp", description="a copy on every rank, or weights, gradients and optimizer in shards"
    )
