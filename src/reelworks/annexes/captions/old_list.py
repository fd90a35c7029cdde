"""Read the list that a run replaces, so that no caption in it is lost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from reelworks.annexes.captions.clips import CaptionClip, CaptionSource
from reelworks.annexes.captions.record import ClipKey
from reelworks.core import digests, user_files
from reelworks.core.errors import UserError
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import lists


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
    sources: Sequence[CaptionSource],
    file: Path,
    root: str | None,
    *,
    must_be_read: bool,
    answered: Collection[ClipKey] | None = None,
) -> list[CaptionSource]:
    """Return the sources whose clips have the captions of a list, where it has any for them.

    Args:
        root: Folder or address that its paths are relative to; None for its own.
        must_be_read: Whether it is an error that the file is no list.
        answered: Clips whose captions in the list are those of a captioner, so that others are corrected in the source;
            None if the list may have been corrected itself.
    """
    try:
        source = Source.from_path(file, root=root)
        found = lists.read(source)
    except UserError as error:
        if must_be_read and error.code != "no-media":  # its files have other names now
            raise
        return list(sources)
    texts = found.captions.to_pylist() if found.captions is not None else [None] * len(found.entries)
    of_clip = {
        (f"{source.address.rstrip('/')}/{entry.path}", entry.clip): text
        for entry, text in zip(found.entries, texts, strict=True)
        if text is not None
    }

    def caption(clip: CaptionClip) -> str | None:
        if answered is not None and clip.caption is not None and ClipKey.of_clip(clip) not in answered:
            return clip.caption
        return of_clip.get((f"{clip.root.rstrip('/')}/{clip.path}", clip.range), clip.caption)

    return [replace(one, clips=tuple(replace(clip, caption=caption(clip)) for clip in one.clips)) for one in sources]
