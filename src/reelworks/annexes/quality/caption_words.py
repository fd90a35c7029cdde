"""Words of captions: phrases that most captions have, and words that are nearly another one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_LONGEST_PHRASE = 6
_WORDS = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*|[^\w\s]")
# Words that are in most captions of English and say nothing alone.
_STOP = frozenset(
    ("a", "an", "and", "are", "as", "at", "be", "being", "by", "for", "from", "has", "have", "her", "his", "in",
     "into", "is", "it", "its", "of", "on", "or", "that", "the", "their", "them", "there", "they", "this", "to",
     "was", "which", "while", "who", "with", "he", "she", "no", "not", "one", "two", "up", "down", "over", "out")
)  # fmt: skip


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
