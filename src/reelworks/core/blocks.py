"""Compute over millions of elements in blocks, whose intermediate results stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelworks.core import machine
from reelworks.core.arrays import F64, I64, Mask

_BLOCK = 1 << 18
_MOST_THREADS = 8


def for_each(count: int, compute: Callable[[slice], None]) -> None:
    """Call a function once for each block of `count` elements; numpy computes without Python's lock, hence in threads."""
    if count <= _BLOCK:
        compute(slice(0, count))
        return
    with ThreadPoolExecutor(min(machine.cores(), _MOST_THREADS)) as threads:
        for _ in threads.map(compute, slices(count)):
            pass


def slices(count: int) -> Iterator[slice]:
    """Yield the blocks of `count` elements, for what has to be computed in order."""
    for first in range(0, count, _BLOCK):
        yield slice(first, min(first + _BLOCK, count))


def elementwise(compute: Callable[..., NDArray[Any]], *columns: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return the results of a function that maps arrays of equal length to one, element by element."""
    result = np.empty(len(columns[0]), dtype=dtype)

    def fill(where: slice) -> None:
        result[where] = compute(*(column[where] for column in columns))

    for_each(len(result), fill)
    return result


def taken(column: NDArray[Any], where: NDArray[Any]) -> NDArray[Any]:
    """Return `column[where]`, of indices of any type, which numpy would widen all at once."""
    return elementwise(column.__getitem__, where, dtype=column.dtype)


def indices(mask: Mask) -> NDArray[Any]:
    """Return the indices at which a mask is true, in the narrowest type that holds them."""
    found = np.empty(np.count_nonzero(mask), dtype=kind_of(len(mask)))
    done = 0
    for where in slices(len(mask)):
        inside = np.flatnonzero(mask[where])
        found[done : done + len(inside)] = inside + where.start
        done += len(inside)
    return found


def counts(numbers: NDArray[np.integer[Any]], length: int) -> I64:
    """Return how often each of 0 to `length - 1` occurs."""
    return sums(numbers, None, length).astype(np.int64)


def sums(numbers: NDArray[np.integer[Any]], values: NDArray[Any] | None, length: int) -> F64:
    """Return the sum of the values at each of the numbers 0 to `length - 1`."""
    total = np.zeros(length)
    for where in slices(len(numbers)):
        total += np.bincount(numbers[where], None if values is None else values[where], minlength=length)
    return total


def mask(indices: NDArray[Any], length: int) -> Mask:
    """Return a mask of `length` elements that is true at some indices."""
    result = np.zeros(length, dtype=np.bool_)
    for where in slices(len(indices)):
        result[indices[where]] = True
    return result


def find(ordered: NDArray[Any], wanted: NDArray[Any]) -> I64:
    """Return the indices of values in an ascending array, -1 for missing ones."""
    if not len(ordered):
        return np.full(len(wanted), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
    return np.where(ordered[place] == wanted, place, -1)


def narrow(numbers: NDArray[np.integer[Any]], most: int | None = None) -> NDArray[Any]:
    """Return integers from -1 on in the narrowest signed type that holds them and `most`, by default the largest of them.

    Arrays of millions of zeros or of indices so take a fraction of their memory.
    """
    return numbers.astype(kind_of(int(numbers.max(initial=0)) if most is None else most), copy=False)


def kind_of(largest: int) -> Any:
    """Return the narrowest signed type that holds integers from -1 to `largest`."""
    return next(kind for kind in (np.int8, np.int16, np.int32, np.int64) if largest <= np.iinfo(kind).max)


def components(count: int, pairs: I64) -> I64:
    """Return for each element the smallest index among those that pairs `[P, 2]` connect it with."""
    label = np.arange(count)
    while len(pairs):
        lower = np.minimum(label[pairs[:, 0]], label[pairs[:, 1]])
        before = label.copy()
        np.minimum.at(label, label[pairs[:, 0]], lower)
        np.minimum.at(label, label[pairs[:, 1]], lower)
        label = label[label]
        if (label == before).all():
            break
    return label
