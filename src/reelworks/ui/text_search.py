"""Find a text in the captions or paths of millions of clips, whatever its case, without a Python object for each.

Arrow holds all texts of a column in one buffer of bytes. The place of the rarest letter of the wanted text is compared
first, by numpy and in blocks that stay in the processor's cache; a second copy in lower case would take as much memory as
the texts.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
_BLOCK_BYTES = 1 << 19
_SAMPLE_BYTES = 1 << 18
_THREADS = 4
_CASE = 0x20  # the bit in which a capital letter of ASCII differs from a small one


def contains(texts: Any, wanted: str) -> Mask:
    """Return which elements of an Arrow array of `large_string` contain a text; case is ignored, and null has none."""
    found = np.zeros(len(texts), dtype=np.bool_)
    if not wanted:
        found[:] = True
        return found
    _, offset_buffer, data_buffer = texts.buffers()
    if not len(texts) or data_buffer is None:
        return found
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8)
    letters = _alternatives(wanted)
    order = _by_rarity(letters, data[offsets[0] : offsets[0] + _SAMPLE_BYTES])
    ends = np.searchsorted(offsets, np.arange(offsets[0], offsets[-1], _BLOCK_BYTES)[1:], side="right") - 1
    rows = np.unique(np.r_[0, ends, len(texts)])
    blocks = [slice(first, last) for first, last in zip(rows[:-1].tolist(), rows[1:].tolist(), strict=True)]
    search = partial(_search, data, offsets, letters, order, found)
    if len(blocks) == 1:
        search(blocks[0])
        return found
    with ThreadPoolExecutor(_THREADS) as threads:  # numpy compares without Python's lock
        for _ in threads.map(search, blocks):
            pass
    return found


def _alternatives(wanted: str) -> list[tuple[int, ...]]:
    """Return the bytes that each place of a text may have, in small or capital letters."""
    places: list[tuple[int, ...]] = []
    for letter in wanted:
        forms = {form.encode(errors="replace") for form in (letter, letter.lower(), letter.upper())}
        same = [form for form in forms if len(form) == len(letter.encode(errors="replace"))]
        places += [tuple(sorted(set(column))) for column in zip(*same, strict=True)]
    return places


def _by_rarity(letters: list[tuple[int, ...]], sample: NDArray[np.uint8]) -> list[int]:
    """Return the places of a wanted text, rarest bytes first."""
    counts = np.bincount(sample, minlength=256)
    return sorted(range(len(letters)), key=lambda place: int(counts[list(letters[place])].sum()))


def _search(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    letters: list[tuple[int, ...]],
    order: list[int],
    found: Mask,
    rows: slice,
) -> None:
    """Mark the rows of a block that contain the wanted text."""
    edges = offsets[rows.start : rows.stop + 1]
    part = data[edges[0] : edges[-1]]
    room = len(part) - len(letters) + 1
    if room <= 0:
        return
    first, *others = order
    begins = edges[:-1] - edges[0]
    likely = _is_one_of(part[first : first + room], letters[first])
    if not others:
        _mark_any(likely, begins, found[rows])
        return
    second, *others = others
    likely &= _is_one_of(part[second : second + room], letters[second])
    at = np.flatnonzero(likely)
    for place in others:
        at = at[_is_one_of(part[at + place], letters[place])]
    row = np.searchsorted(begins, at, side="right") - 1
    found[rows][row[at + len(letters) <= edges[1:][row] - edges[0]]] = True


def _mark_any(is_letter: Mask, begins: NDArray[np.int64], found: Mask) -> None:
    """Mark the rows that have a letter at any place, of which there may be many."""
    filled = np.flatnonzero(np.diff(begins, append=len(is_letter)))
    found[filled] = np.logical_or.reduceat(is_letter, begins[filled])


def _is_one_of(values: NDArray[np.uint8], letters: tuple[int, ...]) -> Mask:
    if len(letters) == 2 and letters[1] - letters[0] == _CASE and letters[1] & _CASE:
        return np.asarray((values | _CASE) == letters[1])
    result: Mask = values == letters[0]
    for letter in letters[1:]:
        result |= values == letter
    return result
