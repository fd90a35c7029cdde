"""The recipe that `new lora` writes is accepted by `plan`, for every model, kind of footage and memory of a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from kinds_of_footage import write_kinds

from drills._borders import recipes

CASES = recipes.cases()


@pytest.fixture(scope="module")
def footage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("material")
    write_kinds(folder)
    return folder


@pytest.fixture(autouse=True)
def here(footage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(footage)


# Fresh models and those with sound have no published sizes: they are built and measured, which takes seconds to minutes.
@pytest.mark.parametrize("case", [case for case in CASES if case.is_quick][::58], ids=str)
@pytest.mark.quick_cases(1)
def test_a_recipe_that_is_written_can_be_planned(case: recipes.Case) -> None:
    assert recipes.problems(case) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_recipe_that_is_written_can_be_planned(case: recipes.Case) -> None:
    assert recipes.problems(case) == []
