"""Fit frames to a shape: filters of resizing, and the place of the part that is cut out.

Light, since recipes are read without decoders.
"""

from __future__ import annotations

from dataclasses import dataclass

from reelworks.core.errors import UserError


@dataclass(frozen=True)
class ResizeFilter:
    """A filter that averages over all pixels that it makes smaller.

    Attributes:
        name: Name in recipes.
        swscale: Flag of libswscale for videos, a name in `av.video.reformatter.Interpolation`.
        pillow: Filter of Pillow for pictures, a name in `PIL.Image.Resampling`; None where Pillow has none, and libswscale
            resizes pictures too.
    """

    name: str
    swscale: str
    pillow: str | None


FILTERS: dict[str, ResizeFilter] = {}


def register_filter(resize_filter: ResizeFilter) -> None:
    """Make a filter known to recipes of this process by its name, which must be free."""
    if resize_filter.name in FILTERS:
        raise UserError(
            f"two filters of resizing have the name {resize_filter.name!r}",
            code="duplicate-filter-name",
            field="resize_filter",
            value=resize_filter.name,
            remedy="choose another name",
        )
    FILTERS[resize_filter.name] = resize_filter


BICUBIC = ResizeFilter("bicubic", "BICUBIC", "BICUBIC")
for _filter in (
    BICUBIC,
    ResizeFilter("lanczos", "LANCZOS", "LANCZOS"),
    # Pillow's BOX counts a pixel fully or not at all, so that it is close to nearest neighbour at a ratio such as 1.3.
    ResizeFilter("area", "AREA", None),
):
    register_filter(_filter)


def cover(height: int, width: int, target_height: int, target_width: int) -> tuple[int, int]:
    """Return the size, height and width, to which a frame is resized so that it just covers the target."""
    scale = max(target_height / height, target_width / width)
    return round(height * scale), round(width * scale)


def inside(height: int, width: int, target_height: int, target_width: int) -> tuple[int, int]:
    """Return the size, height and width, to which a frame is resized so that all of it just fits into the target."""
    scale = min(target_height / height, target_width / width)
    return max(int(height * scale), 1), max(int(width * scale), 1)


def crop_offset(size: int, target: int, draw: float) -> int:
    """Return the first pixel of a crop along one axis; a draw of 0.5 is the centre."""
    return min(int(draw * (size - target + 1)), size - target)


@dataclass(frozen=True)
class CropBox:
    """Size of a file as displayed, the size to which it is resized, and the crop's place in that; all in pixels.

    `top` and `left` count from the upper left corner of the resized frame; if the clip is mirrored, of the mirrored
    one. Of a rotated clip they are those of an upright rectangle of the same size and centre.
    """

    original_height: int
    original_width: int
    resized_height: int
    resized_width: int
    top: int
    left: int
