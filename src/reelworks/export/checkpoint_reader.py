"""Read a checkpoint's weights in one process, a few tensors at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from reelworks.checkpoint import names
from reelworks.checkpoint.config import Weights
from reelworks.checkpoint.save import quiet
from reelworks.core.errors import UserError

# Most bytes of the tensors that are read together; each read opens the checkpoint's metadata again.
_READ_BYTES = 256 << 20


class StoredTensor(NamedTuple):
    """A tensor in a checkpoint, and its key there."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]


def weights_of(path: Path, weights: Weights) -> dict[str, StoredTensor]:
    """Return the model's stored tensors by their names in its state dict.

    "ema" returns the averaged tensors, and the model's own for those that are not averaged.

    Raises:
        UserError: The checkpoint has no such weights.
    """
    metadata = FileSystemReader(path / names.DCP).read_metadata().state_dict_metadata
    tensors = {key: value for key, value in metadata.items() if isinstance(value, TensorStorageMetadata)}
    return {
        name: StoredTensor(key, tensors[key].properties.dtype, tuple(tensors[key].size))
        for name, key in _keys(path, tensors, weights).items()
    }


def read(path: Path, wanted: Sequence[StoredTensor]) -> Iterator[Tensor]:
    """Yield the tensors in order."""
    pending: dict[str, Tensor] = {}
    size = 0
    for i, (key, dtype, shape) in enumerate(wanted):
        pending[key] = torch.empty(shape, dtype=dtype)
        size += pending[key].nbytes
        if size >= _READ_BYTES or i + 1 == len(wanted):
            with quiet():
                load(pending, storage_reader=FileSystemReader(path / names.DCP), no_dist=True)
            yield from pending.values()
            pending, size = {}, 0


def _keys(path: Path, known: Iterable[str], weights: Weights) -> dict[str, str]:
    parts = {part: [k for k in known if k.startswith(f"{part}.")] for part in ("model", "ema")}
    missing = "model" if not parts["model"] else weights if not parts[weights] else None
    if missing:
        raise UserError(
            "the checkpoint has no " + ("averaged weights" if missing == "ema" else "weights"),
            code="checkpoint-part-missing",
            field="checkpoint",
            value=str(path),
            remedy="export the trained weights with --weights" if missing == "ema" else "choose another checkpoint",
        )
    keys = {key.removeprefix("model."): key for key in parts["model"]}
    averages = {key.removeprefix("ema."): key for key in parts["ema"]} if weights == "ema" else {}
    return keys | averages
