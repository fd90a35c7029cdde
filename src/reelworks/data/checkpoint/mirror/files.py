"""Copy the files of a run that a resume needs, besides its checkpoints, to and from the mirror.

They are the events, the recipes of all starts, the records of which clips are done, the catalog, pins, and the
history of checkpoints; files that can be computed from these are not copied. The mirror follows the run folder:
changed files are copied again, and deleted ones are removed.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from reelworks.core import storage, toml
from reelworks.core.config import Config
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import manifest, names
from reelworks.data.checkpoint.mirror.remote import CHECKPOINTS, MirrorError, RemoteFilesystem
from reelworks.data.run.folder import RunFolder

INDEX = "mirror.json"
FORMAT_VERSION = 1
_SINGLE = ("run.json", "recipe.toml", "environment.json", "events.jsonl", f"{CHECKPOINTS}/{names.HISTORY}")
_FOLDERS = ("recipes", "coverage", "catalog", f"{CHECKPOINTS}/{names.PINS}")
# Copied last into their folders and marking them complete: parts of two catalogs must not be mixed.
_MARKERS = ("catalog.json", "about.json")


class MirrorIndex(Config):
    """Index of the files that a mirror holds besides checkpoints.

    `files` has the size in bytes and the modification time in nanoseconds of each file, as in the run folder.
    """

    format: int
    run_id: str
    files: dict[str, tuple[int, int]]


def read_index(place: RemoteFilesystem) -> MirrorIndex | None:
    """Return the mirror's index; None if the mirror is empty. Refuses a run folder, which is no mirror."""
    if (data := place.read(INDEX)) is None:
        if place.read(_SINGLE[0]) is None:
            return None
        raise MirrorError(
            "this address is the folder of a run, not a mirror; mirroring would overwrite it",
            code="mirror-would-be-overwritten",
            url=place.url,
            remedy="set an address that only this run uses",
        )
    try:
        index = MirrorIndex.model_validate_json(data)
    except ValidationError as error:
        raise MirrorError(
            f"the mirror's {INDEX} is damaged or not a run's index",
            code="mirror-damaged",
            url=place.url,
            remedy="set an address that only this run uses",
        ) from error
    if index.format > FORMAT_VERSION:
        raise MirrorError(
            f"the mirror has format {index.format}, this version of Reelworks reads up to {FORMAT_VERSION}",
            code="mirror-too-new",
            url=place.url,
            remedy="update Reelworks",
        )
    return index


def require_ours(index: MirrorIndex, run_id: str, url: str) -> None:
    """Refuse the mirror of another run."""
    if index.run_id != run_id:
        raise MirrorError(
            "the mirror belongs to another run",
            code="mirror-of-another-run",
            url=url,
            remedy="give each run an address of its own",
        )


def require_same_name(place: RemoteFilesystem, run: RunFolder) -> None:
    """Refuse the mirror of a run with another folder's name for a new one: its recipe may be a copy, with the address."""
    try:
        output = toml.parse((place.read("recipe.toml") or b"").decode()).get("output")
    except (UserError, ValueError):
        return
    name = Path(output).name if isinstance(output, str) else ""
    if name not in ("", "..", run.path.resolve().name):
        raise MirrorError(
            f"the mirror belongs to the run {name}",
            code="mirror-of-another-run",
            url=place.url,
            remedy=f"give this run an address of its own, or its folder the name {name} to go on with that run",
        )


def push(place: RemoteFilesystem, run: RunFolder, run_id: str) -> None:
    """Update the mirror's files; an empty mirror gets its index first, which claims it for the run."""
    index = read_index(place) or _write_index(place, run_id, {})
    require_ours(index, run_id, place.url)
    mirrored = index.files
    local = dict(_listing(run))
    for path in sorted(local, key=_order):
        if mirrored.get(path) != local[path]:
            try:
                place.put(run.path / path, path)
            except FileNotFoundError:
                if (run.path / path).exists():
                    raise
                del local[path]  # deleted since the listing
    if local != mirrored:
        _write_index(place, run_id, local)
    for path in mirrored.keys() - local.keys():
        place.remove_file(path)


def pull(place: RemoteFilesystem, run: RunFolder, index: MirrorIndex) -> list[str]:
    """Fetch the files that the run folder lacks, and return those that the mirror lost or holds in part."""
    sizes = place.sizes("")
    bad: list[str] = []
    wanted = [path for path in index.files if manifest.is_inside(path) and not _exists(run, path, index)]
    for path in sorted(wanted, key=_order):
        folder, name = posixpath.split(path)
        incomplete = sizes.get(path) != index.files[path][0] and not name.endswith(".jsonl")
        if incomplete or path not in sizes or (name in _MARKERS and folder in map(posixpath.dirname, bad)):
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


def _exists(run: RunFolder, path: str, index: MirrorIndex) -> bool:
    markers = (posixpath.join(posixpath.dirname(path), name) for name in _MARKERS)
    marker = next((m for m in markers if m in index.files), path)
    return (run.path / marker).exists()


def _order(path: str) -> tuple[bool, str]:
    return posixpath.basename(path) in _MARKERS, path


def _write_index(place: RemoteFilesystem, run_id: str, stamps: dict[str, tuple[int, int]]) -> MirrorIndex:
    index = MirrorIndex(format=FORMAT_VERSION, run_id=run_id, files=stamps)
    place.write(INDEX, index.model_dump_json().encode())
    return index


def _listing(run: RunFolder) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the files to mirror with size and modification time; hidden ones are locks and unfinished writes."""
    candidates = [run.path / name for name in _SINGLE]
    candidates += [file for folder in _FOLDERS for file in (run.path / folder).rglob("*")]
    for file in candidates:
        path = file.relative_to(run.path)
        if file.is_file() and not any(part.startswith(".") for part in path.parts):
            with suppress(FileNotFoundError):  # deleted meanwhile
                stat = file.stat()
                yield path.as_posix(), (stat.st_size, stat.st_mtime_ns)
