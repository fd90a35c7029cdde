"""The contract of measures: values of single clips, of networks, and values that compare all clips of a catalog.

A measure is one class without a base class, constructed without arguments once in each process. The values of a clip are
kept by its content and by the measure's name and version: raise `version` when they change.

Legend: T frames, H height, W width, 3 colours, S samples, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from reelworks.data.catalog.store.measured_columns import Column
from reelworks.data.media.location import MediaPath

Luma = NDArray[np.uint8]
# What of a clip is decoded: single frames at full size, all frames of runs at a small size, the sound; and its caption.
Reads = Literal["stills", "runs", "sound", "caption"]
MISSING = float("nan")  # the value of a clip that has none, such as the motion of a picture


class _ReadOnly:
    """Arrays that several measures are given: one that wrote into them would change the values of the others."""

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)


@dataclass
class Still(_ReadOnly):
    """One frame at the size of the file as displayed.

    Attributes:
        rgb: Its pixels.
        active: Rows and columns within the black borders of the clip.
    """

    rgb: NDArray[np.uint8]
    active: tuple[slice, slice] = (slice(None), slice(None))

    @cached_property
    def luma_picture(self) -> Image.Image:
        """Luma (BT.601) of the whole frame as a picture of Pillow."""
        return Image.fromarray(self.rgb).convert("L")

    @cached_property
    def luma(self) -> Luma:
        """Luma of the whole frame, `[H, W]`."""
        return np.asarray(self.luma_picture)

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, upper, right and lower edge of the picture within its borders."""
        (top, bottom, _), (left, right, _) = (
            lines.indices(size) for lines, size in zip(self.active, self.rgb.shape, strict=False)
        )
        return left, top, right, bottom


@dataclass(frozen=True)
class SampledClip(_ReadOnly):
    """A clip as measures see it, decoded once for all of them; what no measure reads is empty.

    Attributes:
        path: The file on this machine.
        height, width: Size of its frames in pixels, as displayed.
        num_frames: Number of all its frames.
        stills: A few evenly spaced frames at full size.
        runs: Luma of frames at a small size: all of a short clip, else runs of neighbours.
        is_next: Mask `[T-1]` of the frames of `runs` that are followed by their neighbour.
        samples: Sound as signed 16-bit numbers; None without sound.
        shared: Results that several measures of the clip use.
    """

    path: MediaPath
    is_image: bool
    height: int
    width: int
    num_frames: int
    fps: float
    stills: tuple[Still, ...] = ()
    runs: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 1, 1), dtype=np.float32))
    is_next: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    samples: NDArray[np.int16] | None = None
    sample_rate: int = 0
    shared: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ComparedClips(_ReadOnly):
    """Clips of a catalog that are compared with each other; arrays have one element for each.

    Attributes:
        features: What the measure kept of each, `[N, bytes]`.
        pixels: Height times width.
        uid: Identity of each, by which ties are broken, since the order of clips changes.
        former: Values that the catalog has of each now, `[N, columns]`; NaN where it has none, or those of a list.
    """

    features: NDArray[np.uint8]
    pixels: NDArray[np.int64]
    num_frames: NDArray[np.int64]
    uid: NDArray[np.uint64]
    former: NDArray[np.float64]


class MeasureClass(Protocol):
    """Attributes of every measure's class.

    Attributes:
        name: Name on the command line and in recipes.
        version: Number that is raised when values of the same clip change.
        columns: Columns of the catalog that it gives.
        reads: What of a clip it reads.
    """

    name: str
    version: int
    columns: tuple[Column, ...]
    reads: tuple[Reads, ...]


@runtime_checkable
class ClipMeasure(MeasureClass, Protocol):
    """A measure of single clips."""

    def values(self, clip: SampledClip) -> Sequence[float]:
        """Return the value of each column; NaN for one that the clip does not have."""
        ...


@runtime_checkable
class CatalogMeasure(MeasureClass, Protocol):
    """A measure that compares all clips of a catalog by features that are kept of each.

    Attributes:
        feature_bytes: Length of the features of each clip.
    """

    feature_bytes: int

    def features(self, clip: SampledClip) -> bytes:
        """Return the features of a clip, `feature_bytes` of them."""
        ...

    def compare(self, clips: ComparedClips) -> NDArray[np.float64]:
        """Return the values of all clips, `[N, columns]`."""
        ...


Measure: TypeAlias = ClipMeasure | CatalogMeasure


@dataclass(frozen=True)
class ClipPictures(_ReadOnly):
    """A clip as a network sees it.

    Attributes:
        frames: A few evenly spaced frames within black borders, `[T, H, W, 3]`, uint8 RGB, of at most `pictures_px` at the shorter side.
        caption: Its caption; empty without one.
    """

    frames: NDArray[np.uint8]
    caption: str


@runtime_checkable
class NetworkMeasure(MeasureClass, Protocol):
    """A measure by a network, which the main process runs on frames that the pool decodes.

    It is made with the folder of its weights. Its class attribute `version` is made of the one that
    its author raises and of the weights. One that compares all clips of a catalog has `feature_bytes` and a static method
    `compare` as `CatalogMeasure` has them, for which the network is not loaded.

    Attributes:
        pictures_px: Size of the shorter side that the frames are made smaller to, if they are larger.
    """

    pictures_px: int

    def of_clips(self, clips: Sequence[ClipPictures]) -> NDArray[np.float64] | NDArray[np.uint8]:
        """Return the values of clips, `[N, columns]`, NaN for one that a clip does not have; or features, `[N, feature_bytes]`."""
        ...
