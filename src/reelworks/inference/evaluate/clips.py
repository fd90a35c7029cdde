"""Clips and pictures to measure: from a folder, with their captions and references, or from memory.

Frames are uint8 RGB arrays `[T, H, W, 3]`, as a player shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from reelworks.core.arrays import Frames
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.catalog.scan import caption_texts
from reelworks.data.media import decode_pool, formats, probe
from reelworks.data.media.decode import Request
from reelworks.data.media.formats import ProbeError
from reelworks.data.media.reading import MediaError


@dataclass(frozen=True)
class MeasuredClip:
    """A clip or picture to measure.

    Attributes:
        name: Name without suffix, by which a reference is found.
        frames: `[T, H, W, 3]` uint8; a picture has one frame.
        caption: Its prompt; None if it is not known.
        reference: Frames of the reference of the same name; None if there is none.
    """

    name: str
    frames: Frames
    caption: str | None = None
    reference: Frames | None = None

    def some_frames(self, count: int) -> Frames:
        """Return at most `count` frames in equal distances, the first and the last among them."""
        where = np.linspace(0, len(self.frames) - 1, min(count, len(self.frames))).round().astype(np.int64)
        return self.frames[where]

    def mirrored(self) -> MeasuredClip:
        """Return the clip with its frames mirrored left to right."""
        return replace(self, frames=np.ascontiguousarray(self.frames[:, :, ::-1]))


@dataclass(frozen=True)
class Unreadable:
    """A file that cannot be decoded, and the reason."""

    name: str
    reason: str


def files_of(folder: Path, option: str) -> dict[str, Path]:
    """Return the media files of a folder and its subfolders by their path without suffix.

    Raises:
        UserError: There is no such folder, it holds no media, or two files differ in their suffix only.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if hidden or path.suffix.lower() not in formats.EXTENSIONS or not path.is_file():
            continue
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in found:
            raise UserError(
                f"{path.name} and {found[name].name} have the same name, by which references are found",
                code="two-files-one-name",
                field=option,
                value=str(folder),
                remedy="rename one of them",
            )
        found[name] = path
    if not found:
        raise UserError(
            "no clip or picture is there" if folder.is_dir() else "there is no such folder",
            code="nothing-to-measure",
            field=option,
            value=str(folder),
            remedy="name a folder of clips or pictures",
        )
    return found


def read(
    files: dict[str, Path], references: dict[str, Path] | None = None, captions: dict[str, str] | None = None
) -> Iterator[MeasuredClip | Unreadable]:
    """Decode files one after the other, each with its caption and its reference, if there are any.

    A caption is that of `captions`, or the text in a file of the same name with the suffix `.txt`.
    """
    for name, path in files.items():
        reference = (references or {}).get(name)
        try:
            caption = caption_texts.beside(path) if captions is None or name not in captions else captions[name]
            yield MeasuredClip(name, frames_of(path), caption, None if reference is None else frames_of(reference))
        except (MediaError, ProbeError) as error:
            yield Unreadable(name, str(error))
        except OSError as error:
            yield Unreadable(name, f"cannot be read: {error.strerror or error}")


def frames_of(path: Path) -> Frames:
    """Decode a whole file; raises `MediaError` or `ProbeError` for one that is damaged."""
    facts = decode_pool.within_limit(probe.probe, path)
    return decode_pool.load(Request(path, facts.kind == "image", Shape(facts.num_frames, facts.height, facts.width)))
