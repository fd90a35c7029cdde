"""A case: a file, how it is made, and what is known of it by the way it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numbered_frames as drawn
from numbered_frames import SIZE, Frame

from drills._footage import program

Words = Sequence[object]  # of a command line
LONG = 64  # frames of a film that is cut


def underlined(suffix: str) -> str:
    """Return a suffix as a part of a case's name."""
    return suffix.replace(".", "_")


class NotMadeError(Exception):
    """A file cannot be made here; the message says why."""


class Shop:
    """Makes films in a folder of its own, by the ffmpeg program."""

    def __init__(self, folder: Path, first: int = 0) -> None:
        self.folder, self.first = folder, first  # what is added to the numbers of all frames
        folder.mkdir(parents=True, exist_ok=True)

    def film(
        self,
        target: Path | str,
        codec: Words,
        *,
        numbers: Iterable[int] = range(24),
        size: tuple[int, int] = SIZE,
        rate: str = "24",
        filters: str = "",
        sound: bool = False,
    ) -> Path:
        """Encode frames of these numbers to a path, or to a file of this name in the own folder, and return its path."""
        path = self.folder / target
        words: list[object] = [
            "-f",
            "rawvideo",
            "-pix_fmt",
            "rgb24",
            "-s",
            f"{size[0]}x{size[1]}",
            "-r",
            rate,
            "-i",
            "-",
        ]
        if sound:
            words += ["-f", "lavfi", "-i", "sine=d=1"]
        words += ["-vf", filters] if filters else []
        film = drawn.film((self.first + number for number in numbers), size)
        program.run(*words, *codec, *_BITEXACT, path, stdin=film)
        return path

    def copy(self, source: Path, target: Path | str, *words: object, before: Words = ()) -> Path:
        """Copy a film without encoding it, with further words of the command line, and return the copy's path."""
        path = self.folder / target
        program.run(*before, "-i", source, "-c", "copy", *words, *_BITEXACT, path)
        return path

    def tool(self, name: str, *words: object) -> None:
        """Run another program."""
        if not program.has(name):
            raise NotMadeError(f"there is no program {name}")
        program.run(*words, program=name)


_BITEXACT = ("-fflags", "+bitexact", "-flags:v", "+bitexact", "-threads", "1")
Make = Callable[[Shop, Path], object]


@dataclass(frozen=True)
class Case:
    """A film or animation to be made, and what is known of it."""

    name: str  # of the case, and of its file before the suffix
    suffix: str
    make: Make
    stream: int = 0  # number of the video stream that players show
    decoder: str | None = None  # of the program, where its own choice loses transparency
    # Frames as they are shown, where the program does not know (crops of containers, animations of WebP): numbers and view.
    numbers: tuple[int, ...] | None = None
    view: Callable[[Frame], Frame] | None = None
    seconds: tuple[float, ...] = ()  # when these frames are shown
    rate: float | None = None  # where times in the file do not tell, such as those of joined films
    guessed: bool = False  # whether its times are guesses of programs that copied it, which are not judged
    refused: str = ""  # why the file may be refused though it is shown
    tolerance: float = 3.0  # mean difference in levels of 255

    @property
    def file(self) -> str:
        """Name of the file."""
        return self.name + self.suffix

    def drawn(self) -> list[Frame]:
        """Return the frames that are shown, by construction."""
        assert self.numbers is not None
        frames = [drawn.frame(number) for number in self.numbers]
        return frames if self.view is None else [self.view(frame) for frame in frames]
