"""Read the captions of clips from text files, and from texts and JSON in archives, with what there is to say of them.

A text in UTF-8, or with a byte order mark, is read at once. Others wait for those of their dataset: together they tell
their encoding (`core.text_encoding`). A text that is still unclear is no caption, which the scan says.
"""

from __future__ import annotations

import errno
import os
import posixpath
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from reelworks.core import text_encoding, units, user_files
from reelworks.data.catalog.scan import caption_names
from reelworks.data.catalog.scan.caption_names import CaptionFiles, CaptionNames, Range
from reelworks.data.catalog.scan.list_columns import CAPTION_NAMES, NOTHING
from reelworks.data.media import location
from reelworks.data.media.location import Location, MediaPath

T = TypeVar("T")
_LONGEST_WORD = max(map(len, NOTHING))
_TICK_NS = 2_000_000_000
_SECOND, _EMPTY, _UNCLEAR, _NULL = "second", "empty", "unclear", "null"
_REMARKS = {
    _SECOND: ("a second caption file with another text, which is not read", "keep one of the two"),
    _EMPTY: ("an empty caption file beside another one, which is read", "delete the one that does not count"),
    _UNCLEAR: (
        "no caption of the same name; those of the same name up to the first dot are not used, since others have it too",
        "name each caption as its clip, but for the suffix",
    ),
    _NULL: ("a caption that says only nan, None or another such word, and is not used", "write what the clip shows"),
}


class Raw(NamedTuple):
    """Bytes of a caption that is not UTF-8, or that may be so by chance."""

    name: str
    data: bytes


class Unsettled(NamedTuple):
    """A clip's captions, of which some are not decoded yet, or something is to be said."""

    parts: tuple[str | Raw, ...]
    remarks: tuple[str, ...] = ()


def read(media: MediaPath, files: CaptionFiles) -> str | Unsettled | None:
    """Return a clip's caption as `text_encoding.cleaned` gives it; None if there is none.

    Of several files, each becomes a line. An empty one does not hide the only other one that differs in its suffix alone.
    """
    parts = [part for one in files.read if (part := _part(media, one)) is not None]
    rivals = [part for one in files.rivals if (part := _part(media, one))]
    remarks = [_UNCLEAR] if files.unclear else []
    names = [one.name if isinstance(one, Range) else one for one in (*files.read, *files.rivals)]
    if len(rivals) == 1 and not any(parts) and len({name.rpartition(".")[0] for name in names}) == 1:
        parts, rivals = rivals, []
        remarks.append(_EMPTY)
    contents = [part.data if isinstance(part, Raw) else part for part in (*parts[:1], *rivals)]
    if parts and any(content != contents[0] for content in contents[1:]):
        remarks.append(_SECOND)
    if parts and not isinstance(parts[0], Raw) and len(parts) == 1 and not remarks and not is_null(parts[0]):
        return parts[0]
    return Unsettled(tuple(parts), tuple(remarks)) if parts or remarks else None


def beside(media: Path) -> str | None:
    """Return the caption of a single file, as far as it alone tells its encoding."""
    found = read(media, files_beside(media))
    return _joined(found, iter(_settled([found]).texts))[0] if isinstance(found, Unsettled) else found


def files_beside(media: MediaPath) -> CaptionFiles:
    """Return the caption files beside a clip, for which its folder is listed."""
    folder = Path(str(media)).parent
    try:
        changed_ns = folder.stat().st_mtime_ns
        # A folder may change twice within one tick of its file system's clock.
        is_settled = abs(time.time_ns() - changed_ns) > _TICK_NS
        names = _names_of(folder, changed_ns) if is_settled else _names_of.__wrapped__(folder, changed_ns)
    except (FileNotFoundError, NotADirectoryError):
        names = CaptionNames(())
    return names.files_of(posixpath.basename(media.name))


def is_null(text: str) -> bool:
    """Return whether a caption is a word that programs write where there is none."""
    return len(text) <= _LONGEST_WORD and text.lower() in NOTHING


def of_json(text: str) -> str | None:
    """Return the caption in JSON, with a line for each of several; None if it has none."""
    with suppress(ValueError):
        values = user_files.parse_json(text)
        named = {key.lower(): value for key, value in values.items()} if isinstance(values, dict) else {}
        return next((caption for key in CAPTION_NAMES if (caption := _of_value(named.get(key)))), None)
    return None


def _of_value(value: Any) -> str | None:
    texts = value if isinstance(value, list) else [value]
    cleaned = [text_encoding.cleaned(text) for text in texts if isinstance(text, str)]
    there = [text for text in cleaned if text and not is_null(text)]
    return "\n".join(" ".join(text.split()) for text in there) if len(there) > 1 else next(iter(there), None)


@lru_cache(maxsize=256)  # folders: rows of a catalog come in no order of theirs
def _names_of(folder: Path, changed_ns: int) -> CaptionNames:
    return CaptionNames([entry.name for entry in os.scandir(folder)])


def _part(media: MediaPath, file: str | Range) -> str | Raw | None:
    name = file.name if isinstance(file, Range) else caption_names.name_of(file, posixpath.basename(media.name))
    try:
        if isinstance(file, Range):
            assert isinstance(media, Location)
            there: MediaPath = replace(media, start=file.start, size=file.size)
        else:
            there = media.with_name(name)
        data = location.read_bytes(there, user_files.CAPTION)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EFBIG and caption_names.is_json(name):
            return None  # poses, or what else a program wrote of each frame
        raise OSError(error.errno, f"its caption {name}: {error.strerror or error}") from error
    text = text_encoding.decoded(data)
    return Raw(name, data) if text is None or text_encoding.is_doubtful(text) else _caption(text, name)


def _caption(text: str, name: str) -> str | None:
    return of_json(text) if caption_names.is_json(name) else text_encoding.cleaned(text)


def _settled(found: Iterable[Unsettled]) -> text_encoding.Settled:
    return text_encoding.settle([part.data for one in found for part in one.parts if isinstance(part, Raw)])


def _joined(found: Unsettled, decoded: Iterator[str | None]) -> tuple[str | None, list[str], bool]:
    """Return the caption of parts, the names of those that are not decoded, and whether one is a word for nothing."""
    captions, lost = list[str | None](), list[str]()
    for part in found.parts:
        text = next(decoded) if isinstance(part, Raw) else part
        if isinstance(part, Raw) and text is None:
            lost.append(part.name)
        captions.append(_caption(text, part.name) if isinstance(part, Raw) and text is not None else text)
    there = [caption for caption in captions if caption is not None]
    said = [caption for caption in there if not is_null(caption)]
    if len(captions) > 1 and said:
        lines = (" ".join(caption.split()) for caption in said)
        return "\n".join(filter(None, lines)), lost, len(said) < len(there)
    return next(iter(said), None), lost, len(said) < len(there)


class Waiting(Generic[T]):
    """The items of a dataset, such as findings of a scan, whose captions are settled together.

    Attributes:
        notes: What there is to say of their captions, for people; complete when they are settled.
    """

    def __init__(self, place: str) -> None:
        """Begin with none; `place` is the dataset's folder or address."""
        self._place, self._items = place, list[tuple[T, str, Unsettled]]()
        self.notes: list[str] = []

    def add(self, item: T, clip: str, found: Unsettled) -> None:
        """Keep an item with the path of its clip, and what was read of its captions."""
        self._items.append((item, clip, found))

    def settled(self) -> Iterator[tuple[T, str | None, list[str]]]:
        """Yield the items with their captions, and the names of caption files that are not read."""
        texts, encodings = _settled(found for _, _, found in self._items)
        decoded, lost, remarks = iter(texts), dict[str, None](), {key: list[str]() for key in _REMARKS}
        for item, clip, found in self._items:
            caption, missed, has_null = _joined(found, decoded)
            lost |= dict.fromkeys(f"{clip.rpartition('/')[0]}/{name}".lstrip("/") for name in missed)
            for key in (*found.remarks, *([_NULL] if has_null else [])):
                remarks[key].append(clip)
            yield item, caption, missed
        self._note(encodings, list(lost), remarks)

    def _note(self, encodings: Counter[str], lost: list[str], remarks: dict[str, list[str]]) -> None:
        self.notes += [f"{self._place}: {_are(n)} in {name}, and read so" for name, n in encodings.most_common()]
        if lost:
            self.notes.append(
                f"{self._place}: {_are(len(lost))} no text in UTF-8, nor in another encoding that is sure, or damaged, and not used; "
                f"the first is {lost[0]}: save such files as UTF-8, as by iconv -f ENCODING -t UTF-8, and write damaged ones anew"
            )
        for key, clips in remarks.items():
            if clips:
                what, remedy = _REMARKS[key]
                having = units.plural(len(clips), "clip", "have")
                self.notes.append(f"{self._place}: {having} {what}; the first is {clips[0]}: {remedy}")


def _are(number: int) -> str:
    return units.plural(number, "caption", "are")
