"""Copy the files of a run that a resume needs, besides its checkpoints, to and from the mirror.

They are the events, the recipes of all starts, the records of which clips are done, the catalog, pins, and the
history of checkpoints; files that can be computed from these are not copied. The mirror follows the run folder:
changed files are copied again, and deleted ones are removed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from reelworks.core import files
from reelworks.core.config import Config
from reelworks.core.errors import UserError, first_few
from reelworks.data.checkpoint import manifest, names
from reelworks.data.checkpoint.mirror.remote import CHECKPOINTS, MirrorAway, MirrorError, RemoteFilesystem
from reelworks.data.run.folder import RunFolder, RunInfo

INDEX = "mirror.json"
_SINGLE = ("run.json", "recipe.toml", "environment.json", "events.jsonl", f"{CHECKPOINTS}/{names.HISTORY}")
_FOLDERS = ("recipes", "coverage", "catalog", f"{CHECKPOINTS}/{names.PINS}")
# Copied last into their folders and marking them complete: parts of two catalogs must not be mixed.
_MARKERS = ("catalog.json", "about.json")

Stamp = tuple[int, int]
_ABSENT: Stamp = (-1, 0)  # a file that is copied for the first time


class MirrorIndex(Config):
    """Index of the files that a mirror holds besides checkpoints; it is true at every moment.

    Attributes:
        token: That of the start which wrote it last. A run folder keeps those of its starts: a copy of the folder
            lacks those of the original's later starts, and the other way round.
        folder, name: Where the run's folder was then, and its name as the recipe has it: empty for ".".
        run: Content of its `run.json`.
        files: Size in bytes and modification time in nanoseconds of each file, as in the run folder; while it is
            copied both the former ones and the new ones.
    """

    format: Literal[2] = 2
    token: str
    folder: str
    name: str
    run: RunInfo
    files: dict[str, list[Stamp]]


def own_index(place: RemoteFilesystem, run: RunFolder) -> MirrorIndex | None:
    """Return the index of a run's mirror; None if nothing is at the address.

    Raises:
        MirrorError: Something else is there, or the mirror of another run, or of a folder of which this one is a copy.
    """
    data, others = place.read(INDEX), [name for name in place.names("") if name != "lost+found"]  # of a mounted disk
    if data is None and not others:
        return None
    try:
        index = MirrorIndex.model_validate_json(data or b"")
    except ValidationError as error:
        keeps = f"if this is its mirror, copy all of it to {run.path} before, to go on from it"
        if data is not None or (run.exists and place.read("run.json") == run.info_file.read_bytes()):
            raise MirrorAway(
                f"the mirror's {INDEX} is damaged, lost, or of another version of Reelworks, so nothing is copied; move all that "
                "is at its address away, and the run begins another mirror there",
                code="mirror-index-damaged",
                url=place.url,
                remedy=f"set an address that only this run uses; {keeps}",
            ) from error
        raise MirrorError(
            f"other files are at this address, which a mirror would replace or delete: {first_few(others)}",
            code="mirror-would-be-overwritten",
            url=place.url,
            remedy=f"set an address that only this run uses; {keeps}",
        ) from error
    _require_same_run(place, run, index)
    return index


def _require_same_run(place: RemoteFilesystem, run: RunFolder, index: MirrorIndex) -> None:
    kept = _tokens(run)
    if run.exists and index.run.id != run.info().id:
        owner, instead = "another run", ""
    elif run.exists and kept and index.token not in kept:
        owner = f"another copy of this run, in {index.folder}"
        instead = ", or move this folder away and give the same command, to go on from the mirror"
    elif not run.exists and index.name not in ("", "..", _text(run.path.resolve().name)):  # its recipe may be a copy
        owner = f"the run {index.name}"
        instead = f", or its folder the name {index.name} to go on with that run"
    elif _is_elsewhere(index, run):
        owner, instead = f"the run in {index.folder}", ", or move that folder away to go on in this one"
    else:
        return
    raise MirrorError(
        f"the mirror belongs to {owner}",
        code="mirror-of-another-run",
        url=place.url,
        remedy="give each run an address of its own" + instead,
    )


def _is_elsewhere(index: MirrorIndex, run: RunFolder) -> bool:
    """Whether the folder that wrote the mirror last is still there, and not this one."""
    there = RunFolder(Path(index.folder))
    with suppress(UserError, OSError):
        return there.info().id == index.run.id and not (run.path.exists() and there.path.samefile(run.path))
    return False


def _text(name: str) -> str:
    """Return a name as JSON can hold it, which may not have the bytes that are no text in a file's name."""
    return name.encode(errors="replace").decode()


def _tokens(run: RunFolder) -> list[str]:
    return run.mirror_file.read_text(encoding="utf-8").split() if run.mirror_file.exists() else []


def push(place: RemoteFilesystem, run: RunFolder, token: str) -> None:
    """Update the mirror's files. The first push of a start takes an empty place, or renews the token of the run's own."""
    index = own_index(place, run)
    mirrored = {} if index is None else dict(index.files)
    is_first = index is None or index.token != token
    if is_first:
        # Kept here before it is there: wherever this dies, the run folder has the mirror's token.
        kept = [*_tokens(run), token if index is None else index.token, token]
        files.write_bytes(run.mirror_file, " ".join(dict.fromkeys(kept)).encode())
    local = dict(_listing(run))
    replaced = set()  # catalogs, by their markers, of which parts become those of another
    for path in local.keys() & mirrored.keys():
        marker = posixpath.join(posixpath.dirname(path), _MARKERS[0])
        if marker in mirrored and path != marker and local[path][0] not in _sizes(mirrored[path]):
            replaced.add(marker)
    meanwhile = mirrored | {path: [_ABSENT] for path in {*replaced, *local.keys() - mirrored.keys()}}
    changed = [path for path in sorted(local, key=_order) if meanwhile[path] != [local[path]]]
    meanwhile |= {path: [*dict.fromkeys([*meanwhile[path], local[path]])] for path in changed}
    if changed or is_first:
        _write_index(place, run, token, meanwhile)
    for path in replaced:
        place.remove_file(path)
    for path in changed:
        try:
            place.put(run.path / path, path)
        except FileNotFoundError:
            if (run.path / path).exists():
                raise
            del local[path]  # deleted since the listing
    gone = meanwhile.keys() - local.keys()
    if changed or gone:
        _write_index(place, run, token, {path: [stamp] for path, stamp in local.items()})
    for path in gone:
        place.remove_file(path)


def pull(place: RemoteFilesystem, run: RunFolder, index: MirrorIndex) -> list[str]:
    """Fetch the files that the run folder lacks, and return those that the mirror lost or holds in part."""
    there = {path: place.size(path) for path in filter(manifest.is_inside, index.files)}
    bad: list[str] = []
    for path in sorted(there, key=_order):
        folder, name = posixpath.split(path)
        marker = _marker(path, index)
        if (run.path / marker).exists() or any(
            there[file] is None and _ABSENT in index.files[file] for file in (path, marker)
        ):
            continue  # it is here, or not copied yet
        incomplete = there[path] not in _sizes(index.files[path]) and not name.endswith(".jsonl")
        if incomplete or there[path] is None or (name in _MARKERS and folder in map(posixpath.dirname, bad)):
            bad.append(path)
            continue
        place.get(path, run.path / path)
    if not run.exists:
        run.write_info(index.run)
    return bad


def _sizes(stamps: list[Stamp]) -> set[int]:
    return {size for size, _ in stamps}


def _marker(path: str, index: MirrorIndex) -> str:
    """Return the file that marks a file's folder as complete; the file itself if none does."""
    markers = (posixpath.join(posixpath.dirname(path), name) for name in _MARKERS)
    return next((marker for marker in markers if marker in index.files), path)


def _order(path: str) -> tuple[bool, str]:
    return posixpath.basename(path) in _MARKERS, path


def _write_index(place: RemoteFilesystem, run: RunFolder, token: str, stamps: dict[str, list[Stamp]]) -> None:
    folder, name = _text(str(run.path.resolve())), _text(run.path.name)
    index = MirrorIndex(token=token, folder=folder, name=name, run=run.info(), files=stamps)
    place.write(INDEX, index.model_dump_json().encode())


def _listing(run: RunFolder) -> Iterator[tuple[str, Stamp]]:
    """Yield the files to mirror with size and modification time; hidden ones are locks and unfinished writes."""
    # Arrays of plans are made again.
    candidates = [*(run.path / name for name in _SINGLE), *run.plan_folder.glob("summary*.json")]
    candidates += [file for folder in _FOLDERS for file in (run.path / folder).rglob("*")]
    for file in candidates:
        path = file.relative_to(run.path)
        if file.is_file() and not any(part.startswith(".") for part in path.parts):
            with suppress(FileNotFoundError):  # deleted meanwhile
                stat = file.stat()
                yield path.as_posix(), (stat.st_size, stat.st_mtime_ns)
