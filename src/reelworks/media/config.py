"""Recipe keys for reading media files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from reelworks.core.config import Config

ShortClips = Literal["reject", "hold", "loop"]
RenamedClips = Literal["same", "new"]


class DataConfig(Config):
    """`[data]`: which frames of a clip are read, how they are cropped to a bucket, and by how many workers."""

    frame_interval: int = Field(1, ge=1, description="read each n-th frame")
    fps: Annotated[float, Field(gt=0)] | Literal["model"] | None = Field(
        None,
        description='read at this frame rate instead; "model" is the rate that the model was trained with '
        "(docs/reference/models.md). Clips with a lower rate keep their own",
    )
    clip_start: Literal["random", "start"] = Field("random", description="first frame used of a longer clip")
    short_clips: ShortClips = Field(
        "reject",
        description='what to do with videos that have fewer frames than every bucket entry of their size: "reject" '
        'leaves them out (too_short), "hold" repeats their last frame, "loop" plays them again from the start; both '
        "use the entry with the fewest frames",
    )
    crop: Literal["center", "random"] = Field("center", description="part used of a wider or taller frame")
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

    @property
    def frame_rate(self) -> float | None:
        """Frame rate to read at, in a config of a recipe, where "model" is replaced by a number."""
        assert self.fps != "model", "a recipe replaces it"
        return self.fps

    @model_validator(mode="after")
    def _one_rate(self) -> DataConfig:
        if self.fps is not None and self.frame_interval != 1:
            raise ValueError("set fps or frame_interval, not both")
        return self
