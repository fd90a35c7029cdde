"""Weights that files hold in bitsandbytes' nf4: kept as they are for a frozen base.

A weight `[out, in]` is stored as two values a byte, the first in the upper four bits, with a scale for each 64 values
(`absmax`), which may be rounded to 8 bits itself, and a description (`quant_state.bitsandbytes__nf4`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reelworks.core.errors import UserError

_STATE = ".quant_state.bitsandbytes__"
_PARTS = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")
_ATTRIBUTE = "packed"
_BLOCK = 64


class Nf4Weight(NamedTuple):
    """A weight in nf4: codes `[out, in / 2]` with the first value in the lower bits, and scales `[out, in / 64]`."""

    codes: Tensor
    scale: Tensor


def has_any(state: Mapping[str, Tensor]) -> bool:
    """Whether a file has weights in bitsandbytes' 4 bits."""
    return any(_STATE in key for key in state)


def unsupported(why: str) -> UserError:
    """Return the error about such a file."""
    return UserError(
        f"these weights are stored in 4 bits by bitsandbytes, and {why}",
        code="weights-quantised",
        field="model.weights",
        remedy="name the weights in bfloat16 or fp8; lora.base stores a frozen base in 4 bits",
    )


def read_quantized(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return a file's tensors, with nf4 weights as tensors of their shapes on `meta`, their codes, and their scales.

    What renames, splits and joins the rows of weights does the same to codes and scales.
    """
    packed = {key.partition(_STATE)[0]: _packed(state, key) for key in state if _STATE in key}
    unused = tuple(f"{name}{part}" for name in packed for part in (*_PARTS, _STATE))
    values = {key: value for key, value in state.items() if not key.startswith(unused)}
    zero = torch.zeros(())
    for name, weight in packed.items():
        values[name] = torch.empty(weight.codes.shape[0], 2 * weight.codes.shape[1], device="meta")
    codes = {n: packed[n].codes if n in packed else zero.expand(v.shape) for n, v in values.items()}
    scales = {n: packed[n].scale if n in packed else zero.expand(v.shape) for n, v in values.items()}
    return values, codes, scales


def _packed(state: Mapping[str, Tensor], key: str) -> Nf4Weight:
    name = key.partition(_STATE)[0]
    told: dict[str, Any] = json.loads(bytes(state[key].numpy().tobytes()))
    out, width = told["shape"] if len(told["shape"]) == 2 else (0, 1)
    if told["quant_type"] != "nf4" or told["blocksize"] != _BLOCK or width % _BLOCK:
        raise unsupported(f"{name} has {told['quant_type']} in blocks of {told['blocksize']} for {told['shape']}")
    scale = state[f"{name}.absmax"]
    if "nested_offset" in told:
        blocks = torch.arange(scale.numel()) // told["nested_blocksize"]
        scale = state[f"{name}.nested_quant_map"][scale.int()] * state[f"{name}.nested_absmax"][blocks]
        scale = scale + told["nested_offset"]
    codes = state[name].flatten()
    return Nf4Weight((codes >> 4 | codes << 4).view(out, width // 2), scale.float().view(out, width // _BLOCK))


def attach(module: nn.Module, codes: Mapping[str, Tensor], scales: Mapping[str, Tensor]) -> None:
    """Give the parameters that are still on `meta` their codes and scales."""
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            weight = Nf4Weight(codes[name], scales[name])
            assert weight.codes.shape == (parameter.shape[0], parameter.shape[1] // 2), name
            setattr(parameter, _ATTRIBUTE, weight)


def packed(parameter: Tensor) -> Nf4Weight | None:
    """Return the codes and scales of a parameter; None if it is not in nf4."""
    weight: Nf4Weight | None = getattr(parameter, _ATTRIBUTE, None)
    return weight
