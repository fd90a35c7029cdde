"""The mirror as a place: a run folder's layout on any storage that fsspec reaches.

    checkpoints/step-000012000/{files, manifest.json}    uploaded with the manifest last, deleted with it first
    run.json, events.jsonl, plan/, catalog/, ...         what a resume needs besides
    mirror.json                                          whose mirror it is, and the files beside the checkpoints

A checkpoint without a manifest does not exist. Object storage has no rename, so what a dead process left of an
upload stays, unseen, until its step is uploaded again or an upload of a later step removes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import fsspec
from fsspec.core import url_to_fs
from fsspec.utils import get_protocol

from reelworks.checkpoint import manifest, names
from reelworks.checkpoint.config import MirrorConfig
from reelworks.checkpoint.manifest import BadCheckpoint, FileEntry, Manifest, NewerFormat
from reelworks.core import storage
from reelworks.core.errors import UserError

CHECKPOINTS = "checkpoints"
# Beside the files of a checkpoint that the run went back behind; a person can rename it to the manifest.
ABANDONED = "manifest.abandoned.json"
_FIELD = "checkpoints.mirror.url"


class RemoteFilesystem:
    """Files and checkpoints of a mirror. Paths are relative; nothing is cached.

    Args:
        fs: The file system.
        root: The mirror's folder in it.
        url: How people name it.
    """

    def __init__(self, fs: fsspec.AbstractFileSystem, root: str, url: str) -> None:
        self._fs, self._root, self.url = fs, root.rstrip("/"), url

    @classmethod
    def open(cls, config: MirrorConfig) -> RemoteFilesystem:
        """Get ready, without asking the storage.

        Raises:
            UserError: The address is of no known kind, its library is not installed, or a folder's parent is
                missing, as of a disk that is not mounted.
        """
        protocol = get_protocol(config.url)
        is_folder = protocol in ("file", "local")
        try:
            fs, root = url_to_fs(config.url, **config.options, **({"auto_mkdir": True} if is_folder else {}))
        except ImportError as error:
            raise UserError(
                f"addresses of this kind need a library that is not installed ({error})",
                code="mirror-library-missing",
                field=_FIELD,
                value=config.url,
                remedy="pip install 'reelworks[s3]'"
                if protocol in ("s3", "s3a")
                else "install what is named",
            ) from error
        except (ValueError, TypeError) as error:
            raise UserError(
                f"not an address that fsspec knows ({error})",
                code="mirror-address-invalid",
                field=_FIELD,
                value=config.url,
                remedy='give a folder, or an address such as "s3://bucket/run"; see checkpoints.mirror.options too',
            ) from error
        if is_folder and not Path(root).parent.is_dir():
            raise UserError(
                "the folder it is to lie in does not exist",
                code="mirror-folder-missing",
                field=_FIELD,
                value=config.url,
                remedy=f"mount its disk, or make it: mkdir -p {Path(root).parent}",
            )
        return cls(fs, root, config.url)

    def require_outside(self, run: Path) -> None:
        """Refuse the run folder itself: the mirror's rules would delete its checkpoints.

        Raises:
            UserError: It is that, or lies in it.
        """
        if "file" in self._fs.protocol and Path(self._root).resolve().is_relative_to(run.resolve()):
            raise UserError(
                "the mirror lies in the run folder, so both would be lost together",
                code="mirror-inside-run",
                field=_FIELD,
                value=self.url,
                remedy="give a folder on another disk, or an address",
            )

    @contextmanager
    def answering(self, doing: str) -> Iterator[None]:
        """Tell the user where the storage does not answer, which is no verdict on what it holds."""
        try:
            yield
        except (UserError, BadCheckpoint):
            raise
        except Exception as error:  # each kind of storage raises its own
            raise UserError(
                f"the mirror cannot be {doing} now ({describe(error)})",
                code="mirror-unreachable",
                field=_FIELD,
                value=self.url,
                remedy="look at its address, credentials and network, then give the same command again; or leave "
                'it out with --set checkpoints.mirror="none"',
            ) from error

    def probe(self) -> None:
        """Write, read and remove a small file, so that a mistake is known before anything is trained.

        Raises:
            UserError: It did not work.
        """
        path, data = f".probe-{uuid.uuid4().hex[:12]}", b"reelworks"
        with self.answering("written"):
            self.write(path, data)
            if self.read(path) != data:
                raise OSError("a small file reads otherwise than it was written")
            self.remove_file(path)

    def read(self, path: str) -> bytes | None:
        """A small file's content; None where it is not."""
        self._fs.invalidate_cache()
        try:
            data: bytes = self._fs.cat_file(self._at(path))
        except FileNotFoundError:
            return None
        return data

    def write(self, path: str, data: bytes) -> None:
        """Write or replace a small file."""
        with self._whole(path) as target:
            self._fs.pipe_file(target, data)

    def put(self, file: Path, path: str) -> None:
        """Upload or replace a file."""
        with self._whole(path) as target:
            self._fs.put_file(str(file), target)

    def get(self, path: str, file: Path) -> None:
        """Download a file, durably but for its name.

        Raises:
            FileNotFoundError: It is not there.
        """
        self._fs.get_file(self._at(path), str(file))
        with file.open("rb") as f:
            storage.fsync(f.fileno(), file)

    def remove_file(self, path: str) -> None:
        """Remove a file that may be there or not."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._at(path))

    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes of all files below a folder, by their paths in it; empty where there is none."""
        self._fs.invalidate_cache()
        found = self._fs.find(self._at(folder), detail=True)
        start = self._at(folder) + "/"
        return {path.removeprefix(start): int(info["size"]) for path, info in found.items()}

    def steps(self) -> list[int]:
        """Steps that have a folder, whole or not, ascending."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.ls(self._at(CHECKPOINTS), detail=False)
        except FileNotFoundError:
            return []
        steps = (names.parse_step(path.rstrip("/").rpartition("/")[2]) for path in found)
        return sorted(step for step in steps if step is not None)

    def manifest_data(self, step: int) -> bytes | None:
        """A checkpoint's manifest as it was written; None where there is none."""
        return self.read(f"{folder_of(step)}/{manifest.FILE_NAME}")

    def complete(self, step: int) -> Manifest:
        """Manifest of a checkpoint whose files all have their sizes.

        Raises:
            BadCheckpoint: It has no valid manifest, or a file is missing or of another size.
            NewerFormat: This version cannot read it.
        """
        data = self.manifest_data(step)
        if data is None:
            raise manifest.missing()
        found = manifest.parse(data, step)
        sizes = self.sizes(folder_of(step))
        for entry in found.files:
            check_size(entry, sizes.get(entry.path))
        return found

    def is_there(self, wanted: Manifest) -> bool:
        """Say whether this very checkpoint is there, whole."""
        try:
            return self.complete(wanted.step) == wanted
        except NewerFormat:
            raise
        except BadCheckpoint:
            return False

    def remove(self, step: int) -> None:
        """Delete a checkpoint, or what an upload left of one: gone with its manifest, the rest afterwards."""
        self.remove_file(f"{folder_of(step)}/{manifest.FILE_NAME}")
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            self._fs.rm(self._at(folder_of(step)), recursive=True)

    def is_leftover(self, step: int) -> bool:
        """Say whether a folder is what a dead process left of an upload or a deletion."""
        files = self.sizes(folder_of(step))
        return manifest.FILE_NAME not in files and ABANDONED not in files

    def set_aside(self, step: int) -> bool:
        """Take a checkpoint's manifest away and keep its files; False where it has none."""
        data = self.manifest_data(step)
        if data is None:
            return False
        self.write(f"{folder_of(step)}/{ABANDONED}", data)
        self.remove_file(f"{folder_of(step)}/{manifest.FILE_NAME}")
        return True

    @contextmanager
    def _whole(self, path: str) -> Iterator[str]:
        """Return a temporary path for an atomic write; object stores write atomically and need none."""
        target = self._at(path)
        if "file" not in self._fs.protocol:
            yield target
            return
        yield f"{target}.tmp"
        self._fs.mv(f"{target}.tmp", target)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")


def folder_of(step: int) -> str:
    """Folder of a step's checkpoint in a mirror."""
    return f"{CHECKPOINTS}/{names.of_step(step)}"


def check_size(entry: FileEntry, size: int | None) -> None:
    """Compare what lies in a mirror with what was saved.

    Raises:
        BadCheckpoint: It is missing or of another size.
    """
    if size is None:
        raise BadCheckpoint(f"{entry.path} is missing")
    if size != entry.size:
        raise BadCheckpoint(f"{entry.path} has {size} bytes instead of {entry.size}")


def describe(error: BaseException) -> str:
    """An error of a storage in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
