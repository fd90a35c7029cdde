"""Read what docstrings say of attributes and arguments, which the reference, the schema of recipes and the help tell."""

from __future__ import annotations

import inspect
import re

_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {8,}.*)*)", re.MULTILINE)


def attributes(kind: type) -> dict[str, str]:
    """Return what a class and its bases say of each attribute."""
    told: dict[str, str] = {}
    for each in reversed(kind.mro()):
        told |= split(each.__doc__, "Attributes")[1]
    return told


def split(docstring: str | None, section: str) -> tuple[str, dict[str, str]]:
    """Return a docstring up to a section, and what is said there of each name, on one line."""
    text, _, entries = inspect.cleandoc(docstring or "").partition(f"\n\n{section}:\n")
    told: dict[str, str] = {}
    for names, meaning in _ENTRY.findall(entries):
        told |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
    return text, told
