"""Files that are whole or absent: write beside, fsync, rename, fsync the folder."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def fsync_folder(path: Path) -> None:
    """Make the entries of a folder durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` atomically and durably."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


def _plain(value: Any) -> Any:
    """Turn what json does not know (numpy numbers, paths) into what it does."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"not JSON: {type(value).__name__}")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Encode as JSON; numpy numbers and paths are understood, NaN becomes an error."""
    return json.dumps(value, indent=indent, default=_plain, ensure_ascii=False, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by pretty JSON, atomically."""
    write_bytes(path, (to_json(value, indent=2) + "\n").encode())


def append_json_line(path: Path, value: Any) -> None:
    """Append one JSON line with a single write, starting afresh after a line that a crash tore."""
    line = (to_json(value) + "\n").encode()
    with path.open("ab+") as f:
        if f.tell() and (f.seek(-1, os.SEEK_END), f.read(1))[1] != b"\n":
            line = b"\n" + line
        f.write(line)


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of a JSON-lines file; a torn line (a crash in mid-write) is passed over."""
    if not path.exists():
        return
    with path.open("rb") as f:
        for line in f:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value
