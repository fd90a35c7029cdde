"""Weights that files store in codes: kept as they are for a frozen base, or multiplied out.

In a state dict, such a weight is a tensor of its shape on `meta` that knows how it is stored. What renames, splits, joins and
reorders the rows of weights for a network does the same to the numbers of their rows, by which their codes follow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from reelworks.core import units
from reelworks.core.errors import UserError, first_few

_ATTRIBUTE = "stored"
# From where on the codes of 8 bits, without their sign, are infinities or NaN; int8 has none.
_NOT_FINITE = {torch.float8_e4m3fn: 0x7F, torch.float8_e5m2: 0x7C}
State = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class StoredWeight(ABC):
    """A weight `[out, in]` as stored: tensors with a row for each output. Rows of one type can be joined."""

    parts: tuple[Tensor, ...]
    type: str

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of values of a row."""

    @abstractmethod
    def dequantize(self) -> Tensor:
        """Return the values, `[out, in]` in float32."""

    def numbers(self) -> Sequence[Tensor]:
        """Return what may be infinite or NaN in it, and makes its values so."""
        return self.parts

    def on_meta(self) -> Tensor:
        """Return a tensor of its shape on `meta` that knows it."""
        return _attach(torch.empty(len(self.parts[0]), self.width, device="meta"), self)


def unsupported(why: str) -> UserError:
    """Return the error about codes that are not read."""
    return UserError(
        f"these weights are quantised in a way that is not read: {why}",
        code="weights-quantised",
        field="model.weights",
        remedy="name the weights in bfloat16, fp8, GGUF, or in ComfyUI's int8; lora.base stores a frozen base in 8 or 4 bits",
    )


def require_finite(state: Mapping[str, Tensor]) -> None:
    """Refuse weights with values, codes or scales that are infinite or no numbers."""
    bad = [name for name, value in state.items() if not all(map(_is_finite, _numbers(value)))]
    if bad:
        raise UserError(
            f"{len(bad):,} of its {len(state):,} tensors {units.verb(len(bad), 'have')} values that are not finite: {first_few(bad)}",
            code="weights-not-finite",
            field="model.weights",
            remedy="name other weights, such as those of an earlier checkpoint, or download them again",
        )


def _numbers(weight: Tensor) -> Sequence[Tensor]:
    stored = stored_weight(weight)
    return [weight] * (not weight.is_meta) if stored is None else stored.numbers()


def _is_finite(value: Tensor) -> bool:
    """Whether all numbers of a tensor are finite, in one pass or two and without a copy."""
    if not value.is_floating_point() or not value.numel():
        return True
    if value.dtype.itemsize > 1:
        return bool(torch.stack(torch.aminmax(value)).isfinite().all())
    highest, lowest = value.view(torch.int8).amax(), value.view(torch.uint8).amax()  # of both signs
    return int(max(highest, lowest - 0x80)) < _NOT_FINITE.get(value.dtype, 0x80)


def _attach(weight: Tensor, stored: StoredWeight) -> Tensor:
    setattr(weight, _ATTRIBUTE, stored)
    return weight


def stored_weight(weight: Tensor) -> StoredWeight | None:
    """Return how a weight is stored; None if it has its values itself."""
    stored: StoredWeight | None = getattr(weight, _ATTRIBUTE, None)
    return stored


def value(weight: Tensor) -> Tensor:
    """Return the values of a weight, in float32 if it is stored in codes."""
    stored = stored_weight(weight)
    return weight.detach() if stored is None else stored.dequantize()


def values(state: Mapping[str, Tensor]) -> State:
    """Return the values of all weights."""
    return {name: value(weight) for name, weight in state.items()}


def match(state: State, rename: Callable[[State], State]) -> tuple[State, dict[str, StoredWeight]]:
    """Return a state dict under the names of a network, and how its weights are stored by these names.

    Weights whose rows the network does not take as a whole, or joins with others of another type, are multiplied out.
    """
    if all(stored_weight(weight) is None for weight in state.values()):
        return rename(state), {}
    while True:  # a weight that is multiplied out breaks those that have rows of it
        rows, numbers = StoredRows(state), rename(row_numbers(state))
        broken = set[str]().union(*(rows.names(found) for found in numbers.values() if rows.take(found) is None))
        if not broken:
            break
        state = {name: value(weight) if name in broken else weight for name, weight in state.items()}
    taken = {name: rows.take(found) for name, found in numbers.items()}
    return rename(state), {name: stored for name, stored in taken.items() if stored is not None}


def attach(module: nn.Module, stored: Mapping[str, StoredWeight]) -> None:
    """Give the parameters that are on `meta` what they are stored as; refuses what is not finite."""
    require_finite({name: weight.on_meta() for name, weight in stored.items()})
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            _attach(parameter, stored[name])


def row_numbers(state: Mapping[str, Tensor]) -> State:
    """Return in each place of each weight the number of its row among all stored ones, from 1 on; 0 in other weights."""
    numbers, first, zero = {}, 1, torch.zeros((), dtype=torch.float64)
    for name, weight in state.items():
        numbers[name] = zero.expand(weight.shape)
        if stored_weight(weight) is not None:
            rows = torch.arange(first, first + len(weight), dtype=torch.float64)
            numbers[name] = rows[:, None].expand(weight.shape)
            first += len(weight)
    return numbers


class StoredRows:
    """The rows of the stored weights of a file, by number."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._named = {name: stored for name, weight in state.items() if (stored := stored_weight(weight)) is not None}
        self._names = list(self._named)
        counts = [len(stored.parts[0]) for stored in self._named.values()]
        self._ends = torch.tensor(counts, dtype=torch.int64).cumsum(0)

    def _places(self, numbers: Tensor) -> Any:
        """Return the indices of the weights that numbers from 1 on belong to."""
        return torch.bucketize(numbers.long(), self._ends)

    def names(self, numbers: Tensor) -> set[str]:
        """Return the names of the weights that have some of the rows."""
        numbers = _first_column(numbers)
        return {self._names[place] for place in self._places(numbers[numbers > 0]).unique().tolist()}

    def take(self, numbers: Tensor) -> StoredWeight | None:
        """Return the weight `[out, in]` of these rows; None if it does not consist of whole rows of one type."""
        different = _first_column(numbers)
        if numbers.ndim != 2 or not (different.gt(0).all() and different.eq(different[:, :1]).all()):
            return None
        first: Any = different[:, 0].long()
        places, counts = self._places(first).unique_consecutive(return_counts=True)
        found = [self._named[self._names[place]] for place in places.tolist()]
        if len({each.type for each in found}) != 1 or any(each.width != numbers.shape[1] for each in found):
            return None
        starts = torch.cat([self._ends.new_zeros(1), self._ends])[places] + 1
        indices = [own - start for start, own in zip(starts, first.split(counts.tolist()), strict=True)]
        pieces = [[_rows(part, own) for part in each.parts] for each, own in zip(found, indices, strict=True)]
        joined = (parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*pieces, strict=True))
        return replace(found[0], parts=tuple(joined))


def _first_column(numbers: Tensor) -> Tensor:
    """Return one column of numbers that have memory for one alone, as nearly all have."""
    return numbers[..., :1] if numbers.ndim and numbers.stride(-1) == 0 else numbers


def _rows(stored: Tensor, indices: Tensor) -> Tensor:
    """Return rows without a copy if they follow each other."""
    first, count = int(indices[0]), len(indices)
    if torch.equal(indices, torch.arange(first, first + count)):
        return stored[first : first + count]
    return stored[indices]
