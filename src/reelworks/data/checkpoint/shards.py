"""Write and read the tensors of a checkpoint: torch.distributed.checkpoint plans who has which part, files hold them.

    plan (collective)  →  write (this rank alone, on any thread)  →  finish (rank 0)

Each rank writes one .safetensors file. A tensor that several ranks hold alike is written once, a sharded one (DTensor)
in parts, and each part has a digest of its own: ranks verify what they read while they read it, whatever their number.
torch's own `save` plans and writes at once and so cannot run during training without a process group of its own; its
files hold pickles, which run code when they are read.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, WriteItem
from torch.distributed.tensor import DTensor

from reelworks.core import digests, retry, storage
from reelworks.data.checkpoint import names, safetensors_header
from reelworks.data.checkpoint.manifest import BadCheckpoint, FileEntry
from reelworks.data.checkpoint.safetensors_header import TensorRange
from reelworks.data.distributed import collectives


@dataclass(frozen=True)
class TensorChunk:
    """A part of a tensor in a file: where it lies in the tensor, and where in the file."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    file: str  # below the checkpoint's folder
    begin: int  # bytes
    digest: str


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a checkpoint.

    Attributes:
        device: Type of the device that it was on.
        placements: How a DTensor was placed on each dimension of its mesh, as `Shard` and `Replicate` are numbered:
            the dimension that is sharded, or None; empty for other tensors.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    device: str
    placements: tuple[int | None, ...]
    chunks: tuple[TensorChunk, ...]


Index = dict[str, StoredTensor]
_PIECE_BYTES = 1 << 19
_Key = tuple[str, tuple[int, ...]]  # name of a tensor, and offset of a chunk in it


@dataclass(frozen=True)
class Written:
    """The file that one rank wrote, if any, and the chunks in it."""

    entries: list[FileEntry] = field(default_factory=list)
    chunks: dict[_Key, TensorChunk] = field(default_factory=dict)
    traits: dict[str, tuple[str, tuple[int | None, ...]]] = field(default_factory=dict)  # device and placements


@dataclass
class Shards:
    """Tensors that are being written to a folder."""

    folder: Path
    metadata: Metadata | None  # torch's index of all tensors; None except on rank 0
    _mine: SavePlan  # torch's plan of what this rank writes
    _planner: DefaultSavePlanner
    _tensors: Mapping[str, Tensor]

    @classmethod
    def plan(cls, folder: Path, tensors: Mapping[str, Tensor]) -> Shards:
        """Distribute tensors, which must not change until written, over the ranks' files in a folder. Collective."""
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        metadata: Metadata | None = None

        def own() -> SavePlan:
            planner.set_up_planner(dict(tensors), is_coordinator=collectives.rank() == 0)
            return planner.create_local_plan()

        def distribute(plans: list[SavePlan]) -> list[SavePlan]:
            nonlocal metadata
            shared, metadata = planner.create_global_plan(plans)
            return shared

        mine = planner.finish_plan(collectives.through_first(own, distribute))
        return cls(folder, metadata, mine, planner, tensors)

    def write(self) -> Written:
        """Write this rank's file. Not collective; may run on any thread."""
        traits: dict[str, tuple[str, tuple[int | None, ...]]] = {}
        for name, tensor in self._tensors.items():
            placements = tensor.placements if isinstance(tensor, DTensor) else ()
            traits[name] = tensor.device.type, tuple(getattr(p, "dim", None) for p in placements)
        if not self._mine.items:
            return Written(traits=traits)
        items = sorted(self._mine.items, key=lambda item: -_range(item).dtype.itemsize)  # aligns each in the file
        file = self.folder / names.TENSORS / f"rank-{collectives.rank():05d}.safetensors"
        path = file.relative_to(self.folder).as_posix()
        entries: list[FileEntry] = []
        chunks: dict[_Key, TensorChunk] = {}

        def record(size: int, digest: str) -> None:
            entries.append(FileEntry(path=path, size=size, digest=digest))

        with storage.create(file, on_close=record) as stream:
            stream.write(safetensors_header.encode([_range(item) for item in items], {"format": "pt"}))
            for item in items:
                begin, checksum = stream.tell(), digests.running()
                data = self._planner.resolve_data(item)
                assert isinstance(data, Tensor)
                for piece in _pieces(safetensors_header.raw(data.cpu()).numpy().data):
                    checksum.update(piece)
                    stream.write(piece)
                offset, shape = _place(item)
                chunks[item.index.fqn, offset] = TensorChunk(offset, shape, path, begin, checksum.hexdigest())
        return Written(entries, chunks, traits)

    def index(self, written: Sequence[Written]) -> Index:
        """Return the index of all tensors from what all ranks wrote, on rank 0 alone."""
        assert self.metadata is not None
        chunks = {key: chunk for part in written for key, chunk in part.chunks.items()}
        traits = {name: trait for part in reversed(written) for name, trait in part.traits.items()}
        index = {}
        for name, stored in self.metadata.state_dict_metadata.items():
            assert isinstance(stored, TensorStorageMetadata)
            parts = tuple(chunks[name, tuple(chunk.offsets)] for chunk in stored.chunks)
            index[name] = StoredTensor(stored.properties.dtype, tuple(stored.size), *traits[name], parts)
        return index


def _place(item: WriteItem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    assert item.tensor_data is not None
    return tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.chunk.sizes)


def _range(item: WriteItem) -> TensorRange:
    """Return how a rank's part of a tensor is named and typed in its file, for any reader of the format."""
    assert item.tensor_data is not None
    offset, shape = _place(item)
    name, dtype = item.index.fqn, item.tensor_data.properties.dtype
    if shape != tuple(item.tensor_data.size):
        name += "[" + ",".join(f"{first}:{first + count}" for first, count in zip(offset, shape, strict=True)) + "]"
    if dtype not in safetensors_header.DTYPES:
        dtype, shape = torch.uint8, (math.prod(shape) * dtype.itemsize,)
    return TensorRange(name, dtype, shape)


def _pieces(data: memoryview) -> Iterator[memoryview]:
    """Cut bytes so that each piece is still in the processor's cache when its checksum is computed."""
    for at in range(0, len(data), _PIECE_BYTES):
        yield data[at : at + _PIECE_BYTES]


def read(folder: Path, index: Mapping[str, StoredTensor], into: Mapping[str, Tensor]) -> None:
    """Read tensors of a checkpoint into existing ones of the same shapes, of which DTensors may be sharded in any way.

    Values are cast to the dtype that they are read into. Not collective: each rank reads its own parts.

    Raises:
        BadCheckpoint: A part is missing, or has changed since it was written; some tensors have new values then.
        OSError: The storage still fails after retries; the checkpoint may be good.
    """
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(into), Metadata({name: _metadata(index[name]) for name in into}), is_coordinator=False)
    by_file: dict[str, dict[tuple[str, int], list[ReadItem]]] = defaultdict(lambda: defaultdict(list))
    for item in planner.create_local_plan().items:
        name, number = item.storage_index.fqn, item.storage_index.index
        assert number is not None
        by_file[index[name].chunks[number].file][name, number].append(item)
    for path, parts in by_file.items():
        chunks = [(index[name], index[name].chunks[number], items) for (name, number), items in parts.items()]
        with _opened(folder / path) as file:
            for stored, chunk, items in sorted(chunks, key=lambda each: each[1].begin):
                _read_chunk(file, stored, chunk, items, planner)


def _metadata(stored: StoredTensor) -> TensorStorageMetadata:
    chunks = [ChunkStorageMetadata(torch.Size(c.offset), torch.Size(c.shape)) for c in stored.chunks]
    return TensorStorageMetadata(TensorProperties(dtype=stored.dtype), torch.Size(stored.shape), chunks)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = retry.with_retries(lambda: path.open("rb", buffering=0))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise BadCheckpoint(f"{path.parent.name}/{path.name} is missing") from error
    with file:
        yield file


@torch.no_grad()
def _read_chunk(
    file: BinaryIO, stored: StoredTensor, chunk: TensorChunk, items: Sequence[ReadItem], planner: DefaultLoadPlanner
) -> None:
    """Read and verify a chunk, and copy what a rank needs of it; at once into its place where that is possible."""
    targets = [planner.resolve_tensor(item).detach() for item in items]
    first = targets[0]
    is_plain = first.device.type == "cpu" and first.dtype == stored.dtype and first.is_contiguous()
    is_plain = is_plain and not (first.is_conj() or first.is_neg())
    direct = is_plain and len(items) == 1 and tuple(items[0].lengths) == chunk.shape
    data = first if direct else torch.empty(chunk.shape, dtype=stored.dtype, device="cpu")
    checksum, at = digests.running(), chunk.begin
    for piece in _pieces(safetensors_header.raw(data).numpy().data):
        _read_exactly(file, piece, at)
        checksum.update(piece)
        at += len(piece)
    if checksum.hexdigest() != chunk.digest:
        raise BadCheckpoint(f"{chunk.file} has changed since it was written")
    if not direct:
        for item, target in zip(items, targets, strict=True):
            part = data
            for dim, (first, count) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                part = part.narrow(dim, first, count)
            target.copy_(part)


def _read_exactly(file: BinaryIO, view: memoryview, begin: int) -> None:
    done = 0

    def read() -> int:
        file.seek(begin + done)
        return file.readinto(view[done:])  # type: ignore[attr-defined, no-any-return]

    while done < len(view):
        if not (count := retry.with_retries(read)):
            raise BadCheckpoint(f"{Path(file.name).name} ends too early")
        done += count


def tensors_in(state: Any) -> list[Tensor]:
    """Return the tensors in nested dicts, lists and tuples."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, Mapping | list | tuple):
        inner = state.values() if isinstance(state, Mapping) else state
        return [tensor for value in inner for tensor in tensors_in(value)]
    return []


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes that this rank's part of tensors takes on disk; the sum over ranks is that of the checkpoint.

    What several ranks hold alike is written once: plain tensors count on rank 0, a DTensor's shard divided by its copies.
    """
    return sum(map(_stored_bytes, tensors))


def _stored_bytes(value: Tensor) -> int:
    if isinstance(value, DTensor):
        copies = [value.device_mesh.size(i) for i, p in enumerate(value.placements) if p.is_replicate()]
        return value.to_local().nbytes // math.prod(copies) + _INDEX_BYTES
    return 0 if collectives.rank() else value.nbytes + _INDEX_BYTES


_INDEX_BYTES = 512  # most that the header and the index say of a tensor
