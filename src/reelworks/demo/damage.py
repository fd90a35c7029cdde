"""Bad files, named after their defect, which a scan must report and training must survive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from reelworks.demo import formats, scenes, writers
from reelworks.demo.palette import Subject

# This cut loses an index at the file's end, and a JPEG's picture data.
_KEPT_SHARE = 0.4

# A combination that captions may have; see `palette.LEFT_OUT`.
_SUBJECT = Subject("cyan", "circle", "left", "dark")
_STILL = Subject("cyan", "circle", None, "dark")


@dataclass(frozen=True)
class Bad:
    """A bad file to write.

    Attributes:
        name: File name, which names the defect.
        caption: Text of the caption file; None writes none.
        write: Function that writes the file from a seed and a path.
    """

    name: str
    caption: str | None
    write: Callable[[int, Path], None]


def _video(seed: int, path: Path, num_frames: int = 24) -> None:
    scene = scenes.scene(_SUBJECT, (96, 64), num_frames=num_frames, fps=Fraction(24), key=(seed, path.name))
    writers.write_video(path, scenes.Video(path.name, scene, formats.H264_MP4))


def _picture(seed: int, path: Path, size: formats.Size = (128, 96)) -> None:
    scene = scenes.scene(_STILL, size, key=(seed, path.name))
    writers.write_picture(path, scenes.Picture(path.name, scene, formats.PictureFormat(path.suffix)))


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * _KEPT_SHARE)])


def _cut_video(seed: int, path: Path) -> None:
    _video(seed, path)
    _cut(path)


def _cut_picture(seed: int, path: Path) -> None:
    _picture(seed, path)
    _cut(path)


def _empty(seed: int, path: Path) -> None:
    path.write_bytes(b"")


def _text(seed: int, path: Path) -> None:
    path.write_text("This is a note that somebody renamed; no video player will open it.\n" * 8)


def _three_frames(seed: int, path: Path) -> None:
    _video(seed, path, num_frames=3)


def _tiny(seed: int, path: Path) -> None:
    _picture(seed, path, (8, 8))


BAD: tuple[Bad, ...] = (
    Bad("bad-truncated.mp4", _SUBJECT.caption, _cut_video),
    Bad("bad-truncated-picture.jpg", _STILL.caption, _cut_picture),
    Bad("bad-zero-bytes.mp4", _SUBJECT.caption, _empty),
    Bad("bad-text-not-video.mp4", _SUBJECT.caption, _text),
    Bad("bad-no-caption.mp4", None, _video),
    Bad("bad-empty-caption.mp4", "", _video),
    Bad("bad-three-frames.mp4", _SUBJECT.caption, _three_frames),
    Bad("bad-8x8-px.png", _STILL.caption, _tiny),
)
