"""Recipe keys of reading media."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from reelworks.core.config import Config

ShortClips = Literal["reject", "hold", "loop"]
RenamedClips = Literal["same", "new"]


class DataConfig(Config):
    """`[data]`: which frames of a clip are read, how they are cut to a bucket, and by how many workers."""

    frame_interval: int = Field(1, ge=1, description="read each n-th frame")
    fps: float | None = Field(None, gt=0, description="read at this rate instead; slower clips keep theirs")
    clip_start: Literal["random", "start"] = Field("random", description="where in a longer clip to begin")
    short_clips: ShortClips = Field(
        "reject",
        description='videos shorter than every entry whose size they fill: "reject" leaves them out (too_short), "hold" '
        'gives them to the shortest of these and repeats their last frame, "loop" starts them over',
    )
    crop: Literal["center", "random"] = Field("center", description="what to keep of a wider or taller frame")
    locality: Literal["folder", "file"] | None = Field(
        None,
        description="read clips of one folder, or those cut from one file, near one another in an epoch; for "
        "footage on slow or remote storage. Default: every clip may come anywhere",
    )
    shuffle_window: int = Field(
        10_000,
        ge=1,
        description="with locality: about how many clips, of whole folders or files, are shuffled together",
    )
    renamed_clips: RenamedClips = Field(
        "same",
        description="files of a dataset that was renamed, split or swapped with another in mid-epoch, known again by "
        'content and path: "same" takes each for the clip that it was, "new" trains it again in the epoch',
    )
    num_workers: int = Field(2, ge=0, description="decoding processes; 0 decodes in threads of the trainer")
    decode_timeout: float = Field(
        120.0,
        gt=0,
        description="seconds after which a decoding process is killed that is still at one clip; the clip is recorded "
        "as failed. Threads (num_workers = 0) cannot be killed: a decoder that hangs there stops the run",
    )
    prefetch_micro_batches: int = Field(4, ge=1, description="micro-batches decoded ahead of training")
    max_decode_failures: float = Field(
        0.1, ge=0, le=1, description="stop when more than this share of an epoch's clips cannot be decoded"
    )

    @model_validator(mode="after")
    def _one_rate(self) -> DataConfig:
        if self.fps is not None and self.frame_interval != 1:
            raise ValueError("set fps or frame_interval, not both")
        return self
