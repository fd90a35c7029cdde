"""How the frozen base of a LoRA lies in memory.

Matrix products round their weights to the compute dtype in any case, so that storing those in it changes no result.
All else (norms, tables, embeddings) is small and stays float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from reelworks.models.lora.config import BaseStorage
from reelworks.models.lora.quantized import FORMATS, QuantizedLinear
from reelworks.precision.stored import PRODUCTS


def store(
    module: nn.Module,
    blocks: Sequence[nn.Module],
    base: BaseStorage,
    *,
    compute: torch.dtype,
    device: torch.device,
) -> None:
    """Freeze a network and store it on a device, in place and layer by layer: never is all of it there in float32.

    Args:
        module: The network with its weights, of any dtype and on any device.
        blocks: Whose linear layers are quantised, if the base is.
        base: As resolved.
        compute: Dtype of products.
        device: Where it is moved.
    """
    how = _How(base, torch.float32 if base == "float32" else compute, device, frozenset(map(id, blocks)))
    _store(module, how, inside=False)


class _How(NamedTuple):
    base: BaseStorage
    products: torch.dtype
    device: torch.device
    blocks: frozenset[int]


def _store(parent: nn.Module, how: _How, inside: bool) -> None:
    inside = inside or id(parent) in how.blocks
    _store_parameters(parent, how)
    for name, buffer in list(parent.named_buffers(recurse=False)):
        setattr(parent, name, buffer.to(how.device, torch.float32 if buffer.is_floating_point() else None))
    for name, child in list(parent.named_children()):
        if inside and how.base in FORMATS and type(child) is nn.Linear:
            quantized = QuantizedLinear(child.to(how.device), how.base)
            _store_parameters(quantized, how)
            setattr(parent, name, quantized)
        else:
            _store(child, how, inside)


def _store_parameters(layer: nn.Module, how: _How) -> None:
    """Convert those that it holds itself."""
    dtype = how.products if isinstance(layer, PRODUCTS) else torch.float32
    for name, parameter in list(layer.named_parameters(recurse=False)):
        stored = parameter.detach().to(how.device, dtype if parameter.is_floating_point() else None)
        setattr(layer, name, nn.Parameter(stored, requires_grad=False))
