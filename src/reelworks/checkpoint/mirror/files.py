"""The files of a run that its checkpoints need for a resume, copied to the mirror beside them.

Events and the recipes that starts went by; the records of segments, by which a resume after changes knows the
clips that are done, and the catalog; pins and the diary of checkpoints. What can be drawn again from them stays behind. The
mirror follows the run folder: changed files are copied again, and those that went are removed.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from reelworks.checkpoint import manifest, names
from reelworks.checkpoint.mirror.remote import CHECKPOINTS, RemoteFilesystem
from reelworks.core import storage
from reelworks.core.config import Config
from reelworks.core.errors import UserError
from reelworks.run.folder import RunFolder

INDEX = "mirror.json"
FORMAT_VERSION = 1
_SINGLE = ("run.json", "recipe.toml", "environment.json", "events.jsonl", f"{CHECKPOINTS}/{names.HISTORY}")
_FOLDERS = ("recipes", "coverage", "catalog", f"{CHECKPOINTS}/{names.PINS}")
# Written last into their folders, which count as a whole: parts of two catalogs must not be mixed.
_MARKERS = ("catalog.json", "about.json")


class MirrorIndex(Config):
    """Files of a mirror beside its checkpoints.

    Attributes:
        format: Version of this schema.
        run_id: The run that the mirror belongs to.
        files: Size in bytes and time of change in nanoseconds of each file, as it was in the run folder.
    """

    format: int
    run_id: str
    files: dict[str, tuple[int, int]]


def read_index(place: RemoteFilesystem) -> MirrorIndex | None:
    """Read whose mirror it is and what lies in it; None for an empty one.

    Raises:
        UserError: It is damaged, a newer Reelworks wrote it, or a run lies there that is no mirror.
    """
    if (data := place.read(INDEX)) is None:
        if place.read(_SINGLE[0]) is None:
            return None
        raise UserError(
            "there is a run that is no mirror, and it would be overwritten",
            code="mirror-would-be-overwritten",
            field="checkpoints.mirror.url",
            value=place.url,
            remedy="give an address of this run alone",
        )
    try:
        index = MirrorIndex.model_validate_json(data)
    except ValidationError as error:
        raise UserError(
            f"the mirror's {INDEX} is damaged or not of a run",
            code="mirror-damaged",
            field="checkpoints.mirror.url",
            value=place.url,
            remedy="give an address of this run alone",
        ) from error
    if index.format > FORMAT_VERSION:
        raise UserError(
            f"the mirror has format {index.format}, this version reads up to {FORMAT_VERSION}",
            code="mirror-too-new",
            field="checkpoints.mirror.url",
            value=place.url,
            remedy="update Reelworks",
        )
    return index


def require_ours(index: MirrorIndex | None, run_id: str, url: str) -> None:
    """Refuse the mirror of another run.

    Raises:
        UserError: It is one.
    """
    if index is not None and index.run_id != run_id:
        raise UserError(
            "the mirror belongs to another run",
            code="mirror-of-another-run",
            field="checkpoints.mirror.url",
            value=url,
            remedy="give each run an address of its own",
        )


def push(place: RemoteFilesystem, run: RunFolder, run_id: str) -> None:
    """Bring the mirror's files up to date; first of all its index claims it for the run.

    Raises:
        UserError: The mirror belongs to another run.
    """
    index = read_index(place)
    require_ours(index, run_id, place.url)
    there = {} if index is None else index.files
    if index is None:
        _write_index(place, run_id, {})
    here = dict(_listing(run))
    for path in sorted(here, key=_order):
        if there.get(path) != here[path]:
            try:
                place.put(run.path / path, path)
            except FileNotFoundError:
                if (run.path / path).exists():
                    raise
                del here[path]  # a plan that nobody needs any more
    if here != there:
        _write_index(place, run_id, here)
    for path in there.keys() - here.keys():
        place.remove_file(path)


def pull(place: RemoteFilesystem, run: RunFolder, index: MirrorIndex) -> list[str]:
    """Fetch the files that the run folder lacks; what is here stays as it is.

    Returns:
        Files that the mirror has lost or holds in part, and so are not fetched.
    """
    sizes = place.sizes("")
    bad: list[str] = []
    wanted = [path for path in index.files if manifest.is_inside(path) and not _is_here(run, path, index)]
    for path in sorted(wanted, key=_order):
        folder, name = posixpath.split(path)
        torn = sizes.get(path) != index.files[path][0] and not name.endswith(".jsonl")
        if torn or path not in sizes or (name in _MARKERS and folder in map(posixpath.dirname, bad)):
            bad.append(path)
            continue
        file = run.path / path
        temporary = file.with_name(f".{name}.{uuid.uuid4().hex[:8]}.tmp")
        storage.mkdirs(file.parent)
        try:
            place.get(path, temporary)
            storage.rename(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)
        storage.fsync_folder(file.parent)
    return bad


def _is_here(run: RunFolder, path: str, index: MirrorIndex) -> bool:
    beside = (posixpath.join(posixpath.dirname(path), name) for name in _MARKERS)
    marker = next((m for m in beside if m in index.files), path)
    return (run.path / marker).exists()


def _order(path: str) -> tuple[bool, str]:
    return posixpath.basename(path) in _MARKERS, path


def _write_index(place: RemoteFilesystem, run_id: str, stamps: dict[str, tuple[int, int]]) -> None:
    index = MirrorIndex(format=FORMAT_VERSION, run_id=run_id, files=stamps)
    place.write(INDEX, index.model_dump_json().encode())


def _listing(run: RunFolder) -> Iterator[tuple[str, tuple[int, int]]]:
    """Files to mirror, each with its size and time of change; hidden ones are locks and unfinished writes."""
    found = [run.path / name for name in _SINGLE]
    for folder in _FOLDERS:
        found += [file for file in (run.path / folder).rglob("*") if not _is_hidden(run.path, file)]
    for file in found:
        if file.is_file():
            try:
                told = file.stat()
            except FileNotFoundError:
                continue
            yield file.relative_to(run.path).as_posix(), (told.st_size, told.st_mtime_ns)


def _is_hidden(root: Path, file: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)
