"""Weights that GGUF files hold in blocks of codes: widened, or kept as they are for a frozen base.

A weight `[out, in]` is stored as `out` rows of bytes; each row is a sequence of blocks with their own scales, so that
rows of a weight can be split, joined and reordered without touching a code.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reelworks.core.errors import UserError, first_few

_ATTRIBUTE = "gguf"
_SHAPE = "comfy.gguf.orig_shape."  # followed by the name of a tensor that was reshaped to rows of whole blocks


class Codes(NamedTuple):
    """A weight's rows as stored: bytes `[out, ...]`, and the name of their type, such as "Q4_K"."""

    rows: Tensor
    type: str


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, memory-mapped; weights in codes are tensors on `meta` that know their codes."""
    file = _package().GGUFReader(path, "c")  # a private copy of each page that is written, which is none
    unknown = sorted({t.tensor_type.name for t in file.tensors if not _is_read(t)})
    if unknown:
        raise UserError(
            f"weights of these types are not read: {first_few(unknown)}",
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


@functools.cache
def _types() -> dict[str, tuple[Any, int, int]]:
    """Return for each type of codes: the function that widens blocks, and the values and bytes of a block."""
    known: Any = importlib.import_module("diffusers.quantizers.gguf.utils").dequantize_functions
    sizes: Any = _package().GGML_QUANT_SIZES
    return {type.name: (function, *sizes[type]) for type, function in known.items() if type.name != "BF16"}


def _is_read(tensor: Any) -> bool:
    return tensor.tensor_type.name in ("F16", "BF16", *_types()) or tensor.data.dtype.kind in "fi"


def _tensor(tensor: Any) -> Tensor:
    stored, kind = torch.from_numpy(tensor.data), tensor.tensor_type.name
    if kind == "BF16":
        return stored.view(torch.bfloat16)
    if kind not in _types():
        return stored
    shape = [int(size) for size in reversed(tensor.shape)]
    codes = Codes(stored.flatten(0, -2) if len(shape) > 1 else stored[None], kind)
    return _set_codes(torch.empty(shape, device="meta"), codes) if len(shape) == 2 else dequantize(codes).view(shape)


def _set_codes(weight: Tensor, codes: Codes) -> Tensor:
    setattr(weight, _ATTRIBUTE, codes)
    return weight


def codes_of(weight: Tensor) -> Codes | None:
    """Return the codes of a weight; None if it has none."""
    codes: Codes | None = getattr(weight, _ATTRIBUTE, None)
    return codes


def value(weight: Tensor) -> Tensor:
    """Return the values of a weight: those of its codes, in float32, if it has them."""
    codes = codes_of(weight)
    return weight if codes is None else dequantize(codes)


def dequantize(codes: Codes) -> Tensor:
    """Return the values that codes stand for, `[out, in]` in float32."""
    function, values, size = _types()[codes.type]
    blocks = codes.rows.reshape(-1, size)
    result: Tensor = function(blocks, values, size, torch.float32)
    return result.reshape(codes.rows.shape[0], -1)


def width(codes: Codes) -> int:
    """Return the number of values of a row."""
    _, values, size = _types()[codes.type]
    return codes.rows.shape[1] // size * values


def row_numbers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return in each place of each weight the number of its row among all rows of codes, from 1 on; 0 without codes.

    What renames, splits and joins the rows of weights does the same to their numbers.
    """
    numbers, first, zero = {}, 1, torch.zeros((), dtype=torch.float64)
    for name, weight in state.items():
        numbers[name] = zero.expand(weight.shape)
        if codes_of(weight) is not None:
            rows = torch.arange(first, first + len(weight), dtype=torch.float64)
            numbers[name] = rows[:, None].expand(weight.shape)
            first += len(weight)
    return numbers


class CodeRows:
    """The rows of codes of a file, by number."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._named = {name: codes for name, weight in state.items() if (codes := codes_of(weight)) is not None}
        self._names = list(self._named)
        self._ends = torch.tensor([len(codes.rows) for codes in self._named.values()], dtype=torch.int64).cumsum(0)

    def _places(self, numbers: Tensor) -> Any:
        """Return the indices of the weights that numbers from 1 on belong to."""
        return torch.bucketize(numbers.long(), self._ends)

    def names(self, numbers: Tensor) -> set[str]:
        """Return the names of the weights that have some of the rows."""
        numbers = _first_column(numbers)
        return {self._names[place] for place in self._places(numbers[numbers > 0]).unique().tolist()}

    def codes(self, numbers: Tensor) -> Codes | None:
        """Return the codes of a weight `[out, in]` with these numbers; None if it does not consist of whole rows."""
        different = _first_column(numbers)
        if numbers.ndim != 2 or not (different.gt(0).all() and different.eq(different[:, :1]).all()):
            return None
        first: Any = different[:, 0].long()
        places, counts = self._places(first).unique_consecutive(return_counts=True)
        parts = [self._named[self._names[place]] for place in places.tolist()]
        if len({part.type for part in parts}) != 1 or any(width(part) != numbers.shape[1] for part in parts):
            return None
        starts = torch.cat([self._ends.new_zeros(1), self._ends])[places] + 1
        pieces = zip(parts, starts, first.split(counts.tolist()), strict=True)
        rows = [_rows(part.rows, one - start) for part, start, one in pieces]
        return Codes(rows[0] if len(rows) == 1 else torch.cat(rows), parts[0].type)


def _first_column(numbers: Tensor) -> Tensor:
    """Return one column of numbers that have memory for one alone, as nearly all have."""
    return numbers[..., :1] if numbers.ndim and numbers.stride(-1) == 0 else numbers


def _rows(stored: Tensor, indices: Tensor) -> Tensor:
    """Return rows without a copy if they follow each other."""
    first, count = int(indices[0]), len(indices)
    if torch.equal(indices, torch.arange(first, first + count)):
        return stored[first : first + count]
    return stored[indices]


def dequantize_broken(state: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Widen the weights whose rows a network with these numbers does not take as a whole, or joins with other types."""
    rows = CodeRows(state)
    broken = [found for found in numbers.values() if _first_column(found).any() and rows.codes(found) is None]
    names = set[str]().union(*map(rows.names, broken))
    return {name: value(weight) if name in names else weight for name, weight in state.items()}


def attach(module: nn.Module, state: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> None:
    """Give the parameters that are still on `meta` the codes of their rows."""
    rows = CodeRows(state)
    for name, parameter in module.named_parameters():
        if parameter.is_meta and _first_column(numbers[name]).any():
            codes = rows.codes(numbers[name])
            assert codes is not None, name
            _set_codes(parameter, codes)
