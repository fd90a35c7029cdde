"""What the attributes of a class mean, which the reference, the schema of recipes and the help of commands tell."""

from __future__ import annotations

import inspect
import re

_ATTRIBUTE = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {8,}.*)*)", re.MULTILINE)


def attributes(kind: type) -> dict[str, str]:
    """Return what its docstring, and those of its bases, list below "Attributes:", each on one line."""
    listed: dict[str, str] = {}
    for each in reversed(kind.mro()):
        for names, text in _ATTRIBUTE.findall(inspect.cleandoc(each.__doc__ or "").partition("\nAttributes:\n")[2]):
            listed |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return listed
