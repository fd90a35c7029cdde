"""Recipe keys for reading media files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator, model_validator

from reelworks.core import units
from reelworks.core.config import Private, PublicConfig, Told, open_set
from reelworks.core.errors import UserError
from reelworks.data.media.framing import FILTERS

_PREFETCH = "2GB"
PREFETCH_BYTES = units.size_bytes(_PREFETCH, "data.prefetch_bytes")

ShortClips = Literal["reject", "hold", "loop"]
RenamedClips = Literal["same", "new"]
if TYPE_CHECKING:
    Resize = str
else:
    Resize = Annotated[Literal[tuple(FILTERS)], open_set(FILTERS)]
# Keys that only a recipe uses, since a `Loader` has them as arguments, and a catalog its measures.
OF_RECIPES = {"measures", "num_workers", "decode_timeout", "prefetch_bytes", "max_decode_failures"}


class DataConfig(PublicConfig):
    """`[data]`: which frames of a clip are read, how they are cropped to a bucket, and in a recipe by how many workers.

    Attributes:
        frame_interval: Read each n-th frame.
        fps: Read at this frame rate instead; "model" is the rate that the model was trained with
            (docs/reference/models.md). Clips with a lower rate keep their own; of clips with a variable rate, each frame
            is the one that is shown at its time, which may come twice.
        clip_start: First frame used of a longer clip.
        short_clips: What to do with videos that have fewer frames than every bucket entry of their size: "reject" leaves
            them out (too_short), "hold" repeats their last frame, "loop" plays them again from the start; both use the
            entry with the fewest frames.
        crop: Part used of a wider or taller frame; "random" draws it anew in each epoch, "top" keeps the upper edge of a
            taller one, where portraits have the head.
        resize: Filter of resizing. Each averages over all pixels that it makes smaller; "lanczos" is sharper and may
            leave halos at edges, "area" is softer and leaves none.
        hdr: What to do with videos of high dynamic range (PQ, HLG): "tone_map" converts their colours to SDR, "reject"
            leaves them out.
        interlaced: For interlaced videos: "deinterlace" rebuilds frames from their fields, "reject" leaves them out.
        alpha_color: Red, green and blue of the background over which transparent pixels are blended.
        locality: Read clips from one folder, or clips cut from one file, close together within an epoch; for footage on
            slow or remote storage. Default: clips are shuffled over the whole epoch.
        shuffle_window: With locality: approximate number of clips, of whole folders or files, shuffled together.
        renamed_clips: When a dataset is renamed, split or swapped with another in mid-epoch, its files are recognised by
            content and path: "same" continues each as the clip it was, "new" trains it again in this epoch.
        measures: Measures of clips after the scan, as by `reelworks measure`, whose columns filters and captions can use:
            ["sharpness", "motion", "duplicates"]; or classes of yours, as in "faces.py:Faces"
            (docs/how-to/know-your-data.md).
        num_workers: Decoding processes, with two threads each; 0 decodes in two threads of the trainer.
        decode_timeout: Seconds that a decoding process may spend on one clip before it is killed and the clip recorded as
            failed; its other clip is decoded again. A thread (num_workers = 0) cannot be killed: one that hangs goes on
            beside the run.
        prefetch_bytes: Memory of each training process for frames decoded and stored latents read ahead of training, from
            one epoch into the next, as in "500MB"; at least one micro-batch is decoded ahead, and at most 64.
        max_decode_failures: Stop when more than this fraction of an epoch's clips cannot be decoded.

    Examples:
        >>> import reelworks as rw
        >>> rw.DataConfig(fps=16.0, crop="random").short_clips
        'reject'
    """

    frame_interval: int = Field(default=1, ge=1)
    fps: Annotated[float, Field(gt=0)] | Literal["model"] | None = None
    clip_start: Literal["random", "start"] = "random"
    short_clips: ShortClips = "reject"
    crop: Literal["center", "random", "top"] = "center"
    resize: Resize = "bicubic"
    hdr: Literal["tone_map", "reject"] = "tone_map"
    interlaced: Literal["deinterlace", "reject"] = "deinterlace"
    alpha_color: list[int] = Field(default=[255, 255, 255], min_length=3, max_length=3)
    locality: Literal["folder", "file"] | None = None
    shuffle_window: int = Field(default=10_000, ge=1)
    renamed_clips: RenamedClips = "same"
    measures: Private[list[Annotated[str, Field(min_length=1)]]] = Field(default=[])
    num_workers: int = Field(default=2, ge=0)
    decode_timeout: float = Field(default=120.0, gt=0)
    prefetch_bytes: Told[str] = _PREFETCH
    max_decode_failures: float = Field(default=0.1, ge=0, le=1)

    @property
    def frame_rate(self) -> float | None:
        """Frame rate to read at, in a config of a recipe, where "model" is replaced by a number."""
        assert self.fps != "model", "a recipe replaces it"
        return self.fps

    @property
    def prefetch_budget_bytes(self) -> int:
        """`prefetch_bytes` as a number."""
        return units.size_bytes(self.prefetch_bytes, "data.prefetch_bytes")

    @model_validator(mode="after")
    def _known_size(self) -> DataConfig:
        _ = self.prefetch_budget_bytes
        return self

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
            raise UserError(
                "data.fps chooses frames by their time, and an interval those of the file",
                code="rate-and-interval",
                field="data.frame_interval",
                value=self.frame_interval,
                remedy="leave it out, or data.fps",
            )
        return self
