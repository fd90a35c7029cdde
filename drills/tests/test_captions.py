"""Clips are trained with the captions that a person would read, in all ways of the benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from drills import _captions, captions

CASES = {f"{kind}-{case.name}": case for kind in captions.KINDS for case in captions.of_kind(kind)}


def test_ways_have_names_of_their_own() -> None:
    assert len(CASES) == sum(len(captions.of_kind(kind)) for kind in captions.KINDS)


_SLOW = pytest.mark.slow(reason="others of the same kind are tried; `python -m drills.captions` tries all")


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=[_SLOW] if i % 3 else []) for i, (name, case) in enumerate(CASES.items())],
)
@pytest.mark.quick_cases(5)
def test_each_clip_has_its_own_caption_or_none(case: _captions.Case, tmp_path: Path) -> None:
    assert _captions.problem(case, tmp_path) == ""
