"""Make a caption of what a captioner answers, or refuse it with a reason."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter

_THOUGHTS = re.compile(r"^.*</think(?:ing)?>", re.IGNORECASE | re.DOTALL)  # whose begin may be part of the prompt
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0e-\x1b\ud800-\udfff\ufffd]")  # controls, and what UTF-8 cannot hold
_HTML = re.compile(r"<!doctype|</?(?:html|head|body|title|h1|p|div|script|center)\b[^>]*>", re.IGNORECASE)
_FENCE = re.compile(r"^```\w*|```$", re.MULTILINE)
_EMPHASIS = re.compile(r"(\*\*|__)(?=\S)(.+?)(?<=\S)\1", re.DOTALL)
_LINE_START = re.compile(r"^\s*(?:#{1,6}\s+|[-*•]\s+|\d{1,2}[.)]\s+)", re.MULTILINE)
_PREAMBLE = re.compile(
    r"^(?:(?:sure|certainly|of course|absolutely|okay|ok)(?: thing)?\s*[,!.:]\s*)?"
    r"(?:(?:here(?:'s| is| are)|the following|below is)\b[^:\n]{0,40}\b(?:caption|description|tags)\b[^:\n]{0,40}:\s*)?"
    r"(?:(?:caption|description|tags)\s*:\s*)?",
    re.IGNORECASE,
)
_OPENING = re.compile(
    r"^(?:in )?(?:the|this) (?:image|picture|photo|photograph|video|clip|footage)(?: clip)? "
    r"(?:shows|depicts|features|captures|displays|presents|portrays) ",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"^(?:i'?m sorry|i am sorry|sorry,|i can(?:no|')t\b|i'?m (?:unable|not able)|i am (?:unable|not able)|as an ai\b|"
    r"unfortunately, i)",
    re.IGNORECASE,
)
_QUOTES = {'"': '"', "'": "'", "“": "”", "«": "»", "„": "“", "‘": "’"}
_MOST_LETTERS = 8000
_LOOP_WORDS, _LOOP_SHARE = 40, 0.15  # of so many words, so few different ones: a model that has run into a loop
_LOOP_RUN = 8  # times that one word follows itself


class CaptionFailed(Exception):  # noqa: N818
    """A clip gets no caption; the message is the reason, short enough for a table."""


def caption_of(answer: str, *, max_words: int | None = None, is_cut: bool = False) -> str:
    """Return an answer as a caption of one line, without what models put around captions.

    Args:
        max_words: Most words; a longer caption ends after its last whole sentence, or else tag or word, within them.
        is_cut: The answer ended at the captioner's limit of tokens, so that its last sentence may be a part of one.

    Raises:
        CaptionFailed: It is empty, a page of HTML, JSON, a refusal, no text, or repeats itself.
    """
    text = _THOUGHTS.sub("", answer).strip()
    if not text or re.match(r"<think", text, re.IGNORECASE):
        raise CaptionFailed("the answer has thoughts and no caption" if answer.strip() else "the answer is empty")
    if _NO_TEXT.search(text):
        raise CaptionFailed(f"the answer is not text: {_begin(_NO_TEXT.sub('?', text))}")
    if _HTML.search(text):
        raise CaptionFailed(f"the answer is HTML: {_begin(text)}")
    if _is_json(text):
        raise CaptionFailed(f"the answer is JSON: {_begin(text)}")
    text = _LINE_START.sub("", _EMPHASIS.sub(r"\2", _FENCE.sub("", text)))
    text = _unquoted(_PREAMBLE.sub("", " ".join(text.split())))
    if _REFUSAL.match(text):
        raise CaptionFailed(f"the model refused: {_begin(text)}")
    if not any(letter.isalpha() for letter in text):
        raise CaptionFailed(f"the answer has no words: {_begin(text)}" if text else "the answer is empty")
    if len(text) > _MOST_LETTERS:
        raise CaptionFailed(f"the answer has {len(text):,} letters")
    if _loops(text.casefold().split()):
        raise CaptionFailed(f"the answer repeats itself: {_begin(text)}")
    text = _capital(_OPENING.sub("", text)) if _OPENING.match(text) else text
    if is_cut:
        text = _whole(text)
    return text if max_words is None else _shortened(text, max_words)


def with_trigger(caption: str, trigger: str | None, *, is_in: bool) -> str:
    """Return a caption that begins with the trigger word, or that is without it."""
    if trigger is None:
        return caption
    word = rf"(?<!\w){re.escape(trigger)}(?!\w)"
    if is_in:
        rest = re.sub(rf"^{word}\s*[,:]?\s*", "", caption, flags=re.IGNORECASE)
        return f"{trigger}, {rest}" if rest else trigger
    without = re.sub(rf"\s*{word}(?:'s)?", "", caption, flags=re.IGNORECASE)
    without = re.sub(r"(?:^[\s,.;:]+)|(\s*,)(?:\s*,)+", r"\1", without).strip()
    if not any(letter.isalpha() for letter in without):
        raise CaptionFailed("nothing is left of the answer without the trigger word")
    return _capital(without) if caption[:1].isupper() else without


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _begin(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= 60 else one_line[:57] + "…"


def _is_json(text: str) -> bool:
    if text[:1] not in "{[":
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text.startswith(('{"', "{'"))
    return True


def _unquoted(text: str) -> str:
    """Remove quotation marks around the whole text, and none that end earlier."""
    while len(text) > 1 and (end := _QUOTES.get(text[0])) == text[-1] and end not in text[1:-1]:
        text = text[1:-1].strip()
    return text


def _loops(words: list[str]) -> bool:
    run = 1
    for before, word in itertools.pairwise(words):
        run = run + 1 if word == before else 1
        if run >= _LOOP_RUN:
            return True
    return len(words) >= _LOOP_WORDS and len(Counter(words)) < _LOOP_SHARE * len(words)


def _whole(text: str) -> str:
    """Return a text up to its last whole sentence, or else tag, if it has one."""
    for pattern in (r".*[.!?。！？](?=\s|$)", r".*(?=,)"):
        if match := re.match(pattern, text):
            return match[0]
    return text


def _shortened(text: str, max_words: int) -> str:
    words = text.split()
    if len(words) <= max_words:
        return text
    return _whole(" ".join(words[:max_words])).rstrip(" ,;:")
