"""The captions that an imported recipe trains are those of the trainer, or the account names the clips."""

from __future__ import annotations

from pathlib import Path

import pytest

from drills import import_captions
from drills._imports import caption_files

CASES = tuple(range(13))
_SLOW = pytest.mark.slow(reason="`python -m drills.import_captions` tries all")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", [n if n == 1 else pytest.param(n, marks=_SLOW) for n in CASES])
@pytest.mark.slow
def test_each_clip_has_the_caption_of_its_trainer_or_is_named(number: int, tmp_path: Path) -> None:
    caption_files.write(tmp_path / "pictures")
    cases = caption_files.cases(tmp_path / "pictures", tmp_path)
    assert len(cases) == len(CASES)
    (tmp_path / "there").mkdir()
    found = import_captions.outcomes(cases[number], tmp_path / "there")
    assert {name: said for name, said in found.items() if said not in ("same", "told")} == {}
