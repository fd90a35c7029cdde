"""Open the files that users name, or that lie in their folders: only regular ones, and of bounded size where all is read.

A pipe, a socket or a device under the name of a caption would block a program or never end, and a sparse file may state
more bytes than the machine has memory. Such files raise an `OSError` whose `strerror` is the reason, as a missing file does.
Two folders are of this user's own, outside of every folder that may come from somebody else.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from reelworks.core import system, toml
from reelworks.core.log import logger

# Most bytes that are read of a file of each kind; each is far above what people write.
CAPTION = 1 << 20
SETTINGS = 4 << 20  # a recipe or config
TABLE = 1 << 28  # JSON, prompts, and exclude lists
LIST = 4 << 30  # lists of clips, in CSV, Parquet or JSON lines
_PIECE = 1 << 20

_KINDS = (
    (stat.S_ISDIR, errno.EISDIR, "a folder"),
    (stat.S_ISFIFO, errno.EINVAL, "a pipe"),
    (stat.S_ISSOCK, errno.EINVAL, "a socket"),
    (stat.S_ISCHR, errno.EINVAL, "a device"),
    (stat.S_ISBLK, errno.EINVAL, "a device"),
)


def existing(name: str | Path) -> Path | None:
    """Return the file or folder that a setting names, if it is there; any text may be such a name, also one of no path."""
    with suppress(OSError, ValueError, RuntimeError):
        path = Path(name).expanduser()
        return path if path.exists() else None
    return None


def why(error: Exception) -> str:
    """Return why a file that a message names cannot be read, in the system's words, or is not understood."""
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"


def _require_regular(path: Path | str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        known = ((number, name) for is_kind, number, name in _KINDS if is_kind(status.st_mode))
        number, name = next(known, (errno.EINVAL, "of an unknown kind"))
        raise OSError(number, f"not a regular file, but {name}", str(path))


def require_size(path: object, size: int, most: int) -> None:
    """Raise `OSError` for a file of more bytes than are read of its kind."""
    if size > most:
        problem = f"it has {size:,} bytes or more, and at most {most:,} are read of such a file"
        raise OSError(errno.EFBIG, problem, str(path))


def opened(path: Path, *, buffering: int = -1) -> Any:
    """Open a regular file for reading in binary; never blocks.

    Raises:
        OSError: It is missing, cannot be read, or is no regular file.
    """
    _require_regular(path, path.stat())  # opening a device may have an effect
    descriptor = os.open(path, os.O_RDONLY | system.NO_WAIT)
    try:
        _require_regular(path, os.fstat(descriptor))  # another file may have taken its place
        return os.fdopen(descriptor, "rb", buffering)
    except BaseException:
        os.close(descriptor)
        raise


def require(path: Path, most: int | None = None) -> None:
    """Check a file that a library opens by its path: it is regular, and has at most so many bytes."""
    with opened(path) as file:
        if most is not None:
            require_size(path, os.fstat(file.fileno()).st_size, most)


def read_bytes(path: Path, most: int) -> bytes:
    """Read a file of at most so many bytes."""
    with opened(path) as file:
        require_size(path, os.fstat(file.fileno()).st_size, most)
        return read_open(file, path, most)  # it may grow meanwhile, and files of /proc state no size


def read_open(file: Any, path: object, most: int) -> bytes:
    """Read an open file, which may be unpacked meanwhile, of at most so many bytes; a read of all would make room for `most`."""
    pieces: list[bytes] = []
    size = 0
    while piece := file.read(_PIECE):
        size += len(piece)
        require_size(path, size, most)
        pieces.append(piece)
    return b"".join(pieces)


def read_text(path: Path, most: int, *, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Read a file of at most so many bytes as text, with line ends as `Path.read_text` gives them."""
    return read_bytes(path, most).decode(encoding, errors).replace("\r\n", "\n").replace("\r", "\n")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raises `OSError`, or `ValueError` for what is no TOML or is nested too deeply."""
    return toml.parse(read_text(path, SETTINGS))


def read_json(path: Path) -> Any:
    """Read a JSON file; raises `OSError`, or `ValueError` for what is no JSON or is nested too deeply."""
    return parse_json(read_text(path, TABLE, encoding="utf-8-sig"))


def parse_json(text: str | bytes, number: Callable[[str], float] = float) -> Any:
    """Parse JSON, with `number` those that are not whole; raises `ValueError` for what is none or is nested too deeply."""
    try:
        return json.loads(text, parse_float=number)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None


def state_folder() -> Path:
    """Return the folder of this user's own state; it is made when something is written."""
    return Path(os.environ.get("XDG_STATE_HOME") or _home() / ".local" / "state") / "reelworks"


def cache_folder() -> Path:
    """Return the folder of this user for what can be made again; it is made when something is written."""
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "reelworks"


@cache
def _home() -> Path:
    """Return the home folder; a user without one, as containers make them of any number, has a new one for each process."""
    with suppress(RuntimeError):
        return Path.home()
    logger.warning("there is no home folder, so caches and agreements are forgotten at the end; set HOME to keep them")
    return Path(tempfile.mkdtemp(prefix="reelworks-"))  # no fixed name, under which others could put something there
