"""All cases, by the modules that have them."""

from __future__ import annotations

from benchmarks._footage import codecs, containers, cuts
from benchmarks._footage.case import Case


def all_cases() -> list[Case]:
    """Return all cases, whose names differ."""
    found = [*codecs.cases(), *cuts.cases(), *containers.cases()]
    assert len({case.name for case in found}) == len(found)
    return found
