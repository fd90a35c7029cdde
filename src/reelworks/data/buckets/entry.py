"""The entries of a bucket table, and the draws by which they take clips."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from reelworks.data.buckets.opensora.ratios import Resolution

# What a network does not store of a forward pass and computes again in the backward pass (gradient checkpointing): False,
# nothing; "selective", all but the results of matrix products and attention; True, all but the inputs of its blocks; a
# number between 0 and 1, the share of blocks that are recomputed like True, while the others are like "selective".
Recomputation = bool | float | Literal["selective"]

_SELECTIVE = 0.25  # of a forward pass, about: in compiled blocks half of it, in others only what lies between products


def recomputed_share(recomputation: Recomputation | None) -> float:
    """Return the share of a forward pass that is computed a second time."""
    if isinstance(recomputation, float):
        return _SELECTIVE + (1 - _SELECTIVE) * recomputation
    return _SELECTIVE if recomputation == "selective" else float(recomputation or 0)


class Draws(Enum):
    """Draws that decide whether a clip that fits an entry is assigned to it.

    Attributes:
        ONE: One draw, by `keep_prob`; a clip that does not pass tries the next entry.
        LENGTH_FIRST, RESOLUTION_FIRST: Those of a table of Open-Sora, by `keep_length` whether a clip stays at the length,
            and by `keep_prob` whether it stays at the resolution, in this order or the other.
    """

    ONE = auto()
    LENGTH_FIRST = auto()
    RESOLUTION_FIRST = auto()


@dataclass(frozen=True)
class Entry:
    """A resolution at one frame count."""

    resolution: str
    pixels: int  # total pixels of a frame
    num_frames: int
    batch_size: int  # clips per micro-batch; 0 for an entry that takes no clip
    keep_prob: float  # probability that a clip which fits is assigned here
    size: tuple[int, int] | None = None  # (height, width) if the resolution is a single size
    named: Resolution | None = None  # the resolution with all its sizes, in a table of Open-Sora
    keep_length: float = 1.0  # probability to stay at this length, in a table of Open-Sora
    spare_frames: int = 0  # frames that a video must have in addition to `num_frames`
    pixel_share: float = 1.0  # share of `pixels` that a clip must have
    sequence_degree: int | None = None  # ranks that share a clip; None for all of a sequence group
    recomputation: Recomputation | None = None  # None for that of the whole network

    @property
    def is_used(self) -> bool:
        """Whether any clip can be drawn for this entry."""
        return self.keep_prob > 0 and self.keep_length > 0

    @property
    def needed_frames(self) -> int:
        """Minimum of frames of a clip."""
        return self.num_frames + (self.spare_frames if self.num_frames > 1 else 0)

    @property
    def needed_pixels(self) -> float:
        """Minimum of total pixels of a clip."""
        return self.pixels * self.pixel_share

    @property
    def hash_words(self) -> tuple[int, ...]:
        """Hash words of this entry's random draws, which do not depend on the other entries."""
        return (self.pixels, self.num_frames, *(self.size or ()))

    def __str__(self) -> str:
        return f"{self.resolution} ×{self.num_frames}"
