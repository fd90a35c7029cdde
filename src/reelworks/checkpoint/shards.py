"""Write shards with torch.distributed.checkpoint in three stages, of which only the second takes long.

    plan (collective)  →  write (this rank alone, on any thread)  →  finish (rank 0)

torch's own `save` does all three at once and communicates with other ranks in between, so it cannot run during
training without a process group of its own. The planner and the writer are torch's; the files go through our
storage, which computes digests while it writes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor

from reelworks.checkpoint.manifest import FileEntry
from reelworks.core import storage
from reelworks.distributed import collectives


@dataclass
class _Files(FileSystem):
    """File system for torch's writer that records the size and digest of every file it writes."""

    entries: dict[Path, tuple[int, str]] = field(default_factory=dict)

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        assert mode == "wb"
        file = Path(path)

        def record(size: int, digest: str) -> None:
            self.entries[file] = size, digest

        with storage.create(file, on_close=record) as stream:
            yield stream

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        storage.rename(Path(path), Path(new_path))
        self.entries[Path(new_path)] = self.entries.pop(Path(path))

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: the folder exists already."""

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        raise FileExistsError(f"{path} exists already")


@dataclass(frozen=True)
class Written:
    """Files that one rank wrote, as torch's metadata and as the manifest describe them."""

    results: list[WriteResult]
    entries: list[FileEntry]


@dataclass
class Shards:
    """A state that is being written to a folder."""

    folder: Path
    metadata: Metadata | None  # torch's index of all tensors; None except on rank 0
    mine: SavePlan  # torch's plan of what this rank writes
    _planner: DefaultSavePlanner
    _writer: FileSystemWriter
    _files: _Files

    @classmethod
    def plan(cls, folder: Path, state: dict[str, Any]) -> Shards:
        """Distribute a state, which must not change until written, over the ranks into an empty folder. Collective."""
        files = _Files()
        # sync_files is off because our streams sync themselves.
        writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=False, overwrite=False)
        writer.fs = files
        planner = DefaultSavePlanner()
        first = collectives.rank() == 0

        def own() -> SavePlan:
            planner.set_up_planner(state, writer.storage_meta(), first)
            writer.set_up_storage_writer(first, rank=collectives.rank(), use_collectives=True)
            return writer.prepare_local_plan(planner.create_local_plan())

        metadata: Metadata | None = None

        def distribute(plans: list[SavePlan]) -> list[SavePlan]:
            nonlocal metadata
            shared, metadata = planner.create_global_plan(plans)
            return writer.prepare_global_plan(shared)

        mine = planner.finish_plan(collectives.through_first(own, distribute))
        return cls(folder, metadata, mine, planner, writer, files)

    def write(self) -> Written:
        """Write this rank's shards. Not collective; may run on any thread."""
        future = self._writer.write_data(self.mine, self._planner)
        future.wait()
        return Written(future.value(), self._entries())

    def finish(self, written: list[Written]) -> list[FileEntry]:
        """Write torch's metadata, on rank 0 alone, and return the entries of all ranks' files."""
        assert self.metadata is not None
        own = set(self._files.entries)
        self._writer.finish(self.metadata, [part.results for part in written])
        new = [entry for entry in self._entries() if self.folder.parent / entry.path not in own]
        storage.fsync_folder(self.folder)
        return [entry for part in written for entry in part.entries] + new

    def _entries(self) -> list[FileEntry]:
        root = self.folder.parent
        return [
            FileEntry(path=file.relative_to(root).as_posix(), size=size, digest=digest)
            for file, (size, digest) in sorted(self._files.entries.items())
        ]


# torch.save wraps each value in an archive of 1 to 1.5 KB, and the metadata describes each.
_RECORD_BYTES = 2048


def local_bytes(state: Any) -> int:
    """Estimate the bytes of this rank's part of a state on disk; the sum over ranks is the checkpoint's size.

    Replicas are written once: plain values count on rank 0, a DTensor's shard counts divided by its copies.
    """
    return sum(map(_stored_bytes, leaves(state)))


def _stored_bytes(value: Any) -> int:
    if isinstance(value, DTensor):
        copies = [value.device_mesh.size(i) for i, p in enumerate(value.placements) if p.is_replicate()]
        return value.to_local().nbytes // math.prod(copies) + _RECORD_BYTES
    if collectives.rank():
        return 0
    return _RECORD_BYTES + (value.nbytes if isinstance(value, Tensor) else 0)


def leaves(state: Any) -> Iterator[Any]:
    """Yield the tensors and plain values in nested dicts, lists and tuples."""
    if isinstance(state, Mapping | list | tuple):
        for value in state.values() if isinstance(state, Mapping) else state:
            yield from leaves(value)
    else:
        yield state
