"""Recipe keys of the bucket table."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from reelworks.core.config import Config

DEFAULT_ASPECT_RATIOS = ["21:9", "16:9", "3:2", "4:3", "1:1", "3:4", "2:3", "9:16", "9:21"]


class BucketEntryConfig(Config):
    """One `[[bucket]]`: a resolution crossed with frame counts."""

    resolution: str = Field(
        description='"480p" (480 lines at 16:9), "512px" (512 × 512 pixels in all), or one size as "480x854" '
        "(height x width)"
    )
    num_frames: int | list[int] = Field(description="frame counts; pictures use 1, videos never do")
    batch_size: int | list[int] | None = Field(None, description="clips of a micro-batch, per GPU")
    keep_prob: float | list[float] = Field(1.0, description="chance that a clip which fits is kept here")

    @model_validator(mode="after")
    def _check(self) -> BucketEntryConfig:
        frames = self.frames()
        for name, values in (("batch_size", self.batch_size), ("keep_prob", self.keep_prob)):
            if isinstance(values, list) and len(values) != len(frames):
                raise ValueError(f"{name} lists {len(values)} values for {len(frames)} frame counts")
        if any(f < 1 for f in frames):
            raise ValueError("num_frames must be at least 1")
        if any(b is not None and b < 1 for b in self.batch_sizes()):
            raise ValueError("batch_size must be at least 1")
        if any(not 0 <= p <= 1 for p in self.keep_probs()):
            raise ValueError("keep_prob must lie in [0, 1]")
        return self

    def frames(self) -> list[int]:
        """Frame counts as a list."""
        return self.num_frames if isinstance(self.num_frames, list) else [self.num_frames]

    def batch_sizes(self) -> list[int | None]:
        """Batch size for each frame count."""
        if isinstance(self.batch_size, list):
            return list(self.batch_size)
        return [self.batch_size] * len(self.frames())

    def keep_probs(self) -> list[float]:
        """Keep probability for each frame count."""
        if isinstance(self.keep_prob, list):
            return self.keep_prob
        return [self.keep_prob] * len(self.frames())


class BucketsConfig(Config):
    """`[buckets]`: what holds for all entries."""

    batch_size: int = Field(1, ge=1, description="where an entry names none")
    incomplete_batch: Literal["partial", "pad"] = Field(
        "partial", description="last micro-batch of a bucket: fewer clips, or weight-0 copies"
    )
    aspect_ratios: list[str] = Field(DEFAULT_ASPECT_RATIOS, description="width:height")
    upscale: bool = Field(False, description="let clips smaller than a bucket be enlarged")
    max_crop: float = Field(0.5, gt=0, lt=1, description="largest share of a frame that a crop may cut")

    @field_validator("aspect_ratios")
    @classmethod
    def _ratios(cls, value: list[str]) -> list[str]:
        if not value:
            raise ValueError("name at least one aspect ratio")
        for text in value:
            parse_ratio(text)
        return value


def parse_ratio(text: str) -> float:
    """Read `"16:9"` (width:height) as a number.

    Raises:
        ValueError: It is not two positive numbers.
    """
    try:
        width, height = (float(part) for part in text.split(":"))
    except ValueError:
        raise ValueError(f'aspect ratio "{text}" is not of the form "16:9" (width:height)') from None
    if width <= 0 or height <= 0:
        raise ValueError(f'aspect ratio "{text}" must be positive')
    return width / height
