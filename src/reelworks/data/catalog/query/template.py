"""Fill caption templates such as `{text} frame rate: {fps:.0f}, aesthetic score: {aes:.1f}.`

A template is split before and after `{text}` and after every comma and full stop. A piece with a number that a clip
lacks, such as the frame rate of a picture or a score, is left out of its caption, so that none states a rate of 0.
"""

from __future__ import annotations

import functools
import math
import re
import string
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from reelworks.core.errors import UserError, nearest
from reelworks.data.catalog.filter_expression import NUMBERS

TEXT = "text"
FIELD = "dataset.caption"
_CUT = re.compile(r"(?<=[.,])(?=\s|$)")
_STRAY = re.compile(r"\s*,(?=\s*[.,])|\s+(?=[.,])")  # a comma without text after it, white space before a mark


class Piece(NamedTuple):
    """A part of a template that a caption contains completely or not at all; `numbers` are the columns in it."""

    form: str
    numbers: tuple[str, ...]


def fill(template: str, text: str, numbers: Mapping[str, float]) -> str:
    """Return the caption of a clip.

    If its own `text` is empty, the commas and spaces around it are removed too. A missing number is 0, or NaN for a score.
    """
    pieces = parse(template, None)
    missing = {name for name, number in numbers.items() if (number == 0 if name in NUMBERS else math.isnan(number))}
    filled = [piece for piece in pieces if missing.isdisjoint(piece.numbers)]
    caption = "".join(piece.form.format(text=text, **numbers) for piece in filled)
    if not text:
        caption = re.sub(r" {2,}", " ", _STRAY.sub("", caption))
    return caption if text and len(filled) == len(pieces) else caption.strip(" ,")


@functools.lru_cache(maxsize=64)
def parse(template: str, scores: frozenset[str] | None = frozenset()) -> tuple[Piece, ...]:
    """Split a template into pieces; refuse unclosed braces, unknown columns, and formats that do not suit numbers.

    `scores` are those that it may use; None if any unknown name may be a score.
    """
    try:
        pieces = tuple(_pieces(template, scores))
        for piece in pieces:
            piece.form.format(**{TEXT: "", **dict.fromkeys(piece.numbers, 1.0)})
    except UserError:
        raise
    except (ValueError, IndexError, AttributeError) as error:
        raise UserError(
            f"the caption template is invalid ({error})",
            code="template-invalid",
            field=FIELD,
            value=template,
            remedy="write, for example, {text} frame rate: {fps:.0f}.",
        ) from error
    return pieces


def names(template: str) -> set[str]:
    """Return the columns of numbers that a template uses."""
    return {name for piece in parse(template, None) for name in piece.numbers}


def _pieces(template: str, scores: frozenset[str] | None) -> Iterator[Piece]:
    form = ""
    numbers: list[str] = []
    for literal, name, spec, conversion in string.Formatter().parse(template):
        *ended, rest = _CUT.split(literal.replace("{", "{{").replace("}", "}}"))
        for part in ended:
            yield Piece(form + part, tuple(numbers))
            form, numbers = "", []
        form += rest
        if name is None:
            continue
        _check_name(name, template, scores)
        if "{" in (spec or ""):
            raise ValueError("a format cannot contain fields; write, for example, {fps:.0f}")
        field = "{" + name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
        if name == TEXT:
            yield Piece(form, tuple(numbers))
            yield Piece(field, ())
            form, numbers = "", []
        else:
            form += field
            numbers.append(name)
    yield Piece(form, tuple(numbers))


def _check_name(name: str, template: str, scores: frozenset[str] | None) -> None:
    known = (TEXT, *NUMBERS, *(scores or ()))
    if name not in known and not (scores is None and name.isidentifier()):
        raise UserError(
            f'the catalog has no column "{name}"',
            code="unknown-column",
            field=FIELD,
            value=template,
            remedy=nearest(name, known),
        )
