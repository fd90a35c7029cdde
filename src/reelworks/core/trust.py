"""Code that a recipe names runs on the command line and from the page only after this user has agreed to it once.

A recipe may come from anybody, and a metric of its own, as in `samples.metrics = ["sharpness.py:Sharpness"]`, is a program.
Files are trusted by their path, for good, in a file of this user's own. What a program of the user's own hands to the
library is not asked about, nor what is typed on the command line, nor what is installed in the environment.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from reelworks.core import named_code, user_files
from reelworks.core.errors import UserError

Ask = Callable[[Path], bool]
_ask: Ask | None = None


def ask_with(ask: Ask) -> None:
    """From now on ask before code of a recipe runs; `ask` is given its file, and returns whether it may."""
    global _ask
    _ask = ask


def code_of(entry: str) -> Path | None:
    """Return the file from which an entry such as `sharpness.py:Sharpness` or `metrics:Sharpness` is imported.

    None for names of our own, and for modules of the environment.
    """
    place, colon, _ = entry.rpartition(":")
    if not colon or place.endswith(".py"):
        return Path(place).resolve() if colon else None
    try:
        found = importlib.util.find_spec(place.partition(".")[0])  # imports nothing: it has no parent
    except (ImportError, ValueError):
        return None
    origins = [] if found is None else [found.origin, *(found.submodule_search_locations or ())]
    paths = [Path(origin).resolve() for origin in origins if origin and Path(origin).exists()]
    if not paths or any(paths[0].is_relative_to(Path(root).resolve()) for root in (sys.prefix, sys.base_prefix)):
        return None
    return paths[0]


def untrusted(entries: Iterable[str]) -> list[Path]:
    """Return the files of code behind entries of a recipe that were not agreed to yet, each once."""
    readings = (reading for entry in entries for reading in (entry, named_code.without_weights(entry)))
    needed = dict.fromkeys(path for reading in readings if (path := code_of(reading)) is not None)
    known = _known() if needed else frozenset[str]()
    return [path for path in needed if str(path) not in known]


def require(entries: Iterable[str], field: str) -> None:
    """Ask for each file of code behind entries of a recipe that was not agreed to yet, where somebody can be asked.

    Raises:
        UserError: It was not agreed to.
    """
    for path in untrusted(entries) if _ask is not None else ():
        assert _ask is not None
        if not _ask(path):
            raise refusal(path, field)
        add([path])


def refusal(path: Path, field: str) -> UserError:
    """Return the error that names code which was not agreed to."""
    return UserError(
        "code of this file would run, and you have not agreed to that yet",
        code="code-not-trusted",
        field=field,
        value=str(path),
        remedy=f"read the file; if you trust it: reelworks trust {path}",
    )


def add(paths: Iterable[Path]) -> None:
    """Trust files from now on."""
    from reelworks.core import files  # slow to import

    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.write_json(file, sorted({*_known(), *(str(path.resolve()) for path in paths)}))


def _known() -> frozenset[str]:
    with suppress(OSError, ValueError, TypeError):
        return frozenset(map(str, user_files.read_json(_file())))
    return frozenset()


def _file() -> Path:
    return user_files.state_folder() / "trusted-code.json"
