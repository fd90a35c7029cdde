"""Weights that files hold in fp8 with scales.

A file of ComfyUI has a scale for each weight, or one for each of its rows, named `weight_scale` or `scale_weight`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from reelworks.models.stored_weights import StoredWeight

_SUFFIXES = (".scale_weight", ".weight_scale")
_UNUSED = (".scale_input", ".input_scale", "scaled_fp8", ".comfy_quant")
_ONE = torch.ones(())  # the scale of a tensor without one


class Fp8Weight(StoredWeight):
    """Codes `[out, in]` in a dtype of 8 bits, and the scales of rows, `[out, 1]` in float32."""

    @property
    def width(self) -> int:
        """Number of values of a row."""
        return self.parts[0].shape[1]

    def dequantize(self) -> Tensor:
        """Return the values, `[out, in]` in float32."""
        codes, scale = self.parts
        return codes.float() * scale


def read_quantized(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a file's tensors: weights in fp8 on `meta`, see `stored_weights`, and others multiplied by their scales."""
    values = {
        key: value
        for key, value in state.items()
        # The last part of a marker begins with underscores, such as ComfyUI's of Qwen-Image-Edit-2511.
        if not key.endswith((*_SUFFIXES, *_UNUSED)) and not key.rpartition(".")[2].startswith("__")
    }
    scales = {
        f"{key.removesuffix(suffix)}.weight": scale.float()
        for suffix in _SUFFIXES
        for key, scale in state.items()
        if key.endswith(suffix)
    }
    return {name: _scaled(value, scales.get(name, _ONE)) for name, value in values.items()}


def _scaled(value: Tensor, scale: Tensor) -> Tensor:
    """Return a tensor with its scale: one value, or one for each output row with or without further axes."""
    if scale.ndim == 1:
        scale = scale.reshape(-1, *[1] * (value.ndim - 1))
    is_fp8 = value.is_floating_point() and value.dtype.itemsize == 1
    if is_fp8 and value.ndim == 2 and (not scale.ndim or scale.shape[1] == 1):
        return Fp8Weight((value, scale.expand(len(value), 1)), str(value.dtype)).on_meta()
    return value if scale is _ONE else value.float() * scale
