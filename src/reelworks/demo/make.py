"""Write the demo dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import NamedTuple

from reelworks.core.errors import UserError
from reelworks.demo import formats, scenes, writers
from reelworks.demo.scenes import Subject

# This cut loses an index at the file's end, and a JPEG's picture data.
_KEPT_SHARE = 0.4

# A combination that captions may have; see `scenes.LEFT_OUT`.
_SUBJECT = Subject("cyan", "circle", "left", "dark")
_STILL = Subject("cyan", "circle", None, "dark")


class Bad(NamedTuple):
    """A bad file that is named after its defect, its caption (None: no caption file) and how to write it by a seed."""

    name: str
    caption: str | None
    write: Callable[[int, Path], None]


def _video(seed: int, path: Path, num_frames: int = 24) -> None:
    scene = scenes.scene(_SUBJECT, (96, 64), num_frames=num_frames, fps=Fraction(24), key=(seed, path.name))
    writers.write_video(path, scenes.Video(path.name, scene, formats.H264_MP4))


def _picture(seed: int, path: Path, size: formats.Size = (128, 96)) -> None:
    scene = scenes.scene(_STILL, size, key=(seed, path.name))
    writers.write_picture(path, scenes.Picture(path.name, scene, formats.PictureFormat(path.suffix)))


def _cut(write: Callable[[int, Path], None], seed: int, path: Path) -> None:
    write(seed, path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * _KEPT_SHARE)])


def _text(text: str, seed: int, path: Path) -> None:
    path.write_text(text, encoding="utf-8")


_NOTE = "This is a note that somebody renamed; no video player will open it.\n" * 8
BAD = (
    Bad("bad-truncated.mp4", _SUBJECT.caption, partial(_cut, _video)),
    Bad("bad-truncated-picture.jpg", _STILL.caption, partial(_cut, _picture)),
    Bad("bad-zero-bytes.mp4", _SUBJECT.caption, partial(_text, "")),
    Bad("bad-text-not-video.mp4", _SUBJECT.caption, partial(_text, _NOTE)),
    Bad("bad-no-caption.mp4", None, _video),
    Bad("bad-empty-caption.mp4", "", _video),
    Bad("bad-three-frames.mp4", _SUBJECT.caption, partial(_video, num_frames=3)),
    Bad("bad-8x8-px.png", _STILL.caption, partial(_picture, size=(8, 8))),
)


@dataclass(frozen=True)
class DemoSummary:
    """Names of the files that `make` wrote, and their total size, captions included."""

    folder: Path
    videos: list[str]
    pictures: list[str]
    bad: list[str]
    total_bytes: int


class _FileToWrite(NamedTuple):
    """A file, its caption (None: no caption file) and how to write it."""

    name: str
    caption: str | None
    write: Callable[[Path], None]

    @property
    def caption_name(self) -> str:
        return f"{Path(self.name).stem}.txt"


def make(folder: Path, *, seed: int = 0, on_file: Callable[[str], None] | None = None) -> DemoSummary:
    """Write about 350 videos and pictures with caption files, a few of them bad on purpose.

    Files of an earlier call with the same seed are overwritten; on one machine the same seed gives the same bytes.
    `on_file` is called with each file's name once it is written.
    """
    writers.check_encoders()
    jobs = list(_jobs(seed))
    try:
        _prepare(folder, jobs)
        for job in jobs:
            job.write(folder / job.name)
            if job.caption is not None:
                (folder / job.caption_name).write_text(f"{job.caption}\n" if job.caption else "", encoding="utf-8")
            if on_file is not None:
                on_file(job.name)
    except OSError as error:
        raise UserError(
            f"the demo data cannot be written ({error.strerror or error})",
            code="file-unwritable",
            field="DIR",
            value=str(folder),
            remedy="choose a folder you may write to, on a disk with 20 MB free",
        ) from error
    videos, pictures, bad = (
        [j.name for j in jobs if j.name.startswith(kind)] for kind in ("video-", "picture-", "bad-")
    )
    total_bytes = sum(e.stat().st_size for e in folder.iterdir() if not e.name.startswith("."))
    return DemoSummary(folder, videos, pictures, bad, total_bytes)


def _jobs(seed: int) -> Iterator[_FileToWrite]:
    for video in scenes.videos(seed):
        yield _FileToWrite(video.name, video.scene.subject.caption, partial(writers.write_video, video=video))
    for picture in scenes.pictures(seed):
        yield _FileToWrite(picture.name, picture.scene.subject.caption, partial(writers.write_picture, picture=picture))
    for bad in BAD:
        yield _FileToWrite(bad.name, bad.caption, partial(bad.write, seed))


def _prepare(folder: Path, jobs: list[_FileToWrite]) -> None:
    """Create the folder, or refuse one with files of others; hidden files are ignored."""
    if folder.exists() and not folder.is_dir():
        problem = "this is a file, not a folder"
    else:
        folder.mkdir(parents=True, exist_ok=True)
        ours = {job.name for job in jobs} | {job.caption_name for job in jobs}
        others = sorted(e.name for e in folder.iterdir() if e.name not in ours and not e.name.startswith("."))
        if not others:
            return
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        problem = f'the folder holds other files ("{others[0]}"{more})'
    raise UserError(
        problem,
        code="demo-folder-in-use",
        field="DIR",
        value=str(folder),
        remedy="choose an empty folder or one that does not exist yet, or delete this one first",
    )
