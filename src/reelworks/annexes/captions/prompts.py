"""Prompts for captioners: named ones, templates, and what several captions of one clip differ by."""

from __future__ import annotations

import string
from typing import Literal

from reelworks.core import toml
from reelworks.core.errors import UserError, nearest

Style = Literal["subject", "style", "motion", "tags"]

_TEXTS = toml.beside(__file__, "prompts.toml")
STYLES: dict[str, str] = {style: f"{text} {_TEXTS['end']}" for style, text in _TEXTS["styles"].items()}
VARIANTS: tuple[str, ...] = tuple(_TEXTS["variants"])  # for the second caption of a clip, and each further one
NAMES = ("caption", "kind", "name", "trigger")


def check(template: str) -> str:
    """Return a template for prompts; refuse one with unknown names or unbalanced braces."""
    try:
        fields = [found for found in string.Formatter().parse(template) if found[1] is not None]
    except ValueError as error:
        problem = f"the braces are not balanced ({error})"
        raise _wrong(template, problem, "write {{ and }} for braces that are meant") from error
    for _, name, form, conversion in fields:
        if name not in NAMES or form or conversion:
            raise _wrong(template, f"there is no {{{name}}} to put into a prompt", nearest(str(name), NAMES))
    return template


def _wrong(template: str, problem: str, remedy: str) -> UserError:
    return UserError(problem, code="prompt-invalid", field="prompt", value=template, remedy=remedy)


def variants(prompt: str, count: int) -> list[str]:
    """Return prompts for so many captions of one clip."""
    return [f"{prompt} {extra}".strip() for extra in VARIANTS[:count]]
