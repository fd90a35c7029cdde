"""All cases, by the modules that have them."""

from __future__ import annotations

from drills._footage import codecs, containers, cuts, shapes, streams, times
from drills._footage.case import Case


def all_cases() -> list[Case]:
    """Return all cases, whose names differ."""
    found = [case for module in (codecs, cuts, containers, streams, shapes, times) for case in module.cases()]
    assert len({case.name for case in found}) == len(found)
    return found
