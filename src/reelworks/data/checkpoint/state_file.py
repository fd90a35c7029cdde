"""`state.json` of a checkpoint: every part of the state as a node, and where each tensor is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from reelworks.core import digests, retry, storage
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import manifest, names, safetensors_header, tree
from reelworks.data.checkpoint.manifest import BadCheckpoint, FileEntry
from reelworks.data.checkpoint.shards import Index, StoredTensor, TensorChunk
from reelworks.data.checkpoint.tree import Node, TreeEncoder
from reelworks.data.checkpoint.verify import check_file
from reelworks.data.distributed import collectives

_COMMON = "common"  # in place of a rank


@dataclass
class EncodedState:
    """A state on one rank: a node for each part, and its tensors by name.

    Attributes:
        per_rank: Parts whose values differ between ranks, so that each rank's node is stored.
    """

    nodes: dict[str, Node]
    tensors: dict[str, Tensor]
    per_rank: frozenset[str] = frozenset()

    @property
    def num_bytes(self) -> int:
        """Estimate the size of the nodes on disk, without the index of tensors."""
        return len(json.dumps(self.nodes))


def encode(state: Mapping[str, Any]) -> EncodedState:
    """Encode a state, so that all ranks agree which of its values they have in common. Collective.

    Weights of modules are those of the first rank that has them, as with DistributedDataParallel, which copies buffers from
    there. All else is compared, and a part in which it differs is stored for each rank.
    """
    encoder = TreeEncoder()
    encoded = collectives.each(
        lambda: EncodedState({name: encoder.part(name, part) for name, part in state.items()}, encoder.tensors)
    )
    return encoded if collectives.world_size() == 1 else _separated(encoded, encoder.of_modules)


def _separated(encoded: EncodedState, of_modules: Set[str]) -> EncodedState:
    """Give what differs between ranks a name of its own, but for the values of tensors of modules. Collective."""
    prints = {
        part: {name: _print(encoded.tensors[name]) for name in sorted(tree.tensor_names(node))}
        for part, node in encoded.nodes.items()
    }
    whole = {part: digests.digest_json([node, prints[part]]) for part, node in encoded.nodes.items()}
    differing = _differing(collectives.gather(whole))
    if not differing:
        return encoded
    mine = differing & prints.keys()
    details = collectives.gather({part: prints[part] for part in mine})
    compared = {
        part: {name: text.partition(" = ")[0] if name in of_modules else text for name, text in prints[part].items()}
        for part in mine
    }
    own_digests = {part: digests.digest_json([encoded.nodes[part], compared[part]]) for part in mine}
    per_rank = _differing(collectives.gather(own_digests))
    tensors, new_names = dict(encoded.tensors), dict[str, str]()
    for part in mine:
        for name, own in prints[part].items():
            holders = [rank for rank, parts in enumerate(details) if name in parts.get(part, {})]
            alike = next(rank for rank in holders if details[rank][part][name] == own)
            if alike != holders[0] and part not in per_rank:
                del tensors[name]  # of modules that are the same but for their values
            new_names[name] = name if alike == holders[0] else f"{name}@rank{alike}"
    return EncodedState(
        {part: _renamed(node, new_names) if part in per_rank else node for part, node in encoded.nodes.items()},
        {new_names.get(name, name): tensor for name, tensor in tensors.items()},
        per_rank,
    )


def _differing(by_rank: list[dict[str, str]]) -> frozenset[str]:
    return frozenset(key for key in set().union(*by_rank) if len({ranks.get(key) for ranks in by_rank}) > 1)


def _print(tensor: Tensor) -> str:
    """Return what ranks compare of a tensor: shape and content; a sharded one is one tensor of all ranks."""
    text = f"{tensor.dtype} {tuple(tensor.shape)}"
    if isinstance(tensor, DTensor):
        return text
    flat = safetensors_header.raw(tensor)
    if flat.device.type == "cpu":
        return f"{text} = {digests.of_bytes(flat.numpy().data)}"
    words = flat.view(torch.int32) if len(flat) % 4 == 0 else flat
    # Sums of several strides are computed where the tensor is; ranks' values differ by accident, not by malice.
    sums = (words[::stride].sum(dtype=torch.int64).item() for stride in (1, 2, 3, 7))
    return f"{text} = {' '.join(map(str, sums))}"


def _renamed(node: Node, new_names: Mapping[str, str]) -> Node:
    if isinstance(node, list):
        return [_renamed(each, new_names) for each in node]
    if not isinstance(node, dict):
        return node
    if isinstance(name := node.get("tensor"), str):
        return {**node, "tensor": new_names[name]}
    return {tag: _renamed(value, new_names) for tag, value in node.items()}


@dataclass(frozen=True)
class StoredState:
    """The state of a checkpoint without the values of its tensors.

    Attributes:
        parts: The nodes of each part by rank, or one that all ranks have in common.
        world_size: Number of ranks that saved it.
    """

    parts: dict[str, dict[str, Node]]
    tensors: Index
    world_size: int = field(default=1, compare=False)

    def node(self, part: str, rank: int, world_size: int | None = None) -> Node:
        """Return the node of a part for a rank; with `world_size`, only one that belongs to so many ranks.

        Raises:
            UserError: There is no such part, or its values belong to each of another number of ranks.
        """
        nodes = self.parts.get(part, {})
        if _COMMON in nodes:
            return nodes[_COMMON]
        if nodes and world_size not in (None, self.world_size):
            raise UserError(
                f"its values differ between the {self.world_size} ranks that saved them, and there are {world_size} now",
                code="state-of-each-rank",
                field=part,
                remedy=f'leave it out of the state, or read the values of a rank with store.read(step, rank=0)["{part}"]',
            )
        if str(rank) not in nodes:
            has = ", ".join(sorted(self.parts)) or "nothing"
            raise UserError(
                f"the checkpoint has no such part; it has {has}"
                + (f", not all of it for rank {rank}" if nodes else ""),
                code="checkpoint-part-missing",
                field=part,
                remedy="leave it out of the state, or choose another checkpoint",
            )
        return nodes[str(rank)]


def write(folder: Path, encoded: EncodedState, others: list[dict[str, Node]], index: Index) -> FileEntry:
    """Write the file, on rank 0; `others` are the nodes of the parts that differ, by rank."""
    parts = {
        part: {str(rank): nodes[part] for rank, nodes in enumerate(others) if part in nodes}
        for part in sorted(encoded.per_rank)
    }
    parts |= {part: {_COMMON: node} for part, node in encoded.nodes.items() if part not in encoded.per_rank}
    tensors = {name: _tensor_to_json(stored) for name, stored in index.items()}
    data = json.dumps({"parts": parts, "tensors": tensors}, separators=(",", ":")).encode()
    with storage.create(folder / names.STATE) as file:
        file.write(data)
    return FileEntry(path=names.STATE, size=len(data), digest=digests.of_bytes(data))


def read(folder: Path) -> StoredState:
    """Read the file of a checkpoint.

    Raises:
        BadCheckpoint: There is none, or it has changed since it was written.
        OSError: The storage still fails after retries; the checkpoint may be good.
    """
    listed = manifest.read(folder)
    entry = next((entry for entry in listed.files if entry.path == names.STATE), None)
    if entry is None:
        raise BadCheckpoint("it holds no state")
    check_file(folder, entry, full=True)
    try:
        data = retry.with_retries((folder / names.STATE).read_bytes)
    except FileNotFoundError as error:  # another save replaces the checkpoint
        raise BadCheckpoint(f"{names.STATE} is missing") from error
    try:
        content = json.loads(data)
        tensors = {name: _tensor_from_json(values) for name, values in content["tensors"].items()}
        return StoredState({part: dict(nodes) for part, nodes in content["parts"].items()}, tensors, listed.world_size)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadCheckpoint(f"{names.STATE} is not understood ({type(error).__name__}: {error})") from error


def _tensor_to_json(stored: StoredTensor) -> list[Any]:
    chunks = [[c.offset, c.shape, c.file, c.begin, c.digest] for c in stored.chunks]
    return [str(stored.dtype).removeprefix("torch."), stored.shape, stored.device, stored.placements, chunks]


def _tensor_from_json(values: list[Any]) -> StoredTensor:
    dtype_name, shape, device, placements, chunks = values
    dtype = getattr(torch, dtype_name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{dtype_name} is no data type")
    parts = []
    for offset, part_shape, file, begin, digest in chunks:
        if not manifest.is_inside(file):
            raise ValueError(f"{file!r} does not lie inside the checkpoint")
        parts.append(TensorChunk(tuple(offset), tuple(part_shape), file, int(begin), str(digest)))
    return StoredTensor(dtype, tuple(shape), str(device), tuple(placements), tuple(parts))
