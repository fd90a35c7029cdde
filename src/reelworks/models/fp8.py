"""Weights that files hold in fp8 with scales: multiplied out, or kept as they are for a frozen base.

A file of ComfyUI has a scale for each weight, or one for each of its rows, named `weight_scale` or `scale_weight`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

_SUFFIXES = (".scale_weight", ".weight_scale")
_UNUSED = (".scale_input", ".input_scale", "scaled_fp8", ".comfy_quant")
_ATTRIBUTE = "row_scale"


def dequantize_all(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Multiply values by the scales stored with them, and drop the scales."""
    values, scales = _apart(state)
    return values | {name: values[name].float() * scale for name, scale in scales.items()}


def read_quantized(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return values as they are stored, and their scales in the shape of the values, without memory for each value.

    What renames, splits and joins the values does the same to the scales. Values without a scale have 1.
    """
    values, scales = _apart(state)
    # Parameters of a network are floating-point numbers.
    for name in [name for name in scales if not values[name].is_floating_point()]:
        values[name] = values[name].float() * scales.pop(name)
    one = torch.ones(())
    return values, {name: scales.get(name, one).expand(value.shape) for name, value in values.items()}


def _apart(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    values = {
        key: value
        for key, value in state.items()
        # The last part of a marker begins with underscores, such as ComfyUI's of Qwen-Image-Edit-2511.
        if not key.endswith((*_SUFFIXES, *_UNUSED)) and not key.rpartition(".")[2].startswith("__")
    }
    scales = {}
    for suffix in _SUFFIXES:
        for key in (key for key in state if key.endswith(suffix)):
            weight, scale = f"{key.removesuffix(suffix)}.weight", state[key].float()
            if scale.ndim == 1:  # one value, or one for each output row
                scale = scale.reshape(-1, *[1] * (state[weight].ndim - 1))
            scales[weight] = scale
    return values, scales


def attach(module: nn.Module, scales: Mapping[str, Tensor]) -> None:
    """Give the fp8 parameters of a network with two or more axes the scales of their rows."""
    for name, parameter in module.named_parameters():
        if parameter.dtype.itemsize == 1 and parameter.is_floating_point() and parameter.ndim > 1:
            scale = scales[name]
            rows = scale[(slice(None), *[slice(0, 1)] * (scale.ndim - 1))].clone()
            assert torch.equal(rows.expand(scale.shape), scale), f"{name}: scales differ within a row"
            setattr(parameter, _ATTRIBUTE, rows)


def row_scale(parameter: Tensor) -> Tensor | None:
    """Return the scales of a parameter's rows, `[out, 1, ...]` in float32; None if it has none."""
    scale: Tensor | None = getattr(parameter, _ATTRIBUTE, None)
    return scale


def value(parameter: Tensor) -> Tensor:
    """Return a parameter's values: multiplied by its scales, in float32, if it has them."""
    scale = row_scale(parameter)
    detached = parameter.detach()
    return detached if scale is None else detached.float() * scale.to(detached.device)
