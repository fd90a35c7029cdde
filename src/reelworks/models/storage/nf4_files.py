"""Weights that files hold in bitsandbytes' nf4.

A weight `[out, in]` is stored as two values a byte, the first in the upper four bits, with a scale for each 64 values
(`absmax`), which may be rounded to 8 bits itself, and a description (`quant_state.bitsandbytes__nf4`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reelworks.core.errors import UserError
from reelworks.models.storage.stored_weights import StoredWeight, unsupported

_STATE = ".quant_state.bitsandbytes__"
_PARTS = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")
BLOCK = 64  # values that share a scale
# From QLoRA (arXiv 2305.14314), so that both ends, -1 and 1, stand for equal shares of a normal distribution.
_END = 0.9677083


class Nf4Weight(StoredWeight):
    """Codes `[out, in / 2]` with the first value in the lower bits, and scales `[out, in / 64]`."""

    @property
    def width(self) -> int:
        """Number of values of a row."""
        return 2 * self.parts[0].shape[1]

    def dequantize(self) -> Tensor:
        """Return the values, `[out, in]` in float32."""
        codes, scale = self.parts
        return dequantize(codes, scale.reshape(-1, 1), (len(codes), self.width), torch.float32)


def dequantize(codes: Tensor, scale: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return the values of codes, of which 64 have a scale, as a weight `[out, in]` in a dtype."""
    units = _pairs(codes.device, dtype)[codes.int()]
    out, width = shape
    return (units.view(-1, BLOCK) * scale).flatten()[: out * width].view(out, width)


@functools.cache
def levels() -> Tensor:
    """Return the 16 values of nf4, ascending from -1 to 1: quantiles of a normal distribution, and zero."""
    above = torch.special.ndtri(torch.linspace(0.5, _END, 9, dtype=torch.float64)[1:])
    below = -torch.special.ndtri(torch.linspace(0.5, _END, 8, dtype=torch.float64)[1:])
    levels = torch.cat([below.flip(0), above.new_zeros(1), above])
    return (levels / levels.max()).float()


@functools.cache
def _pairs(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the two values that each byte encodes, `[256, 2]`."""
    byte = torch.arange(256)
    return levels()[torch.stack([byte & 15, byte >> 4], dim=1)].to(device, dtype)


def has_any(state: Mapping[str, Tensor]) -> bool:
    """Whether a file has weights in bitsandbytes' 4 bits."""
    return any(_STATE in key for key in state)


def read_quantized(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a file's tensors, of which nf4 weights are on `meta`, see `stored_weights`."""
    packed = {}
    for key in (key for key in state if _STATE in key):
        try:
            packed[key.partition(_STATE)[0]] = _packed(state, key)
        except UserError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise unsupported(f"{key} does not fit its weight, in 4 bits of bitsandbytes") from error
    unused = tuple(f"{name}{part}" for name in packed for part in (*_PARTS, _STATE))
    values = {key: value for key, value in state.items() if not key.startswith(unused)}
    return values | {name: weight.on_meta() for name, weight in packed.items()}


def _packed(state: Mapping[str, Tensor], key: str) -> Nf4Weight:
    name = key.partition(_STATE)[0]
    told: dict[str, Any] = json.loads(bytes(state[key].numpy().tobytes()))
    out, width = told["shape"] if len(told["shape"]) == 2 else (0, 1)
    if told["quant_type"] != "nf4" or told["blocksize"] != BLOCK or width % BLOCK:
        raise unsupported(
            f"{name} has bitsandbytes' {told['quant_type']} in blocks of {told['blocksize']} for {told['shape']}"
        )
    scale = state[f"{name}.absmax"]
    if "nested_offset" in told:
        blocks = torch.arange(scale.numel()) // told["nested_blocksize"]
        scale = state[f"{name}.nested_quant_map"][scale.int()] * state[f"{name}.nested_absmax"][blocks]
        scale = scale + told["nested_offset"]
    codes = state[name].flatten()
    codes = (codes >> 4 | codes << 4).view(out, width // 2)
    return Nf4Weight((codes, scale.float().view(out, width // BLOCK)), "nf4")
