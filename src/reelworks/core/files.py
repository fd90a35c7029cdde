"""Atomic and durable file writes: write a temporary file, fsync it, rename it, fsync the folder."""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from reelworks.core import results, storage, system
from reelworks.core.errors import UserError

FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
OF_DISKS = FULL | {errno.EROFS, errno.EIO}  # what a disk says of a write that no program can help


def state(path: Path) -> list[int]:
    """Return size and time of change of a file, by which a torn or changed one is recognised without reading it."""
    with path.open("rb") as f:  # on NFS, an open file has no former times
        stat = os.fstat(f.fileno())
    return [stat.st_size, stat.st_mtime_ns]


# What a writer that holds nothing, such as an encoder of videos, may take until it changes its file again.
UNHELD_SECONDS = 3600.0
_TEMPORARY = f".*.{'[0-9a-f]' * 8}.tmp"


def temporary_name(path: Path) -> Path:
    """Return a new place beside `path` for what will replace it; `sweep` knows it."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def hold(file: BinaryIO) -> None:
    """Keep an open temporary file from being swept until it is closed, or this process ends."""
    with suppress(OSError):
        system.lock(file.fileno(), shared=True)


def sweep(path: Path, fresh_seconds: float = 30.0) -> None:
    """Remove what killed processes have left beside `path`: temporary files, and folders of them, with its suffix.

    They are those of `temporary_name`, unless somebody holds them; by default those are fresh that a writer may not hold
    yet. Without locks, nobody knows what is left.
    """
    for left in path.parent.glob(_TEMPORARY):
        if Path(Path(left.stem).stem).suffix == path.suffix:
            _remove_left(left, fresh_seconds)


def sweep_below(folder: Path) -> None:
    """Remove what killed processes have left anywhere below a folder."""
    for left in [*folder.rglob(_TEMPORARY)]:
        _remove_left(left, UNHELD_SECONDS)


def _remove_left(left: Path, fresh_seconds: float) -> None:
    with suppress(OSError):  # somebody holds it, or was faster
        inside = [left, *left.rglob("*")]
        for one in filter(Path.is_file, inside):
            with one.open("rb") as file:
                system.lock(file.fileno())
        if time.time() - max(one.stat().st_mtime for one in inside) > fresh_seconds:
            storage.rmtree(left)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a place beside `path` for a file that takes its place at the end of the block, and is removed if that fails."""
    temporary = temporary_name(path)
    try:
        yield temporary
        storage.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            storage.unlink(temporary)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` atomically and durably; a device or a pipe, such as /dev/stdout, is written to instead."""
    if storage.is_special(path):
        path.write_bytes(data)
        return
    with replacing(path) as temporary, storage.create(temporary) as f:
        f.write(data)
    storage.fsync_folder(path.parent)


def write_for(option: str, path: Path, data: bytes) -> None:
    """Atomically write the file that a command-line option names, and create its folder if necessary."""
    with writing(option, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data)


@contextmanager
def writing(field: str, path: Path) -> Iterator[None]:
    """Raise a `UserError` that names a key or option and its path for a failed write in the block."""
    try:
        yield
    except OSError as error:
        raise unwritable(field, path, error) from error


def unwritable(field: str, path: Path | None, error: OSError) -> UserError:
    """Return the error for a file or folder, given by this key or option, that cannot be written; None if it is not known."""
    reason, remedy = error.strerror or str(error), "name a place that is writable, or correct its permissions"
    if error.errno in FULL:
        reason, remedy = f"{reason}{_lack(path)}", "free space on its disk or raise the quota, or name another place"
    elif error.errno == errno.EIO:
        remedy = "see to the disk, or name a place on another one"
    elif error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = "let more files be open at once, as `ulimit -n 4096` does for a shell"
    return UserError(
        f"this cannot be written ({reason})",
        code="file-unwritable",
        field=field,
        value=path and str(path),
        remedy=remedy,
    )


def _lack(path: Path | None) -> str:
    """Tell that a disk has room for bytes but not for another file."""
    folders = () if path is None else (path, *path.parents)
    there = next((folder for folder in folders if folder.exists()), None)
    with suppress(OSError):
        if there is not None and system.inodes_left(there) == 0:
            return ": the disk has no inodes left, which each file needs"
    return ""


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Encode a value as JSON, dataclasses, numpy numbers and paths as `results.as_json` does; NaN raises an error."""
    return json.dumps(value, indent=indent, default=results.as_json, ensure_ascii=False, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` atomically by indented JSON."""
    write_bytes(path, (to_json(value, indent=2) + "\n").encode())


def append_json_line(path: Path, value: Any, *, is_whole: bool = False) -> None:
    """Append one JSON line with a single write, on a new line if a crash left the last one incomplete.

    A file with several hard links, as in snapshots, is replaced by one of its own. With `is_whole`, the caller has appended
    to it before.
    """
    line = (to_json(value) + "\n").encode(errors="backslashreplace")  # a lone surrogate, as JSON escapes it
    if not is_whole and path.exists():
        if path.stat().st_nlink > 1:
            write_bytes(path, path.read_bytes())
        with path.open("rb") as f:
            is_torn = f.seek(0, os.SEEK_END) > 0 and (f.seek(-1, os.SEEK_END), f.read(1))[1] != b"\n"
        line = b"\n" * is_torn + line
    storage.append(path, line)


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON-lines file; lines that a crash left incomplete are skipped."""
    if path.exists():
        with path.open("rb") as f:
            yield from parse_json_lines(f)


def parse_json_lines(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects that lines of JSON hold; incomplete lines are skipped."""
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value
