"""Recipe keys for reading media files."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from reelworks.core.config import Config
from reelworks.core.errors import UserError

ShortClips = Literal["reject", "hold", "loop"]
RenamedClips = Literal["same", "new"]


class DataConfig(Config):
    """`[data]`: which frames of a clip are read, how they are cropped to a bucket, and by how many workers."""

    frame_interval: int = Field(1, ge=1, description="read each n-th frame")
    fps: float | None = Field(
        None, gt=0, description="read at this frame rate instead; clips with a lower rate keep their own"
    )
    clip_start: Literal["random", "start"] = Field("random", description="first frame used of a longer clip")
    short_clips: ShortClips = Field(
        "reject",
        description='what to do with videos that have fewer frames than every bucket entry of their size: "reject" '
        'leaves them out (too_short), "hold" repeats their last frame, "loop" plays them again from the start; both '
        "use the entry with the fewest frames",
    )
    crop: Literal["center", "random"] = Field("center", description="part used of a wider or taller frame")
    hdr: Literal["tone_map", "reject"] = Field(
        "tone_map",
        description='what to do with videos of high dynamic range (PQ, HLG): "tone_map" converts their colours to SDR, '
        '"reject" leaves them out',
    )
    interlaced: Literal["deinterlace", "reject"] = Field(
        "deinterlace",
        description='what to do with interlaced videos: "deinterlace" rebuilds whole frames from their fields, "reject" '
        "leaves them out",
    )
    alpha_color: list[int] = Field(
        [255, 255, 255],
        min_length=3,
        max_length=3,
        description="red, green and blue of the background over which transparent pixels are blended",
    )
    locality: Literal["folder", "file"] | None = Field(
        None,
        description="read clips from one folder, or clips cut from one file, close together within an epoch; for "
        "footage on slow or remote storage. Default: clips are shuffled over the whole epoch",
    )
    shuffle_window: int = Field(
        10_000,
        ge=1,
        description="with locality: approximate number of clips, of whole folders or files, shuffled together",
    )
    renamed_clips: RenamedClips = Field(
        "same",
        description="when a dataset is renamed, split or swapped with another in mid-epoch, its files are recognised "
        'by content and path: "same" continues each as the clip it was, "new" trains it again in this epoch',
    )
    num_workers: int = Field(2, ge=0, description="decoding processes; 0 decodes in threads of the trainer")
    decode_timeout: float = Field(
        120.0,
        gt=0,
        description="seconds that a decoding process may spend on one clip before it is killed and the clip recorded "
        "as failed. Threads (num_workers = 0) cannot be killed: a decoder that hangs in one stops the run",
    )
    prefetch_micro_batches: int = Field(4, ge=1, description="micro-batches decoded ahead of training")
    max_decode_failures: float = Field(
        0.1, ge=0, le=1, description="stop when more than this fraction of an epoch's clips cannot be decoded"
    )

    @field_validator("alpha_color")
    @classmethod
    def _levels(cls, value: list[int]) -> list[int]:
        if not all(0 <= level <= 255 for level in value):
            raise UserError(
                "a color consists of three levels from 0 to 255",
                code="color-out-of-range",
                field="data.alpha_color",
                value=value,
                remedy="give red, green and blue, for example [0, 0, 0] for black",
            )
        return value

    @model_validator(mode="after")
    def _one_rate(self) -> DataConfig:
        if self.fps is not None and self.frame_interval != 1:
            raise ValueError("set fps or frame_interval, not both")
        return self
