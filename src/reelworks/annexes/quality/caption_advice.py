"""Advise on captions: length, language, the trigger word, phrases that all have, contradictions, leftovers of captioners.

Pure functions of rows. Texts are looked through as Arrow columns, each different one once. Phrases are found in a sample
and then counted in all. Language, contradictions and leftovers are found by lists of words and patterns: they miss what is
said in other words, and now and then name a caption that is right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelworks.annexes.quality.caption_needs import CLIP_TOKENS, CaptionNeeds
from reelworks.annexes.quality.caption_texts import Texts, frequent_phrases, is_near, words_of
from reelworks.core import blocks, toml, units
from reelworks.core.arrays import Mask
from reelworks.data.catalog.query import template
from reelworks.data.catalog.query.captions import word_pattern
from reelworks.data.catalog.store.rows import CatalogRows
from reelworks.training.plan.data_advice import ENOUGH, FILES_NAMED, DataAdvice, Finding

BOUND_SHARE = 0.8  # of captions with one phrase, which a model then learns as one with the trigger word
MOST_EQUAL_SHARE = 0.9  # from here on `captions_equal` of `data_advice` speaks
# Clips with one text, and the share of all clips that are such, for `captions_repeated`.
MANY_CLIPS, MANY_SHARE = 5, 0.1
_SAMPLE = 20_000  # captions in which phrases are looked for
_TOKENIZED = 50_000  # captions that are given to a tokenizer
_PHRASES_NAMED = 3
_FOREIGN_SHARE = 0.3  # of a caption's letters that are outside of Latin
_UNKNOWN_SHARE = 0.05  # of a caption's tokens
_SHORT_TRIGGER = 5  # letters up to which one wrong letter makes a misspelling, and two above
_WORDS = toml.beside(__file__, "caption_words.toml")
_CHANGE = "(?i)" + "|".join(_WORDS["changes"])
_TOKEN = r"[\pL\pN_]+|[^\pL\pN_\s]"
Rule = Callable[[Texts, CaptionNeeds], Finding]


def advise(rows: CatalogRows, needs: CaptionNeeds | None = None) -> list[DataAdvice]:
    """Return all advice about the captions of rows, by what is known of their use."""
    needs = needs or CaptionNeeds()
    texts = Texts(rows, needs)
    if not texts.total:
        return []
    found = ((name, rule(texts, needs)) for name, rule in RULES.items())
    return [DataAdvice(name, *finding) for name, finding in found if finding is not None]


def _captions(number: int, verb: str = "") -> str:
    plural = {"is": "are", "has": "have"}.get(verb, verb)
    return f"{units.plural(number, 'caption')} {verb if number == 1 else plural}".strip()


def _long(texts: Texts, needs: CaptionNeeds) -> Finding:
    """Advise on captions of which the text encoder does not read the end, with what templates put around them."""
    encoder = needs.encoder
    most = CLIP_TOKENS if encoder is None else encoder.max_tokens
    if most is None:
        return None
    parts = [_too_long(part, form, needs, most) for form, part in _by_template(texts, needs)]
    number, worst = sum(part.number for part in parts), max((part.worst for part in parts), default=0)
    if not number:
        return None
    measured = encoder is not None and encoder.count is not None
    by = "" if measured else " in words and punctuation marks, of which tokens are at least as many"
    about = "about " if any(part.is_estimate for part in parts) else ""
    text = f"{about}{_captions(number, 'is')} longer than {most} tokens{by}; the longest loses {worst}"
    if encoder is None:
        remedy = f"CLIP text encoders read only the first {most} tokens; put what matters first, or name yours (--text-encoder)"
    else:
        remedy = f"{encoder.name} reads only the first {most}; shorten them, or put what matters first"
    return text, remedy, tuple(file for part in parts for file in part.files)[:FILES_NAMED]


def _by_template(texts: Texts, needs: CaptionNeeds) -> list[tuple[str, Texts]]:
    """Return the captions of datasets with the template of each."""
    of_template: dict[str, list[str]] = {}
    for name, form in needs.templates:
        of_template.setdefault(form, []).append(name)
    named = [name for name, _ in needs.templates]
    parts = [(form, texts.of_datasets(names)) for form, names in of_template.items()]
    return [(form, part) for form, part in (*parts, ("{text}", texts.of_datasets(named, others=True))) if part.total]


class _TooLong(NamedTuple):
    number: int = 0
    worst: int = 0
    is_estimate: bool = False
    files: tuple[str, ...] = ()


def _too_long(texts: Texts, form: str, needs: CaptionNeeds, most: int) -> _TooLong:
    """Count the captions that exceed so many tokens in a template, in which any number has one digit."""
    numbers = {name: 1.0 for piece in template.parse(form, None) for name in piece.numbers}
    before, is_used, after = template.fill(form, "\0", numbers).partition("\0")
    if not is_used:
        return _TooLong()
    # A token has at least one byte.
    where = np.asarray(pc.greater(pc.binary_length(texts.unique), most - 2 - len((before + after).encode())))
    if needs.encoder is not None and needs.encoder.count is not None:
        at, some = texts.some(where, _TOKENIZED)
        counts, _ = needs.encoder.count([f"{before}{text}{after}" for text in some])
    else:
        at = np.flatnonzero(where)
        start, end, between = (pa.scalar(part, pa.large_string()) for part in (before, after, ""))
        whole = pc.binary_join_element_wise(start, texts.unique.take(pa.array(at)), end, between)
        counts = np.asarray(pc.count_substring_regex(whole, _TOKEN)).astype(np.int64)
    if not (counts > most).any():
        return _TooLong()
    long = blocks.mask(at[counts > most], len(texts.unique))
    number, candidates = texts.number(long), int(where.sum())
    is_estimate = len(at) < candidates
    number = round(number * candidates / len(at)) if is_estimate else number
    return _TooLong(number, int(counts.max()) - most, is_estimate, texts.files(long))


def _repeated(texts: Texts, _: CaptionNeeds) -> Finding:
    where = texts.counts >= MANY_CLIPS
    number, most = texts.number(where), int(texts.counts.max())
    if number < MANY_SHARE * texts.total or not number or most >= MOST_EQUAL_SHARE * texts.total:
        return None
    first = " ".join(texts.unique[int(texts.counts.argmax())].as_py().split())
    first = first if len(first) <= 50 else f"{first[:49]}…"
    text = f'{number} clips share their caption with at least {MANY_CLIPS - 1} others; {most} have "{first}"'
    return text, "describe what distinguishes the clips, or the prompt will not tell them apart", texts.files(where)


def _bound_phrase(texts: Texts, needs: CaptionNeeds) -> Finding:
    """Advise on phrases that nearly all captions have, which a model learns as part of the trigger word."""
    if texts.total < ENOUGH:
        return None
    phrases = []
    for phrase in frequent_phrases(texts.some(None, _SAMPLE)[1], BOUND_SHARE, needs.trigger):
        pattern = r"(?i)(^|[^\pL\pN])" + r"\s+".join(map(re.escape, phrase.split(" "))) + r"([^\pL\pN]|$)"
        number = texts.number(texts.matching(pattern))
        if number > BOUND_SHARE * texts.total:
            phrases.append((phrase, number))
    # All of them equal is another advice.
    if not phrases or int(texts.counts.max()) >= MOST_EQUAL_SHARE * texts.total:
        return None
    named = ", ".join(f'"{phrase}" ({number / texts.total:.0%})' for phrase, number in phrases[:_PHRASES_NAMED])
    more = f", and {len(phrases) - _PHRASES_NAMED} more" if len(phrases) > _PHRASES_NAMED else ""
    to = "the trigger word" if needs.trigger else "the trigger word, unless it is that itself (--trigger)"
    text = f"more than {BOUND_SHARE:.0%} of the captions have the same words: {named}{more}"
    return text, f"the model binds them to {to}; say it in other words, or leave it out where it need not be said", ()


def _trigger_missing(texts: Texts, needs: CaptionNeeds) -> Finding:
    if needs.trigger is None:
        return None
    texts = texts.of_datasets(needs.trigger_datasets, others=True)
    lacking = ~texts.matching(word_pattern(needs.trigger, looks_around=False))
    number = texts.number(lacking)
    if not number:
        return None
    lack = "lacks" if number == 1 else "lack"
    text = f'{number} of {_captions(texts.total)} {lack} the trigger word "{needs.trigger}"'
    remedy = f'write it into them, or set trigger = "{needs.trigger}" in [[dataset]]'
    return text, remedy, texts.files(lacking)


def _trigger_twice(texts: Texts, needs: CaptionNeeds) -> Finding:
    if needs.trigger is None:
        return None
    texts = texts.of_datasets([name for name in needs.trigger_datasets if name not in needs.triggered_datasets])
    having = texts.matching(word_pattern(needs.trigger, looks_around=False))
    if not (number := texts.number(having)):
        return None
    has = _captions(number, "has")
    text = f'{has} the trigger word "{needs.trigger}", which the recipe puts before each caption too'
    remedy = "move it from dataset.caption to dataset.trigger, which leaves such captions as they are"
    return text, remedy, texts.files(having)


def _trigger_misspelt(texts: Texts, needs: CaptionNeeds) -> Finding:
    """Advise on words that differ from the trigger word in few letters, in captions that lack it."""
    trigger = needs.trigger
    if trigger is None or len(trigger) < 3 or not trigger.isalnum():
        return None
    lacking = ~texts.matching(word_pattern(trigger, looks_around=False))
    _, some = texts.some(lacking, _SAMPLE)
    words = {word for caption in some for word in words_of(caption)}
    most = 1 if len(trigger) <= _SHORT_TRIGGER else 2
    near = sorted(word for word in words if is_near(word.casefold(), trigger.casefold(), most))
    if not near:
        return None
    pattern = r"(^|[^\pL\pN_])(" + "|".join(map(re.escape, near)) + r")([^\pL\pN_]|$)"
    where = lacking & texts.matching(pattern)
    named = ", ".join(f'"{word}"' for word in near[:5])
    text = f'{_captions(texts.number(where), "has")} a word like the trigger word "{trigger}" in its place: {named}'
    return text, f'write "{trigger}" if it is meant; most text encoders tell capitals apart too', texts.files(where)


def _either(words: str) -> str:
    """Return a pattern of whole words or phrases, separated by bars; words of a tag may be joined by underscores."""
    return rf"(?i)(^|[^\pL\pN])({words.replace(' ', '[ _-]')})([^\pL\pN]|$)"


def _contradictions(texts: Texts, _: CaptionNeeds) -> Finding:
    where, kinds = _by_kind(texts, dict(_contradictory(texts)))
    if not kinds:
        return None
    text = f"{_captions(texts.number(where), 'is')} contradictory: {kinds}"
    remedy = "look at the clips, and keep what they show; words are compared, so some may be right"
    return text, remedy, texts.files(where)


def _contradictory(texts: Texts) -> Iterator[tuple[str, Mask]]:
    """Yield the texts in which both of two things are said, by these."""
    # One look at each text finds the few that the others are for.
    some = np.flatnonzero(texts.matching(_either("|".join(pair["one"] for pair in _WORDS["contradictions"]))))
    for pair in _WORDS["contradictions"]:
        one, other = _either(pair["one"]), _either(pair["other"])
        at = np.flatnonzero(texts.matching(one, some))
        # "no people" holds the word of its opposite.
        rest = pc.replace_substring_regex(texts.unique.take(pa.array(at)), one, " , ")
        both = at[np.asarray(pc.match_substring_regex(rest, other))]
        yield pair["name"], texts.matching(other, both) & ~texts.matching(_CHANGE, both)


def _script(texts: Texts, needs: CaptionNeeds) -> Finding:
    """Advise on languages that the text encoder does not know."""
    encoder = needs.encoder
    if encoder is not None and encoder.count is not None and (found := _unknown(texts, needs)) is not None:
        return found
    if encoder is not None and encoder.english_only is False:
        return None
    beyond_ascii = pc.not_equal(pc.binary_length(texts.unique), pc.utf8_length(texts.unique))
    at = np.flatnonzero(np.asarray(beyond_ascii))
    some = texts.unique.take(pa.array(at))
    letters, latin = (np.asarray(pc.count_substring_regex(some, p)) for p in (r"\pL", r"\p{Latin}"))
    where = blocks.mask(at[letters - latin > _FOREIGN_SHARE * np.maximum(letters, 1)], len(texts.unique))
    if not (number := texts.number(where)):
        return None
    text = f"{_captions(number, 'is')} in another script than Latin"
    if encoder is None or encoder.english_only is None:
        return text, "CLIP and T5 v1.1 know English only; name your text encoder (--text-encoder)", texts.files(where)
    return text, f"{encoder.name} knows English only; translate them", texts.files(where)


def _unknown(texts: Texts, needs: CaptionNeeds) -> Finding:
    assert needs.encoder is not None
    assert needs.encoder.count is not None
    at, some = texts.some(None, _TOKENIZED)
    counts, unknown = needs.encoder.count(some)
    where = blocks.mask(at[unknown > _UNKNOWN_SHARE * np.maximum(counts, 1)], len(texts.unique))
    if not (number := texts.number(where)):
        return None
    number = number if len(at) == len(texts.unique) else round(number * len(texts.unique) / len(at))
    text = f"{_captions(number, 'has')} words or signs that the tokenizer does not know"
    remedy = f"{needs.encoder.name} reads all of them as one unknown token; write them in its language"
    return text, remedy, texts.files(where)


def _leftovers(texts: Texts, _: CaptionNeeds) -> Finding:
    some = np.flatnonzero(texts.matching("|".join(f"(?:{left['pattern']})" for left in _WORDS["leftovers"])))
    where, kinds = _by_kind(
        texts, {left["name"]: texts.matching(left["pattern"], some) for left in _WORDS["leftovers"]}
    )
    if not kinds:
        return None
    text = f"{_captions(texts.number(where), 'has')} leftovers of a captioner: {kinds}"
    return text, "remove them: a model learns them as part of what clips look like", texts.files(where)


def _by_kind(texts: Texts, kinds: Mapping[str, Mask]) -> tuple[Mask, str]:
    """Return which texts are of any kind, and the numbers of captions of those kinds that there are."""
    numbers = Counter({name: texts.number(where) for name, where in kinds.items()})
    told = ", ".join(f"{name} ({number})" for name, number in numbers.most_common() if number)
    return np.logical_or.reduce([*kinds.values()]), told


RULES: dict[str, Rule] = {
    "captions_long": _long,
    "captions_repeated": _repeated,
    "captions_phrase": _bound_phrase,
    "captions_trigger_missing": _trigger_missing,
    "captions_trigger_twice": _trigger_twice,
    "captions_trigger_misspelt": _trigger_misspelt,
    "captions_contradict": _contradictions,
    "captions_script": _script,
    "captions_leftovers": _leftovers,
}
