"""Weights that GGUF files hold in blocks of codes.

A weight `[out, in]` is stored as `out` rows of bytes; each row is a sequence of blocks with their own scales.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reelworks.core.errors import UserError, first_few
from reelworks.models.storage.stored_weights import StoredWeight, value

_SHAPE = "comfy.gguf.orig_shape."  # followed by the name of a tensor that was reshaped to rows of whole blocks


class GgufWeight(StoredWeight):
    """A weight's rows as bytes `[out, ...]`, of a type such as "Q4_K"."""

    @property
    def width(self) -> int:
        """Number of values of a row."""
        _, values, size = _types()[self.type]
        return self.parts[0].shape[1] // size * values

    def dequantize(self) -> Tensor:
        """Return the values, `[out, in]` in float32."""
        function, values, size = _types()[self.type]
        (rows,) = self.parts
        result: Tensor = function(rows.reshape(-1, size), values, size, torch.float32)
        return result.reshape(len(rows), -1)

    def numbers(self) -> list[Tensor]:
        """Return the scales within its blocks, a view for each that a block has."""
        halves = self.parts[0].reshape(-1, _types()[self.type][2]).view(torch.float16)
        return [halves[:, place] for place in _scales(self.type)]


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, memory-mapped; weights in codes are tensors on `meta`, see `stored_weights`."""
    file = _reader()(path, "c")  # a private copy of each page that is written, which is none
    read = ("F16", "BF16", *_types())
    unknown = {t.tensor_type.name for t in file.tensors if t.data.dtype.kind not in "fi"}.difference(read)
    if unknown:
        raise UserError(
            f"weights of these types are not read: {first_few(sorted(unknown))}",
            code="weights-quantised",
            remedy="choose a file in Q4_0 to Q8_0, Q2_K to Q6_K, F16 or BF16",
        )
    state = {tensor.name: _tensor(tensor) for tensor in file.tensors}
    for name in state:
        if (field := file.get_field(_SHAPE + name)) is not None:
            state[name] = value(state[name]).reshape([int(n) for n in field.contents()])
    return state


def _package() -> Any:
    try:
        return importlib.import_module("gguf")
    except ImportError as error:
        raise UserError(
            "reading GGUF files needs a package that is not installed",
            code="gguf-not-installed",
            remedy="run: pip install 'reelworks[gguf]'",
        ) from error


def _reader() -> Any:
    """Return the package's reader, which ends at the end of a file: it would go on for as many values as a header states."""

    class Reader(_package().GGUFReader):  # type: ignore[misc]
        def _get(self, offset: int, dtype: Any, count: int = 1, *args: Any, **kwargs: Any) -> Any:
            found = super()._get(offset, dtype, count, *args, **kwargs)
            if len(found) < count:
                raise ValueError("it is truncated")
            return found

    return Reader


@functools.cache
def _types() -> dict[str, tuple[Any, int, int]]:
    """Return for each type of codes: the function that widens blocks, and the values and bytes of a block."""
    known: Any = importlib.import_module("diffusers.quantizers.gguf.utils").dequantize_functions
    sizes: Any = _package().GGML_QUANT_SIZES
    return {type.name: (function, *sizes[type]) for type, function in known.items() if type.name != "BF16"}


@functools.cache
def _scales(type: str) -> list[int]:
    """Return where a block has scales, in steps of two bytes: there, and nowhere else, NaN makes a value of NaN."""
    function, values, size = _types()[type]
    probes = torch.zeros(size // 2, size // 2, dtype=torch.float16).fill_diagonal_(torch.nan)
    found: Tensor = function(probes.view(torch.uint8), values, size, torch.float32).isnan().any(dim=1).nonzero()
    return [int(place) for place in found.flatten()]


def _tensor(tensor: Any) -> Tensor:
    stored, kind = torch.from_numpy(tensor.data), tensor.tensor_type.name
    if kind == "BF16":
        return stored.view(torch.bfloat16)
    if kind not in _types():
        return stored
    shape = [int(size) for size in reversed(tensor.shape)]
    weight = GgufWeight((stored.flatten(0, -2) if len(shape) > 1 else stored[None],), kind)
    return weight.on_meta() if len(shape) == 2 else weight.dequantize().view(shape)
