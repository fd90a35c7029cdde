"""Filters of resizing by the names that `data.resize` takes; light, since recipes are read without decoders."""

from __future__ import annotations

from dataclasses import dataclass, field

from reelworks.core.errors import UserError


@dataclass(frozen=True)
class ResizeFilter:
    """A filter that averages over all pixels that it makes smaller.

    Attributes:
        name: Name in recipes.
        swscale: Flag of libswscale for videos, a name in `av.video.reformatter.Interpolation`.
        pillow: Filter of Pillow for pictures, a name in `PIL.Image.Resampling`.
        effect: How it differs from bicubic, for the reference of recipes.
    """

    name: str
    swscale: str
    pillow: str
    effect: str = field(default="", compare=False)


FILTERS: dict[str, ResizeFilter] = {}


def register(resize_filter: ResizeFilter) -> None:
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
    ResizeFilter("lanczos", "LANCZOS", "LANCZOS", "is sharper and may leave halos at edges"),
    ResizeFilter("area", "AREA", "BOX", "is softer and leaves none"),
):
    register(_filter)
