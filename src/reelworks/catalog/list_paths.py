"""Files that a list names: their paths below the dataset's folder, and what the disk says of them.

The path below the folder is part of a clip's identity, so a list of absolute paths needs a folder that they
all lie in. Taking the nearest common one would give every clip another identity as soon as one file elsewhere
is added; so it is only proposed, and a person writes it down.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelworks.catalog import probe
from reelworks.catalog.checks import OUTSIDE
from reelworks.catalog.source import Source
from reelworks.catalog.walk import Entry
from reelworks.core.errors import UserError

_NO_FILE = "no such file"
_NO_MEDIA = "its name is neither a video's nor a picture's"
_ROUNDABOUT = r"//|(^|/)\.{1,2}(/|$)|/$"


def relative(paths: Any, source: Source) -> Any:
    """Make a list's paths relative to the dataset's folder.

    Raises:
        UserError: A path is empty, lies outside of the folder, or stands there twice.
    """
    no_path = pc.equal(pc.fill_null(paths, ""), "")
    _refuse_at(no_path, paths, source, "has no path", "fill it in, or take out the row")
    named, root = paths, os.path.normpath(source.root.absolute())
    paths = _straightened(paths, root)
    for prefix in dict.fromkeys((f"{root}/", f"{source.root.resolve()}/")):
        below = pc.starts_with(paths, prefix)
        paths = pc.if_else(below, pc.utf8_slice_codeunits(paths, len(prefix)), paths)
    outside = pc.match_substring_regex(paths, OUTSIDE)
    _refuse_at(outside, paths, source, f"lies outside of {root}", _root_for(named))
    _refuse_twice(paths, source)
    return paths


def _straightened(paths: Any, root: str) -> Any:
    """Make the few paths absolute that are roundabout, so that a file has one name."""
    odd = pc.match_substring_regex(paths, _ROUNDABOUT)
    straight = [
        os.path.normpath(f"{root}/{text}" if text[0] != "/" else text)
        for text in paths.filter(odd).to_pylist()
    ]
    return pc.replace_with_mask(paths, odd, pa.array(straight, paths.type)) if straight else paths


def _root_for(paths: Any) -> str:
    """What to type where absolute paths do not lie in the dataset's folder."""
    absolute = paths.filter(pc.starts_with(paths, "/"))
    if not len(absolute):
        return "correct the path"
    order = pc.min_max(absolute)  # what the first and the last in order share, all share
    folder = os.path.commonpath([str(Path(order[end].as_py()).parent) for end in ("min", "max")])
    return f'set root (--root of scan) to a folder that all files lie in, as in root = "{folder}"'


def _refuse_twice(paths: Any, source: Source) -> None:
    """One clip cannot have two captions and scores; which of the rows holds is for a person to say."""
    counts = paths.value_counts()
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        one = twice[0].as_py()
        rows = (np.flatnonzero(pc.equal(paths, one).to_numpy(zero_copy_only=False)) + 1).tolist()
        raise UserError(
            f"{len(twice)} files stand in several rows; the first is {one} in rows {', '.join(map(str, rows[:5]))}",
            field=f"dataset {source.name!r}",
            value=str(source.list_file),
            remedy="leave one row for each file; dataset.repeats shows clips more than once",
        )


def _refuse_at(wrong: Any, paths: Any, source: Source, problem: str, remedy: str) -> None:
    row = wrong.index(True).as_py()
    if row >= 0:
        path = paths[row].as_py()
        raise UserError(
            f"row {row + 1}{'' if not path else f', {path},'} {problem}",
            field=f"dataset {source.name!r}",
            value=str(source.list_file),
            remedy=remedy,
        )


def entries(paths: Any, source: Source) -> list[Entry]:
    """Ask the disk for each file; one that is missing is an entry with that problem.

    Raises:
        UserError: The list names no file that is there: then the folder is wrong or not mounted,
            and no clip is to pass for deleted.
    """
    found = list(_entries(paths.to_pylist(), str(source.root)))
    if all(entry.problem in (_NO_FILE, _NO_MEDIA) for entry in found):
        first = f"; the first is {source.root}/{found[0].path}: {found[0].problem}" if found else ""
        raise UserError(
            f"of the {len(found)} files of the list, none is a video or picture that is there{first}",
            field=f"dataset {source.name!r}",
            value=str(source.list_file),
            remedy="check that the disk is mounted, and name the files' folder with root (--root of scan)",
        )
    return found


def _entries(paths: list[str], root: str) -> Iterator[Entry]:
    for path in paths:
        if probe.kind_of(path) is None:
            yield Entry(path, 0, 0, False, _NO_MEDIA)
            continue
        try:
            # A Path for each of millions of files takes longer than the question.
            status = os.stat(f"{root}/{path}")  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            yield Entry(path, 0, 0, False, _NO_FILE)
        except OSError as error:
            yield Entry(path, 0, 0, False, f"cannot be read: {error.strerror}")
        else:
            problem = None if stat.S_ISREG(status.st_mode) else "not a regular file"
            yield Entry(path, status.st_size, status.st_mtime_ns, True, problem)
