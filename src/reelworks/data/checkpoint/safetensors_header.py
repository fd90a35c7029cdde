"""The header of a .safetensors file: a length (8 bytes, little-endian), then dtype, shape and place of each tensor as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

_ALIGNMENT = 8
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}  # those that common readers know


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, `[N]` uint8 on its device: a view, unless its values lie apart or in another order."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous()  # of one number it may have any stride
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


@dataclass(frozen=True)
class TensorRange:
    """A tensor that will be written, with its dtype and shape in the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def ordered(entries: Iterable[TensorRange]) -> list[TensorRange]:
    """Sort by descending item size, so that each tensor is aligned to its dtype as readers need it."""
    return sorted(entries, key=lambda entry: -entry.dtype.itemsize)


def encode(entries: Sequence[TensorRange], metadata: Mapping[str, str]) -> bytes:
    """Return the header of a file that holds tensors in this order, without gaps; pads it, so that the first is aligned."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for entry in entries:
        end = at + entry.num_bytes
        header[entry.name] = {"dtype": DTYPES[entry.dtype], "shape": entry.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
