"""The mirror's storage: a run folder's layout on any file system that fsspec supports.

    checkpoints/step-000012000/{files, manifest.json}    uploaded with the manifest last, deleted with it first
    run.json, events.jsonl, coverage/, catalog/, ...     other files that a resume needs
    mirror.json                                          whose mirror it is, and an index of the other files

A checkpoint without a manifest does not exist. Object storage has no rename, so a dead process's partial upload
stays, ignored, until the next copy removes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import fsspec
from fsspec.core import url_to_fs
from fsspec.utils import get_protocol

from reelworks.core import storage
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import manifest, names
from reelworks.data.checkpoint.config import MirrorConfig
from reelworks.data.checkpoint.manifest import BadCheckpoint, Manifest, NewerFormat
from reelworks.data.media import storages

CHECKPOINTS = "checkpoints"
# Manifest of a checkpoint that was set aside when the run went back; renaming it restores the checkpoint.
ABANDONED = "manifest.abandoned.json"


class MirrorError(UserError):
    """A mirror cannot be used; names its address."""

    def __init__(self, problem: str, *, code: str, url: str, remedy: str) -> None:
        super().__init__(problem, code=code, field="checkpoints.mirror.url", value=url, remedy=remedy)


class MirrorAway(MirrorError):  # noqa: N818
    """The storage does not answer, or not with what says whose files are in it; only who needs them has to wait."""


class RemoteFilesystem:
    """Files and checkpoints of a mirror. Paths are relative to `root`, its folder in `fs`; nothing is cached.

    Characters of a pattern in an address stand for themselves: only calls of fsspec that take a path as it is are made.
    """

    def __init__(self, fs: fsspec.AbstractFileSystem, root: str, url: str) -> None:
        self._fs, self._root, self.url = fs, root.rstrip("/"), url

    @classmethod
    def open(cls, config: MirrorConfig) -> RemoteFilesystem:
        """Make the file system of an address, without a request to the storage.

        A folder's parent must exist, which it does not if a disk is not mounted.
        """
        protocol = get_protocol(config.url)
        is_folder = protocol in ("file", "local")
        storages.make_anew()
        try:
            fs, root = url_to_fs(config.url, **config.options, **({"auto_mkdir": True} if is_folder else {}))
        except ImportError as error:
            is_s3 = protocol in ("s3", "s3a")
            raise MirrorError(
                f"addresses of this kind need a library that is not installed ({error})",
                code="mirror-library-missing",
                url=config.url,
                remedy="pip install 'reelworks[s3]'" if is_s3 else "install the library that the message names",
            ) from error
        except (ValueError, TypeError) as error:
            raise MirrorError(
                f"not an address that fsspec knows ({error})",
                code="mirror-address-invalid",
                url=config.url,
                remedy='set a folder, or an address such as "s3://bucket/run"; see checkpoints.mirror.options too',
            ) from error
        if is_folder and not Path(root).parent.is_dir():
            raise MirrorError(
                "the parent folder of the mirror does not exist",
                code="mirror-folder-missing",
                url=config.url,
                remedy=f"mount its disk, or create it: mkdir -p {Path(root).parent}",
            )
        return cls(fs, root, config.url)

    def require_outside(self, run: Path) -> None:
        """Refuse a mirror in the run folder, since the mirror's rules would delete the run's checkpoints."""
        if "file" in self._fs.protocol and Path(self._root).resolve().is_relative_to(run.resolve()):
            raise MirrorError(
                "the mirror lies in the run folder, so both would be lost together",
                code="mirror-inside-run",
                url=self.url,
                remedy="set a folder on another disk, or an address",
            )

    @contextmanager
    def answering(self, doing: str) -> Iterator[None]:
        """Turn errors of the storage into `MirrorAway`."""
        try:
            yield
        except (UserError, BadCheckpoint):
            raise
        except Exception as error:  # each kind of storage raises its own
            raise MirrorAway(
                f"the mirror cannot be {doing} now ({describe(error)})",
                code="mirror-unreachable",
                url=self.url,
                remedy="check its address, credentials and network, then run the same command again; or train "
                'without it: --set checkpoints.mirror="none"',
            ) from error

    def probe(self) -> None:
        """Write, read and remove a small file, so that mistakes show before training starts."""
        path, data = f".probe-{uuid.uuid4().hex[:12]}", b"reelworks"
        self.write(path, data)
        if self.read(path) != data:
            raise OSError("a small test file did not read back as it was written")
        self.remove_file(path)

    def read(self, path: str) -> bytes | None:
        """Return a small file's content; None if it does not exist."""
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            return bytes(self._fs.cat_file(self._at(path)))
        return None

    def write(self, path: str, data: bytes) -> None:
        """Write or replace a small file."""
        with self._atomic(path) as target:
            self._fs.pipe_file(target, data)

    def put(self, file: Path, path: str) -> None:
        """Upload or replace a file, which may grow meanwhile; raises `OSError` if it arrives in part."""
        size = file.stat().st_size
        with self._atomic(path) as target:
            self._fs.put_file(str(file), target)
        if (self.size(path) or 0) < size:
            raise OSError(f"{path} did not arrive whole")

    def get(self, path: str, file: Path) -> None:
        """Download or replace a file durably; raises `OSError` if it arrives in part."""
        storage.mkdirs(file.parent)
        with _replaced(file) as temporary:
            self._fs.get_file(self._at(path), str(temporary))
            if temporary.stat().st_size != self.size(path):
                raise OSError(f"{path} did not arrive whole")

    def remove_file(self, path: str) -> None:
        """Remove a file if it exists."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._at(path))

    def size(self, path: str) -> int | None:
        """Return a file's size; None if it does not exist. It is asked for by name, since listings may lag behind."""
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            return int(self._fs.info(self._at(path))["size"])
        return None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, without hidden ones; empty if it does not exist."""
        self._fs.invalidate_cache()
        start = self._at(folder)
        try:
            paths = [path.rstrip("/") for path in self._fs.ls(start, detail=False)]
        except FileNotFoundError:
            return []
        inside = [path.rpartition("/")[2] for path in paths if path != start]  # object storage may list the folder, too
        return sorted(name for name in inside if not name.startswith("."))

    def steps(self) -> list[int]:
        """Return the steps that have a folder, complete or not, ascending."""
        return sorted(step for name in self.names(CHECKPOINTS) if (step := names.parse_step(name)) is not None)

    def manifest_data(self, step: int) -> bytes | None:
        """Return the content of a checkpoint's manifest file; None if it has none."""
        return self.read(f"{folder_of(step)}/{manifest.FILE_NAME}")

    def complete(self, step: int) -> Manifest:
        """Return the manifest of a checkpoint after checking the sizes of all its files; raises `BadCheckpoint`."""
        if (data := self.manifest_data(step)) is None:
            raise BadCheckpoint(f"{manifest.FILE_NAME} is missing")
        remote = manifest.parse(data, step)
        for entry in remote.files:
            if (size := self.size(f"{folder_of(step)}/{entry.path}")) is None:
                raise BadCheckpoint(f"{entry.path} is missing")
            if size != entry.size:
                raise BadCheckpoint(f"{entry.path} has {size} bytes instead of {entry.size}")
        return remote

    def is_there(self, wanted: Manifest) -> bool:
        """Whether the mirror has a complete copy of the checkpoint with exactly this manifest."""
        try:
            return self.complete(wanted.step) == wanted
        except NewerFormat:
            raise
        except BadCheckpoint:
            return False

    def remove(self, step: int) -> None:
        """Delete a checkpoint or a partial upload; the manifest goes first."""
        self.remove_file(f"{folder_of(step)}/{manifest.FILE_NAME}")
        self._fs.invalidate_cache()
        found = self._fs.find(self._at(folder_of(step)), withdirs=True, detail=True)
        for path, info in sorted(found.items(), reverse=True):  # a folder's files before the folder
            if info["type"] != "directory":
                self._fs.rm_file(path)
            else:
                with suppress(OSError):  # object storage has no folders
                    self._fs.rmdir(path)

    def remove_leftovers(self) -> None:
        """Delete what uploads and deletions left that broke off: folders without a manifest under either of its names."""
        for step in self.steps():
            if self.manifest_data(step) is None and self.size(f"{folder_of(step)}/{ABANDONED}") is None:
                self.remove(step)

    def set_aside(self, step: int) -> bool:
        """Rename a checkpoint's manifest and keep its files; returns False if it has no manifest."""
        if (data := self.manifest_data(step)) is None:
            return False
        self.write(f"{folder_of(step)}/{ABANDONED}", data)
        self.remove_file(f"{folder_of(step)}/{manifest.FILE_NAME}")
        return True

    @contextmanager
    def _atomic(self, path: str) -> Iterator[str]:
        """Yield a temporary path for an atomic write; object stores write atomically and need none."""
        if "file" not in self._fs.protocol:
            yield self._at(path)
            return
        with _replaced(Path(self._at(path))) as temporary:
            yield str(temporary)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")


@contextmanager
def _replaced(file: Path) -> Iterator[Path]:
    """Yield a path beside a file, which what is written there replaces, durably.

    Its name is the same each time, so that what a kill left is written over.
    """
    temporary = file.with_name(f".{file.name}.tmp")
    yield temporary
    with temporary.open("r+b") as f:  # Windows syncs only what may be written
        storage.fsync(f.fileno(), temporary)
    storage.rename(temporary, file)
    storage.fsync_folder(file.parent)


def folder_of(step: int) -> str:
    """Return the folder of a step's checkpoint in a mirror."""
    return f"{CHECKPOINTS}/{names.of_step(step)}"


def describe(error: BaseException) -> str:
    """Return a storage error as one line of text."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
