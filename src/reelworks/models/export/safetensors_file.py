"""Write a .safetensors file tensor by tensor; the library's own writer needs all of them in memory at once.

Large files are cut into shards with an index, as published weights are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from reelworks.core import files, storage
from reelworks.data.checkpoint import disk_space, safetensors_header
from reelworks.data.checkpoint.safetensors_header import TensorRange

SHARD_BYTES = 10 * 1000**3
INDEX_SUFFIX = ".index.json"


def write(
    path: Path,
    entries: Sequence[TensorRange],
    tensors: Iterable[Tensor],
    metadata: Mapping[str, str],
    shard_bytes: int = SHARD_BYTES,
) -> list[Path]:
    """Write one file atomically and durably, or shards and an index; returns the files, the index last.

    Args:
        path: File to write or replace, ending in `.safetensors`. Ones above `shard_bytes` become shards,
            `NAME-00001-of-00002.safetensors`, and `NAME.safetensors.index.json`.
        entries: Tensors to write, in the order of `ordered`.
        tensors: One tensor for each entry, taken one at a time.
    """
    files.sweep(path)
    disk_space.require(path.parent, sum(entry.num_bytes for entry in entries), "the weights file")
    shards = _cut(entries, shard_bytes)
    targets = [path]
    if (count := len(shards)) > 1:
        targets = [path.with_name(f"{path.stem}-{i:05d}-of-{count:05d}{path.suffix}") for i in range(1, count + 1)]
    source = iter(tensors)
    with ExitStack() as named, ExitStack() as opened:  # all are durable before the first has its name
        for target, shard in zip(targets, shards, strict=True):
            file = opened.enter_context(storage.create(named.enter_context(files.replacing(target))))
            _write_one(file, shard, source, metadata)
    storage.fsync_folder(path.parent)
    if count > 1:
        size = sum(entry.num_bytes for entry in entries)
        file_of = {e.name: target.name for target, shard in zip(targets, shards, strict=True) for e in shard}
        targets.append(path.with_name(path.name + INDEX_SUFFIX))
        files.write_json(targets[-1], {"metadata": {**metadata, "total_size": size}, "weight_map": file_of})
    return targets


def _cut(entries: Sequence[TensorRange], shard_bytes: int) -> list[list[TensorRange]]:
    shards: list[list[TensorRange]] = [[]]
    size = 0
    for entry in entries:
        if shards[-1] and size + entry.num_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += entry.num_bytes
    return shards


def _write_one(
    file: BinaryIO, entries: Sequence[TensorRange], source: Iterator[Tensor], metadata: Mapping[str, str]
) -> None:
    files.hold(file)
    file.write(safetensors_header.encode(entries, metadata))
    for entry in entries:
        tensor = next(source)
        assert (tensor.dtype, tuple(tensor.shape)) == (entry.dtype, entry.shape), entry.name
        file.write(safetensors_header.raw(tensor.cpu()).numpy().data)
