"""Read the list that a run replaces, so that no caption in it is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reelworks.captioning.clips import CaptionSource
from reelworks.catalog import lists
from reelworks.catalog.config import Source
from reelworks.core import digests, user_files
from reelworks.core.errors import UserError


def digest(file: Path) -> str | None:
    """Return the digest by which a list that this program wrote is known again; None if there is no file.

    Raises:
        UserError: It is a folder, or cannot be read.
    """
    try:
        return digests.digest_bytes(user_files.read_bytes(file, user_files.LIST))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(
            f"no list can be written here ({error.strerror or error})",
            code="file-unwritable",
            field="list",
            value=str(file),
            remedy="name another file",
        ) from error


def with_its_captions(
    sources: Sequence[CaptionSource], file: Path, root: str | None, *, must_be_read: bool
) -> list[CaptionSource]:
    """Return the sources whose clips have the captions of a list, where it has any for them.

    Args:
        root: Folder or address that its paths are relative to; None for its own.
        must_be_read: Whether it is an error that the file is no list of such clips.
    """
    try:
        source = Source.from_path(file, root=root)
        found = lists.read(source)
    except UserError:
        if must_be_read:
            raise
        return list(sources)
    texts = found.captions.to_pylist() if found.captions is not None else [None] * len(found.entries)
    of_clip = {
        (f"{source.address}/{entry.path}", entry.clip): text
        for entry, text in zip(found.entries, texts, strict=True)
        if text is not None
    }
    return [
        replace(
            one,
            clips=tuple(
                replace(clip, caption=of_clip.get((f"{clip.root}/{clip.path}", clip.range), clip.caption))
                for clip in one.clips
            ),
        )
        for one in sources
    ]
