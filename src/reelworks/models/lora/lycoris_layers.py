"""Forward passes of LoKr, LoHa and OFT layers, in place of peft's, whose parameters they keep.

peft's layers draw a random number in each pass, which breaks compiled graphs, and build the whole update of a LoKr.
"""

from __future__ import annotations

from typing import Any, final

import torch
from peft.tuners.loha import layer as loha
from peft.tuners.lokr import layer as lokr
from peft.tuners.oft import layer as oft
from torch import Tensor, nn
from torch.nn import functional

from reelworks.models.lora.config import LoraConfig

_NAME = "default"  # of the adapter


@final
class LoKrLinear(lokr.Linear):
    """A linear layer with a Kronecker product added to its weight, which is never built."""

    dropout: float

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Multiply `[..., in]`."""
        out: Tensor = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters or self.merged:
            return out
        first, second = _factors(self, "lokr_w1"), _factors(self, "lokr_w2")
        # Inputs m * N + n, outputs l * K + k; w1 is `[l, m]` and w2 `[k, n]`, each one matrix or a product of two.
        sides = first[-1].shape[1], second[-1].shape[1]
        x = functional.dropout(x.to(second[0].dtype), self.dropout, self.training)
        x = x.reshape(*x.shape[:-1], *sides)
        if len(second) == 2:
            x = functional.linear(x, second[1])
        x = x.transpose(-1, -2)
        for factor in reversed(first):
            x = functional.linear(x, factor)
        update = functional.linear(x.transpose(-1, -2), second[0]).flatten(-2)
        scale: float = self.scaling[_NAME]
        return out + (update * scale).to(out.dtype)


def _factors(layer: Any, name: str) -> list[Tensor]:
    """Return the matrices whose product is a factor of a LoKr, from the left."""
    whole = getattr(layer, name)
    if _NAME in whole:
        return [whole[_NAME]]
    return [getattr(layer, f"{name}_a")[_NAME], getattr(layer, f"{name}_b")[_NAME]]


@final
class LoHaLinear(loha.Linear):
    """A linear layer with an elementwise product of two matrices of low rank added to its weight."""

    dropout: float

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Multiply `[..., in]`."""
        out: Tensor = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters or self.merged:
            return out
        w1_a, w1_b, w2_a, w2_b = (getattr(self, f"hada_{part}")[_NAME] for part in ("w1_a", "w1_b", "w2_a", "w2_b"))
        x = functional.dropout(x.to(w1_a.dtype), self.dropout, self.training)
        update = functional.linear(x, (w1_a @ w1_b) * (w2_a @ w2_b))
        scale: float = self.scaling[_NAME]
        return out + (update * scale).to(out.dtype)


@final
class OFTLinear(oft.Linear):
    """A linear layer whose inputs are rotated in blocks."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Multiply `[..., in]`."""
        if not self.disable_adapters and not self.merged:
            parameters: Any = self.oft_R[_NAME]
            rotation_RKC = _rotation(parameters.weight, parameters.block_size)
            blocks = x.to(rotation_RKC.dtype).reshape(*x.shape[:-1], *rotation_RKC.shape[:2])
            x = torch.einsum("...rk,rkc->...rc", blocks, rotation_RKC).flatten(-2).to(x.dtype)
        out: Tensor = self.base_layer(x, *args, **kwargs)
        return out


def _rotation(weight: Tensor, size: int) -> Tensor:
    """Return the rotation of each block in float32: peft's series of five terms for Cayley's map."""
    kind = "cpu" if weight.is_meta else weight.device.type
    with torch.autocast(kind, enabled=False):
        rows, columns = torch.triu_indices(size, size, 1, device=weight.device)
        upper = weight.new_zeros(weight.shape[0], size * size).index_copy(1, rows * size + columns, weight)
        square = upper.view(-1, size, size)
        skew = square - square.mT
        second = skew @ skew
        third = second @ skew
        rotation: Tensor = torch.eye(size, device=weight.device) + 2 * (skew + second + third) + third @ skew
        return rotation


_LAYERS: dict[Any, Any] = {lokr.Linear: LoKrLinear, loha.Linear: LoHaLinear, oft.Linear: OFTLinear}


def replace(module: nn.Module, config: LoraConfig) -> None:
    """Give peft's layers in a network the forward passes of this module, in place.

    The scale of a LoKr with two full factors is 1, as readers of LyCORIS's files have it.
    """
    layers: list[Any] = [child for child in module.modules() if type(child) in _LAYERS]
    for layer in layers:
        layer.__class__ = _LAYERS[type(layer)]
        if config.type != "oft":
            layer.dropout = config.dropout
        if config.type == "lokr" and _NAME in layer.lokr_w1 and _NAME in layer.lokr_w2:
            layer.scaling[_NAME] = 1.0
