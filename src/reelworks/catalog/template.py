"""Captions made of a clip's own and of its numbers: `{text} frame rate: {fps:.0f}, aesthetic score: {aes:.1f}.`

A template is cut into pieces around `{text}` and behind every comma and full stop. A piece with a number
that a clip does not have, such as the rate of a picture or a score, is left out of that clip's caption; so no clip is
said to have a rate of 0.
"""

from __future__ import annotations

import functools
import math
import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from reelworks.catalog.filter_expression import NUMBERS
from reelworks.core.errors import UserError, nearest

TEXT = "text"
FIELD = "dataset.caption"
_CUT = re.compile(r"(?<=[.,])(?=\s|$)")
_LONELY = re.compile(
    r"\s*,(?=\s*[.,])|\s+(?=[.,])"
)  # a comma with nothing behind it, and space before a mark


@dataclass(frozen=True)
class Piece:
    """A part that stands in a caption as a whole or not at all.

    Attributes:
        form: What `str.format` takes.
        numbers: Columns that it names.
    """

    form: str
    numbers: tuple[str, ...]


def fill(template: str, text: str, numbers: Mapping[str, float]) -> str:
    """Make the caption of a clip.

    Args:
        template: One that `parse` accepts.
        text: The clip's own caption; where it is empty, commas and spaces around its place go too.
        numbers: Its columns; for none stands 0, and NaN where it is a score.
    """
    pieces = parse(template, None)
    kept = [piece for piece in pieces if all(_is_there(name, numbers[name]) for name in piece.numbers)]
    caption = "".join(piece.form.format(text=text, **numbers) for piece in kept)
    if not text:
        caption = re.sub(r" {2,}", " ", _LONELY.sub("", caption))
    return caption if text and len(kept) == len(pieces) else caption.strip(" ,")


@functools.lru_cache(maxsize=64)
def parse(template: str, scores: frozenset[str] | None = frozenset()) -> tuple[Piece, ...]:
    """Cut a template into pieces.

    Args:
        template: As the recipe has it.
        scores: Scores that it may name; None where any unknown name may be one.

    Raises:
        UserError: A brace is open, a column does not exist, or a format does not fit a number.
    """
    try:
        pieces = tuple(_pieces(template, scores))
        for piece in pieces:
            piece.form.format(**{TEXT: "", **dict.fromkeys(piece.numbers, 1.0)})
    except UserError:
        raise
    except (ValueError, IndexError, AttributeError) as error:
        raise UserError(
            f"this is no template ({error})",
            code="template-invalid",
            field=FIELD,
            value=template,
            remedy="write it as in {text} frame rate: {fps:.0f}.",
        ) from error
    return pieces


def names(template: str) -> set[str]:
    """Columns that a template names."""
    return {name for piece in parse(template, None) for name in piece.numbers}


def _is_there(name: str, number: float) -> bool:
    return number != 0 if name in NUMBERS else not math.isnan(number)


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
            raise ValueError("a format is written out, as in {fps:.0f}")
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
