"""Clips to caption, and a command that captions them at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import media_makers as media

from reelworks.annexes.captions.caption import CaptionResult, caption
from reelworks.annexes.captions.request import CaptionRequest

# Says the name of the file and the number of frames that it is shown.
SED = r"""sed -E 's/.*"path": "[^"]*\/([^"\/]*)\.[a-z0-9]+", "kind": "([a-z]+)".*/A \2 named \1./'"""


def clips(folder: Path, count: int = 4) -> Path:
    """Pictures p0.png, p1.png, … and a video v.mp4."""
    folder.mkdir()
    for i in range(count):
        media.write_picture(folder / f"p{i}.png", 7 * i)
    media.write_video(folder / "v.mp4", num_frames=6)
    return folder


def run(data: Path | tuple[Path, ...], **options: Any) -> CaptionResult:
    """Caption by the command that needs no time, unless another captioner is given."""
    options = {"workers": 1} | options
    if not options.keys() & {"command", "server", "model", "undo"}:
        options["command"] = SED
    given = data if isinstance(data, tuple) else (data,)
    return caption(CaptionRequest(data=tuple(map(str, given)), **options))


def texts(folder: Path) -> dict[str, str]:
    """Return all caption files of a folder by name."""
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.txt"))}


EXPECTED = {f"p{i}.txt": f"A picture named p{i}.\n" for i in range(4)} | {"v.txt": "A video named v.\n"}
