"""Captions: a text file beside the clip, `dog.txt` for `dog.mp4`.

No file and an empty file are two situations: the first may be a clip that nobody has captioned yet,
the second one whose captioner had nothing to say. The catalog keeps them apart (`None` and `""`).
"""

from __future__ import annotations

import codecs
from pathlib import Path

SUFFIX = ".txt"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def caption_file(media: Path) -> Path:
    """Path of the caption that belongs to a video or picture."""
    return media.with_suffix(SUFFIX)


def read(media: Path) -> str | None:
    """Read a clip's caption as UTF-8, stripped of white space and of a byte order mark.

    A mark of UTF-16, which editors on Windows write, is obeyed. Bytes that are no such text become U+FFFD: one
    odd letter must not cost the clip.

    Returns:
        The caption, "" where the file is empty, None where there is none.

    Raises:
        OSError: The file is there and cannot be read.
    """
    try:
        data = caption_file(media).read_bytes()
    except FileNotFoundError:
        return None
    encoding = "utf-16" if data.startswith(_UTF_16) else "utf-8-sig"
    return data.decode(encoding, errors="replace").strip()
