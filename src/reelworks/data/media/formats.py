"""Know files by their suffix: videos, pictures, sounds, sidecars, and the reason why any other file is not read."""

from __future__ import annotations

import posixpath
import re

from reelworks.core import toml

_KINDS = toml.beside(__file__, "suffixes.toml")
_SUFFIXES = {kind: frozenset(of["suffixes"].split()) for kind, of in _KINDS.items()}
VIDEO_EXTENSIONS, IMAGE_EXTENSIONS, SOUND_EXTENSIONS = (_SUFFIXES[kind] for kind in ("video", "image", "sound"))
EXTENSIONS = VIDEO_EXTENSIONS | IMAGE_EXTENSIONS
_KIND_OF = dict.fromkeys(IMAGE_EXTENSIONS, "image") | dict.fromkeys(VIDEO_EXTENSIONS, "video")
LISTS = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json")  # all but Parquet may be packed, as .csv.gz
LISTS_TOLD = " ".join((*LISTS, ".csv.gz"))
SIDECARS = _SUFFIXES["sidecar"]
_SIDECAR_NAMES = frozenset(["authors", "changelog", "copying", "license", "licence", "makefile", "notice", "readme"])
_MEDIA = EXTENSIONS | SOUND_EXTENSIONS | _SUFFIXES["camera_raw"] | _SUFFIXES["other_media"]
_NO_LETTERS = re.compile("[\ud800-\udfff]")  # in place of what is not UTF-8 in a name, which no catalog can hold


class ProbeError(Exception):
    """A file cannot be trained on, or not be opened as what its name says; the message is short enough for a table."""


def extension_of(name: str) -> str:
    """Return a file's extension in lower case, with its dot; "" without one."""
    # A fifth of the time of `Path.suffix`, which a scan of millions notices.
    extension = posixpath.splitext(name)[1].lower()
    return "" if extension == "." else extension


def kind_of(name: str) -> str | None:
    """Return "video", "image" or None by a file's extension, in upper or lower case."""
    return _KIND_OF.get(extension_of(name))


def is_sound(name: str) -> bool:
    """Return whether a file is a sound without pictures, by its suffix."""
    return extension_of(name) in SOUND_EXTENSIONS


def media_stem(name: str) -> str | None:
    """Return the name without its suffix of a video, a picture or a sound, which need not be read or finished; None for others."""
    stem, extension = posixpath.splitext(name)
    if extension.lower() in _SUFFIXES["unfinished"] | {".bak", ".old", ".orig"}:
        stem, extension = posixpath.splitext(stem)
    return stem if extension.lower() in _MEDIA else None


def may_hold_clips(name: str) -> bool:
    """Return whether a file is a video, a picture or an archive that is read in place, by its suffix."""
    return kind_of(name) is not None or is_archive(name)


def is_archive(name: str) -> bool:
    """Return whether a file is an archive that is read in place, by its suffix, in upper or lower case."""
    return name.lower().endswith(".tar")


def archives_of(path: str) -> list[str]:
    """Return what may be the archive of a member such as "shard.tar/0001.mp4", outermost first: a folder may be named so, too."""
    return [path[: match.end()] for match in re.finditer(r"\.tar(?=/)", path, re.IGNORECASE)]


def unsigned(url: str) -> str:
    """Return an address of the web without its query, such as a signature; any other text as it is."""
    return re.sub(r"^(https?://[^?]*)\?.*", r"\1", url, flags=re.DOTALL)


def list_suffix(path: object) -> str:
    """Return the suffix that tells the format of a list, without that of gzip; "" for what is no list."""
    name = unsigned(str(path)).lower().rstrip("/")
    suffix = extension_of(name.removesuffix(".gz"))
    return suffix if suffix in LISTS and not (name.endswith(".gz") and suffix == ".parquet") else ""


def is_list(path: object) -> bool:
    """Return whether a path is a list of files rather than a folder, by its suffix alone."""
    return bool(list_suffix(path))


def list_stem(name: str) -> str:
    """Return the name of a list without its suffixes."""
    return name[: name.lower().rindex(list_suffix(name))]


def is_sidecar(name: str) -> bool:
    """Return whether a file belongs beside clips without being one: a caption, a list, a text, weights."""
    extension = extension_of(name)
    return extension in SIDECARS or (not extension and name.lower() in _SIDECAR_NAMES)


def why_not_read(name: str) -> str:
    """Return why a file that is neither a video, a picture nor a sidecar is not read; what precedes ":" is its class."""
    extension = extension_of(name)
    if not extension:
        return "the name has no extension"
    if kind_of(name.partition("?")[0]):  # a clip is known by its name, and an address that is signed anew is another
        return f"a query behind the name, as of a signed address: {extension.partition('?')[0]}"
    reasons = (of["reason"] for kind, of in _KINDS.items() if "reason" in of and extension in _SUFFIXES[kind])
    return f"{next(reasons, 'not a video or picture')}: {extension}"


def with_readable_bytes(path: str) -> str:
    """Return a path with each byte that is not UTF-8 as its number; one that is UTF-8 is returned as it is."""
    return path if path.isascii() else _NO_LETTERS.sub(lambda byte: f"\\x{ord(byte[0]) & 0xFF:02x}", path)
