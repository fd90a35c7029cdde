"""Prompts for captioners: named ones, templates, and what several captions of one clip differ by."""

from __future__ import annotations

import string
from typing import Literal

from reelworks.core.errors import UserError, nearest

Style = Literal["subject", "style", "motion", "tags"]

_NO_PREAMBLE = (
    "Answer with the {sort} alone, in English, without a preamble, headings or lists, and without 'the {kind} shows'."
)
STYLES: dict[str, str] = {
    # What a caption names stays apart from the trigger word, so the traits of the subject itself are left out.
    "subject": "Write a caption of this {kind} for training an image model on its main subject. Name the subject only by "
    "what it is, and leave out the traits that it always has. Describe what it does, its pose, its surroundings, other "
    "things and people, the light and the camera's distance. " + _NO_PREAMBLE,
    "style": "Write a caption of this {kind} for training an image model on its style. Describe plainly who and what is "
    "there, where, and what happens. Leave out the medium, technique, colours and mood. " + _NO_PREAMBLE,
    "motion": "Write a caption of this {kind} for training a video model. Say first who or what is there and where, then "
    "what moves, in which direction and how fast, in order of time, and at last how the camera moves; say so if it does "
    "not. " + _NO_PREAMBLE,
    "tags": "Write tags for this {kind}: short descriptions in lower case, with commas between them, the most important "
    "first, none twice: subject, action, clothes, objects, place, light, camera. " + _NO_PREAMBLE,
}
# What is asked besides for the second caption of a clip and each further one: other lengths and emphases, rather than
# random draws, so that the same command gives the same captions again.
VARIANTS = (
    "",
    "Write one short sentence of at most twelve words.",
    "Begin with the surroundings, and come to the main subject at the end.",
    "Describe every detail that can be seen, in three sentences or more.",
    "Use other words than usual, and begin with what happens.",
    "Describe light, colours and composition first.",
)
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
