"""A clip of a folder whose trainer changes, as a scan finds it."""

from __future__ import annotations

from typing import NamedTuple


class Clip(NamedTuple):
    """A picture or video that can be read, as a scan finds it."""

    dataset: int  # number of its dataset in the recipe
    path: str  # below the folder of the dataset
    width: int
    height: int
    num_frames: int  # 1 of a picture
    fps: float  # 0 of a picture
    is_image: bool
    caption: str | None
