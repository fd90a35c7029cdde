"""Choose one of a clip's captions, and the order and presence of its tags."""

from __future__ import annotations

import re

import numpy as np

from reelworks.core import hash_rng, text_encoding
from reelworks.core.arrays import U64
from reelworks.core.hash_rng import Purpose
from reelworks.data.catalog.config import DatasetConfig

# Thai, Lao, Tibetan, Burmese, Khmer, kana, Han and Hangul, in which words stand together, or have endings of their own.
_TOGETHER = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_LETTER = rf"[^\W{_TOGETHER}]"  # of other scripts, and numbers
_MARKS = re.compile(r"\[(?:trigger|name)\]")


def chosen(text: str, dataset: DatasetConfig, word: U64 | None) -> str:
    """Return the caption of one use of a clip, to be put into the dataset's template.

    Args:
        text: All that the catalog has as the clip's caption.
        word: Hash of the use (seed, epoch, uid and copy), from which all choices follow; None makes no choice: it
            gives the first caption, with its tags as they are.
    """
    if dataset.captions != "whole":
        captions = lines(text) or [""]
        at = 0
        if word is not None and dataset.captions == "lines":
            at = int(hash_rng.below(hash_rng.extend(word, Purpose.CAPTION), len(captions)))
        text = captions[at]
    if word is not None and (dataset.shuffle_tags or dataset.tag_dropout):
        text = _tags(text, dataset, word)
    return text if dataset.trigger is None or _MARKS.search(dataset.caption) else triggered(text, dataset.trigger)


def with_marks_filled(text: str, trigger: str) -> str:
    """Return a text with a trigger word in place of [trigger] and [name]."""
    return _MARKS.sub(lambda _: trigger, text)


def triggered(text: str, trigger: str) -> str:
    """Return a caption with a trigger word in place of [trigger] and [name], or before it if it has none."""
    text = with_marks_filled(text, trigger)
    return text if not trigger or re.search(word_pattern(trigger), text) else f"{trigger} {text}".strip()


def word_pattern(word: str, *, looks_around: bool = True) -> str:
    """Return an expression that finds a word which is no part of another one, in scripts that part words.

    Without looking around, which Arrow's expressions cannot, it takes what is beside the word along.
    """
    apart = rf"[^\pL\pN_]|[{_TOGETHER}]"
    begin, end = (f"(?<!{_LETTER})", f"(?!{_LETTER})") if looks_around else (f"(^|{apart})", f"({apart}|$)")
    is_led, is_followed = (re.match(_LETTER, letter) for letter in (word[:1], word[-1:]))
    return f"{begin if is_led else ''}{re.escape(word)}{end if is_followed else ''}"


def lines(text: str) -> list[str]:
    """Return the captions in a text of several: its lines, without empty ones. Other marks of Unicode end no line."""
    return [line.strip() for line in re.split(r"[\r\n]", text) if not text_encoding.is_blank(line)]


def _tags(text: str, dataset: DatasetConfig, word: U64) -> str:
    """Drop and shuffle the tags after the first `keep_tags`; whether one is dropped does not depend on the others."""
    kept, rest = tags(text, dataset)
    numbers = np.arange(len(rest))
    dropped = hash_rng.bernoulli(hash_rng.extend(word, Purpose.TAG_DROPOUT, numbers), dataset.tag_dropout)
    order = numbers
    if dataset.shuffle_tags:
        order = np.argsort(hash_rng.extend(word, Purpose.TAG_ORDER, numbers), kind="stable")
    return joint(dataset).join([*kept, *(rest[i] for i in order.tolist() if not dropped[i])])


def tags(text: str, dataset: DatasetConfig) -> tuple[list[str], list[str]]:
    """Return the tags of a caption that keep their place, and the others."""
    found = [tag.strip() for tag in text.split(dataset.tag_separator) if not text_encoding.is_blank(tag)]
    return found[: dataset.keep_tags], found[dataset.keep_tags :]


def joint(dataset: DatasetConfig) -> str:
    """Return what stands between two tags that were put into another order."""
    return dataset.tag_separator if dataset.tag_separator[-1].isspace() else f"{dataset.tag_separator} "
