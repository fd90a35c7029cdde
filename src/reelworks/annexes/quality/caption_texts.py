"""The captions of a catalog as columns of different texts, phrases that most of them have, and words that are nearly another one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelworks.annexes.quality.caption_needs import CaptionNeeds
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.training.plan.data_advice import FILES_NAMED

_LONGEST_PHRASE = 6
_WORDS = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*|[^\w\s]")
# Words that are in most captions of English and say nothing alone.
_STOP = frozenset(
    ("a", "an", "and", "are", "as", "at", "be", "being", "by", "for", "from", "has", "have", "her", "his", "in",
     "into", "is", "it", "its", "of", "on", "or", "that", "the", "their", "them", "there", "they", "this", "to",
     "was", "which", "while", "who", "with", "he", "she", "no", "not", "one", "two", "up", "down", "over", "out")
)  # fmt: skip


class Texts:
    """The captions of readable clips: different texts in a column, and the rows that have each.

    Attributes:
        unique: Different captions, none of them empty.
        total: Number of captions.
    """

    def __init__(self, rows: CatalogRows, needs: CaptionNeeds) -> None:
        self.rows, self._needs = rows, needs
        captions = rows.caption.fill_null("")
        at = np.flatnonzero(rows.readable & np.asarray(pc.not_equal(pc.utf8_trim_whitespace(captions), "")))
        texts = captions.take(pa.array(at))
        if needs.line_datasets and rows.of_datasets(needs.line_datasets)[at].any():
            texts, at = _by_lines(texts, at, rows.of_datasets(needs.line_datasets)[at])
        encoded = texts.dictionary_encode()
        self.unique, self._code, self._row = encoded.dictionary, np.asarray(encoded.indices), at
        self.total = len(at)

    def of_datasets(self, names: Collection[str], *, others: bool = False) -> Texts:
        """Return the captions of some datasets, or of all others."""
        some = self.rows.of_datasets(names) != others
        return self if some.all() else Texts(self.rows.take(np.flatnonzero(some)), self._needs)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of captions with each text."""
        return np.bincount(self._code, minlength=len(self.unique))

    def matching(self, pattern: str, among: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
        """Return a mask of the texts that a regular expression of RE2 finds; of those `among` some indices only, if given."""
        if among is None:
            return np.asarray(pc.match_substring_regex(self.unique, pattern))
        where = np.zeros(len(self.unique), dtype=np.bool_)
        where[among] = np.asarray(pc.match_substring_regex(self.unique.take(pa.array(among)), pattern))
        return where

    def number(self, where: NDArray[np.bool_]) -> int:
        """Return the number of captions with the texts of a mask."""
        return int(self.counts[where].sum())

    def files(self, where: NDArray[np.bool_]) -> tuple[str, ...]:
        """Return the labels of some of the clips with these texts."""
        found = np.flatnonzero(where[self._code])[:FILES_NAMED]
        return tuple(self.rows.label(i) for i in dict.fromkeys(self._row[found].tolist()))

    def some(self, where: NDArray[np.bool_] | None, most: int) -> tuple[NDArray[np.int64], list[str]]:
        """Return the indices of at most so many texts of a mask, evenly spaced, and the texts."""
        at = np.arange(len(self.unique)) if where is None else np.flatnonzero(where)
        if len(at) > most:
            at = at[np.linspace(0, len(at) - 1, most).astype(np.int64)]
        return at, self.unique.take(pa.array(at)).to_pylist()


def _by_lines(texts: Any, at: NDArray[np.int64], split: NDArray[np.bool_]) -> tuple[Any, NDArray[np.int64]]:
    """Return each line of some texts as a text of its own, with the rows of all."""
    marked = pc.if_else(pa.array(split), texts, pc.replace_substring(texts, "\n", " "))
    lines = pc.split_pattern_regex(marked, r"[\r\n]+")
    flat, parent = pc.utf8_trim_whitespace(pc.list_flatten(lines)), np.asarray(pc.list_parent_indices(lines))
    some = np.asarray(pc.not_equal(flat, ""))
    return flat.filter(pa.array(some)), at[parent[some]]


def words_of(caption: str) -> list[str]:
    """Return words and punctuation marks in order."""
    return _WORDS.findall(caption)


def frequent_phrases(captions: Sequence[str], share: float, trigger: str | None = None) -> list[str]:
    """Return the longest phrases that more than a share of captions have, the most frequent first.

    A phrase has up to six words of one part of a sentence, at least one of them more than a stop word. Those with the trigger
    word are left out.
    """
    least = share * len(captions)
    out = {word.casefold() for word in _WORDS.findall(trigger or "")}
    parts = [_parts(caption) for caption in captions]
    having = Counter(word for of in parts for word in {w for p in of for w in p})
    common = {word for word, n in having.items() if n > least} - out
    known: dict[tuple[str, ...], int] = {}
    grown: set[tuple[str, ...]] = {(word,) for word in common}
    for length in range(1, _LONGEST_PHRASE + 1):
        counted: Counter[tuple[str, ...]] = Counter()
        for of in parts:
            counted.update(grown & {p[i : i + length] for p in of for i in range(len(p) - length + 1)})
        found = {phrase: n for phrase, n in counted.items() if n > least}
        known |= found
        grown = {(*phrase, word) for phrase in found for word in common}
        if not grown:
            break
    longest = [
        (n, phrase)
        for phrase, n in known.items()
        if not set(phrase) <= _STOP and not any(len(other) > len(phrase) and _within(phrase, other) for other in known)
    ]
    return [" ".join(phrase) for _, phrase in sorted(longest, key=lambda one: (-one[0], -len(one[1]), one[1]))]


def _parts(caption: str) -> list[tuple[str, ...]]:
    """Return the words of each part of a caption between punctuation marks, folded."""
    parts: list[list[str]] = [[]]
    for word in _WORDS.findall(caption.casefold()):
        if word[0].isalnum():
            parts[-1].append(word)
        else:
            parts.append([])
    return [tuple(part) for part in parts if part]


def _within(short: tuple[str, ...], long: tuple[str, ...]) -> bool:
    return any(long[i : i + len(short)] == short for i in range(len(long) - len(short) + 1))


def is_near(word: str, other: str, most: int) -> bool:
    """Return whether at most so many letters are changed, added, left out or swapped with the next one."""
    if abs(len(word) - len(other)) > most:
        return False
    before, row = list[int](), list(range(len(other) + 1))
    for i, letter in enumerate(word, start=1):
        before, above, row = row, before, [i]
        for j, wanted in enumerate(other, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and word[i - 2] == wanted:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
        if min(row) > most:
            return False
    return row[-1] <= most
