"""Memory that a forward pass keeps for the backward pass, counted as it is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Kept:
    """What was kept so far, each piece of memory once."""

    bytes: int = 0


@contextmanager
def counted() -> Iterator[Kept]:
    """Count while open; parameters, which are there anyway or are fetched again, are left out."""
    kept, seen = Kept(), set[int]()

    def count(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        is_parameter = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
        if not is_parameter and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            kept.bytes += storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        yield kept
