"""Recipe keys of reading media."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from reelworks.core.config import Config


class DataConfig(Config):
    """`[data]`: which frames of a clip are read, how they are cut to a bucket, and by how many workers."""

    frame_interval: int = Field(1, ge=1, description="read each n-th frame")
    fps: float | None = Field(None, gt=0, description="read at this rate instead; slower clips keep theirs")
    first_frame: Literal["random", "start"] = Field("random", description="where in a longer clip to begin")
    crop: Literal["center", "random"] = Field("center", description="what to keep of a wider or taller frame")
    num_workers: int = Field(2, ge=0, description="decoding processes; 0 decodes in threads of the trainer")
    prefetch_micro_batches: int = Field(4, ge=1, description="micro-batches decoded ahead of training")
    max_failure_share: float = Field(
        0.1, ge=0, le=1, description="stop when more than this share of an epoch's clips cannot be decoded"
    )

    @model_validator(mode="after")
    def _one_rate(self) -> DataConfig:
        if self.fps is not None and self.frame_interval != 1:
            raise ValueError("set fps or frame_interval, not both")
        return self
