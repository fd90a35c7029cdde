"""Write the demo dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

from reelworks.core.errors import UserError
from reelworks.demo import formats, scenes, writers
from reelworks.demo.scenes import Subject

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


@dataclass(frozen=True)
class DemoSummary:
    """Files that `make` wrote.

    Attributes:
        folder: Folder of the files.
        videos: Names of the good videos.
        pictures: Names of the good pictures.
        bad: Names of the bad files.
        total_bytes: Total size, captions included.
    """

    folder: Path
    videos: tuple[str, ...]
    pictures: tuple[str, ...]
    bad: tuple[str, ...]
    total_bytes: int


@dataclass(frozen=True)
class _Job:
    """A file, its caption (None: no caption file) and how to write it."""

    name: str
    caption: str | None
    write: Callable[[Path], None]

    @property
    def caption_name(self) -> str:
        return f"{Path(self.name).stem}.txt"


def make(folder: Path, *, seed: int = 0, on_file: Callable[[str], None] | None = None) -> DemoSummary:
    """Write about 120 videos and pictures with caption files, a few of them bad on purpose.

    Args:
        folder: Created if missing. Files of an earlier call with the same seed are overwritten.
        seed: Seed of the scenes. On one machine the same seed gives the same bytes.
        on_file: Called with each file's name once it is written.

    Raises:
        UserError: The folder holds other files or cannot be written, or PyAV lacks an encoder.
    """
    writers.check_encoders()
    jobs = list(_jobs(seed))
    try:
        _prepare(folder, jobs)
        for job in jobs:
            _write(folder, job)
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
    return _summary(folder, jobs)


def _jobs(seed: int) -> Iterator[_Job]:
    for video in scenes.videos(seed):
        yield _Job(video.name, video.scene.subject.caption, partial(writers.write_video, video=video))
    for picture in scenes.pictures(seed):
        yield _Job(picture.name, picture.scene.subject.caption, partial(writers.write_picture, picture=picture))
    for bad in BAD:
        yield _Job(bad.name, bad.caption, partial(bad.write, seed))


def _prepare(folder: Path, jobs: list[_Job]) -> None:
    """Create the folder, or refuse one with files of others; hidden files are ignored."""
    if folder.exists() and not folder.is_dir():
        raise _refusal(folder, "this is a file, not a folder")
    folder.mkdir(parents=True, exist_ok=True)
    ours = {job.name for job in jobs} | {job.caption_name for job in jobs}
    others = sorted(e.name for e in folder.iterdir() if e.name not in ours and not e.name.startswith("."))
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise _refusal(folder, f'the folder holds other files ("{others[0]}"{more})')


def _refusal(folder: Path, problem: str) -> UserError:
    return UserError(
        problem,
        code="demo-folder-in-use",
        field="DIR",
        value=str(folder),
        remedy="choose an empty folder or one that does not exist yet, or delete this one first",
    )


def _write(folder: Path, job: _Job) -> None:
    job.write(folder / job.name)
    if job.caption is not None:
        text = f"{job.caption}\n" if job.caption else ""
        (folder / job.caption_name).write_text(text)


def _summary(folder: Path, jobs: list[_Job]) -> DemoSummary:
    names = [job.name for job in jobs]
    return DemoSummary(
        folder=folder,
        videos=tuple(n for n in names if n.startswith("video-")),
        pictures=tuple(n for n in names if n.startswith("picture-")),
        bad=tuple(n for n in names if n.startswith("bad-")),
        total_bytes=sum(e.stat().st_size for e in folder.iterdir() if not e.name.startswith(".")),
    )
