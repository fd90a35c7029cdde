"""Captions made of a clip's own and of what the catalog measured: `{text} frame rate: {fps:.0f}.`

A template is cut into pieces around `{text}` and behind every comma and full stop. A piece with a number
that a clip does not have, such as the rate of a picture, is left out of that clip's caption; so no clip is
said to have a rate of 0.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from reelworks.catalog.expression_parts import NUMBERS
from reelworks.core.errors import UserError, nearest

TEXT = "text"
FIELD = "dataset.caption"
_CUT = re.compile(r"(?<=[.,])(?=\s|$)")


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
        text: The clip's own caption.
        numbers: Its columns; 0 stands for none.
    """
    pieces = parse(template)
    kept = [piece for piece in pieces if all(numbers[name] for name in piece.numbers)]
    caption = "".join(piece.form.format(text=text, **numbers) for piece in kept)
    return caption if len(kept) == len(pieces) else caption.strip(" ,")


@functools.lru_cache(maxsize=64)
def parse(template: str) -> tuple[Piece, ...]:
    """Cut a template into pieces.

    Raises:
        UserError: A brace is open, a column does not exist, or a format does not fit a number.
    """
    try:
        pieces = tuple(_pieces(template))
        for piece in pieces:
            piece.form.format(**{TEXT: "", **dict.fromkeys(NUMBERS, 1.0)})
    except (ValueError, IndexError, AttributeError) as error:
        raise UserError(
            f"this is no template ({error})",
            field=FIELD,
            value=template,
            remedy="write it as in {text} frame rate: {fps:.0f}.",
        ) from error
    return pieces


def names(template: str) -> set[str]:
    """Columns that a template names."""
    return {name for piece in parse(template) for name in piece.numbers}


def _pieces(template: str) -> Iterator[Piece]:
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
        _check_name(name, template)
        field = "{" + name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
        if name == TEXT:
            yield Piece(form, tuple(numbers))
            yield Piece(field, ())
            form, numbers = "", []
        else:
            form += field
            numbers.append(name)
    yield Piece(form, tuple(numbers))


def _check_name(name: str, template: str) -> None:
    known = (TEXT, *NUMBERS)
    if name not in known:
        raise UserError(
            f'the catalog has no column "{name}"', field=FIELD, value=template, remedy=nearest(name, known)
        )
