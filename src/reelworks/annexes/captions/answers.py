"""Make a caption of what a captioner answers, or refuse it with a reason."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter

from reelworks.data.catalog.query.captions import word_pattern

_THOUGHTS = re.compile(r"^.*</think(?:ing)?>", re.IGNORECASE | re.DOTALL)  # whose begin may be part of the prompt
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0e-\x1b\ud800-\udfff\ufffd]")  # controls, and what UTF-8 cannot hold
_HTML = re.compile(r"<!doctype|</?(?:html|head|body|title|h1|p|div|script|center)\b[^>]*>", re.IGNORECASE)
_FENCE = re.compile(r"^```\w*|```$", re.MULTILINE)
_EMPHASIS = re.compile(r"(\*\*|(?<!\w)__)(?=\S)(.+?)(?<=\S)\1(?!(?<=__)\w)", re.DOTALL)  # `o__o` is a tag
_LINE_START = re.compile(r"^\s*(?:#{1,6}\s+|[-*•]\s+|\d{1,2}[.)]\s+)", re.MULTILINE)
_WRAPPER = re.compile(r"</?(?:answer|caption|output|response)>|<\|[^|<>]*\|>", re.IGNORECASE)
_JSON = re.compile(r"""\{\s*(["'])\w[^"'\n]*\1\s*:""")
_FAREWELL = re.compile(
    r"""(?:\n\s*|(?<=[.!?"'”])\s+)(?:let me know (?:if|whether|what|how)\b|(?:i )?hope (?:this|that) helps|feel free to\b|"""
    r"would you like me to\b|if you(?:['’]d| would) like me to\b|is there anything else\b)[^.!?\n]*[.!?]?\s*$",
    re.IGNORECASE,
)
_PREAMBLE = re.compile(
    r"^(?:(?:sure|certainly|of course|absolutely|okay|ok)(?: thing)?\s*[,!.:]\s*)?"
    r"(?:(?:here(?:['’]s| is| are)|the following|below is)\b[^:\n]{0,40}\b(?:caption|description|tags)\b[^:\n]{0,40}:\s*)?"
    r"(?:(?:caption|description|answer|tags)\s*:\s*)?",
    re.IGNORECASE,
)
_OPENING = re.compile(
    r"^(?:in )?(?:the|this) (?:image|picture|photo|photograph|video|clip|footage)(?: clip)? "
    r"(?:shows|depicts|features|captures|displays|presents|portrays) ",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"^(?:(?:i['’]?m|i am) (?:(?:very |so )?sorry|unable|not able)|sorry,|i can(?:no|['’])t\b|i (?:must )?apologi[sz]e\b|"
    r"my apologies|as an ai\b|unfortunately, i)",
    re.IGNORECASE,
)
_QUOTES = {'"': '"', "'": "'", "“": "”", "«": "»", "„": "“", "‘": "’"}
_MOST_LETTERS = 8000
_LOOP_WORDS, _LOOP_SHARE = 40, 0.15  # of so many words, so few different ones: a model that has run into a loop
_LOOP_RUN = 8  # times that one word follows itself
# Chinese and Japanese have no spaces: each sign counts as a word, and what stands between marks can be what is repeated.
_SIGN = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD, _CLAUSE = re.compile(rf"[{_SIGN}][^\s\w]*|[^\s{_SIGN}]+"), re.compile("[^\\s，。！？、；：]+")
_REPEATED = re.compile(rf"([{_SIGN}]{{1,20}})\1{{{_LOOP_RUN - 1},}}")


class CaptionFailed(Exception):  # noqa: N818
    """A clip gets no caption; the message is the reason, short enough for a table.

    `of_clip` tells whether the clip is to blame, of a captioner that works: a model refuses it, or runs into a loop.
    """

    def __init__(self, reason: str, *, of_clip: bool = False) -> None:
        super().__init__(reason)
        self.of_clip = of_clip


def caption_of(answer: str, *, max_words: int | None = None, is_cut: bool = False, of_tags: bool = False) -> str:
    """Return an answer as a caption of one line, without what models put around captions.

    Args:
        max_words: Most words; a longer caption ends after its last whole sentence, or else tag or word, within them.
        is_cut: The answer ended at the captioner's limit of tokens, so that its last sentence may be a part of one.
        of_tags: Tags were asked for, so that each line is one.

    Raises:
        CaptionFailed: It is empty, a page of HTML, JSON, a refusal, no text, or repeats itself.
    """
    text = _THOUGHTS.sub("", answer).strip()
    if not text or re.match(r"<think", text, re.IGNORECASE):
        raise CaptionFailed("the answer has thoughts and no caption" if answer.strip() else "the answer is empty")
    if _NO_TEXT.search(text):
        raise CaptionFailed(f"the answer is not text: {_begin(_NO_TEXT.sub('?', text))}")
    if _HTML.search(text[:_MOST_LETTERS]):
        raise CaptionFailed(f"the answer is HTML: {_begin(text)}")
    if len(text) > _MOST_LETTERS:  # before patterns whose time grows with the square of it
        raise CaptionFailed(f"the answer has {len(text):,} letters")
    text = _bare(text, of_tags=of_tags)
    if _is_json(text):
        raise CaptionFailed(f"the answer is JSON: {_begin(text)}")
    if _REFUSAL.match(text):
        raise CaptionFailed(f"the model refused: {_begin(text)}", of_clip=True)
    if not any(letter.isalpha() for letter in text):
        raise CaptionFailed(f"the answer has no words: {_begin(text)}" if text else "the answer is empty")
    if _loops(_CLAUSE.findall(text.casefold())) or _REPEATED.search(text):
        raise CaptionFailed(f"the answer repeats itself: {_begin(text)}", of_clip=True)
    text = _capital(_OPENING.sub("", text)) if _OPENING.match(text) else text
    text = _whole(text) if is_cut else text
    return text if max_words is None else _shortened(text, max_words)


def _bare(text: str, *, of_tags: bool) -> str:
    """Return an answer in one line, without marks, preamble, farewell and quotation marks."""
    text = _FAREWELL.sub("", _WRAPPER.sub("", _FENCE.sub("", text)).strip())
    text = _LINE_START.sub("", _EMPHASIS.sub(r"\2", text)).strip()
    if of_tags:
        text = re.sub(r"(?<=[^\s,:;])\s*\n\s*", ", ", text)
    text = _PREAMBLE.sub("", " ".join(text.split()))
    while len(text) > 1 and (end := _QUOTES.get(text[0])) == text[-1] and end not in text[1:-1]:
        text = text[1:-1].strip()  # marks around all of it, and none that end earlier
    return text


def with_trigger(caption: str, trigger: str | None, *, is_in: bool) -> str:
    """Return a caption that begins with the trigger word, or that is without it."""
    if trigger is None:
        return caption
    word = word_pattern(trigger)
    if is_in:
        begin = re.match(rf"({word})(\s*[,:]\s*)?", caption, flags=re.IGNORECASE)
        if begin is not None and begin[2] is None:  # it is the subject of a sentence
            return trigger + caption[begin.end() :]
        rest = caption if begin is None else caption[begin.end() :]
        return f"{trigger}, {rest}" if rest else trigger
    without = re.sub(rf"\s*{word}(?:['’]s)?", "", caption, flags=re.IGNORECASE)
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
    if _JSON.match(text):
        return True
    try:
        return isinstance(json.loads(text), (dict, list))
    except (ValueError, RecursionError):
        return False


def _loops(words: list[str]) -> bool:
    run = 1
    for before, word in itertools.pairwise(words):
        run = run + 1 if word == before else 1
        if run >= _LOOP_RUN:
            return True
    return len(words) >= _LOOP_WORDS and len(Counter(words)) < _LOOP_SHARE * len(words)


def _whole(text: str) -> str:
    """Return a text up to its last whole sentence, or else tag, if it has one."""
    for pattern in (r".*(?:[.!?](?=\s|$)|[。！？][”’」』]?)", r".*(?=[,，、])"):
        if match := re.match(pattern, text):
            return match[0]
    return text


def _shortened(text: str, max_words: int) -> str:
    ends = [word.end() for word in _WORD.finditer(text)]
    return text if len(ends) <= max_words else _whole(text[: ends[max_words - 1]]).rstrip(" ,;:，、；：")
