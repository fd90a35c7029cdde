"""Write the demo dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from reelworks.core.errors import UserError
from reelworks.demo import damage, scenes, writers


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
        yield _Job(
            picture.name, picture.scene.subject.caption, partial(writers.write_picture, picture=picture)
        )
    for bad in damage.BAD:
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
