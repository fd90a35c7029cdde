"""The weights in a checkpoint, read a few tensors at a time and in one process."""

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

# Tensors are read together up to so many bytes: each reading opens the checkpoint's metadata again.
_READ_BYTES = 256 << 20

Kind = tuple[torch.dtype, tuple[int, ...]]


class StoredTensor(NamedTuple):
    """A tensor in a checkpoint: its key there, dtype and shape."""

    key: str
    kind: Kind


def weights_of(path: Path, weights: Weights) -> dict[str, StoredTensor]:
    """Find where each of the model's tensors is stored, by its name in the model's state dict.

    Args:
        path: The checkpoint's folder.
        weights: "ema" takes the average where there is one, and what is not trained from the model.

    Raises:
        UserError: It has no such weights.
    """
    known = FileSystemReader(path / names.DCP).read_metadata().state_dict_metadata
    tensors = {key: one for key, one in known.items() if isinstance(one, TensorStorageMetadata)}
    return {
        name: StoredTensor(key, (tensors[key].properties.dtype, tuple(tensors[key].size)))
        for name, key in _keys(path, tensors, weights).items()
    }


def read(path: Path, wanted: Sequence[StoredTensor]) -> Iterator[Tensor]:
    """Read tensors in order."""
    waiting: dict[str, Tensor] = {}
    size = 0
    for i, (key, (dtype, shape)) in enumerate(wanted):
        waiting[key] = torch.empty(shape, dtype=dtype)
        size += waiting[key].nbytes
        if size >= _READ_BYTES or i + 1 == len(wanted):
            with quiet():
                load(waiting, storage_reader=FileSystemReader(path / names.DCP), no_dist=True)
            yield from waiting.values()
            waiting, size = {}, 0


def _keys(path: Path, known: Iterable[str], weights: Weights) -> dict[str, str]:
    parts = {part: [k for k in known if k.startswith(f"{part}.")] for part in ("model", "ema")}
    missing = "model" if not parts["model"] else weights if not parts[weights] else None
    if missing:
        raise UserError(
            "the checkpoint has no " + ("averaged weights" if missing == "ema" else "weights"),
            code="checkpoint-part-missing",
            field="checkpoint",
            value=str(path),
            remedy="take the trained ones with --weights" if missing == "ema" else "name another one",
        )
    keys = {key.removeprefix("model."): key for key in parts["model"]}
    averages = {key.removeprefix("ema."): key for key in parts["ema"]} if weights == "ema" else {}
    return keys | averages
