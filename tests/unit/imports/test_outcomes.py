"""An import is what it was: the recipe, and what became of every setting, for files and settings of each trainer.

`outcomes/NAME.json` has them for each trainer: files of `tests/golden/imports`, and settings with values of many kinds, chosen so
that together they meet nearly every outcome. `python tests/unit/imports/test_outcomes.py` writes what they become today.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from reelworks.annexes.imports import importer, optimizers
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import ImportedKey
from reelworks.core.errors import UserError

OUTCOMES = Path(__file__).parent / "outcomes"
GOLDEN = Path(__file__).parents[2] / "golden" / "imports"


def of_files(names: list[str], trainer: str, folder: Path) -> list[str]:
    request = ImportRequest(
        files=tuple(GOLDEN / name for name in names),
        trainer=trainer,
        output=folder / "made.toml",
        clips=False,
        force=True,
    )
    made = importer.convert(request)
    return [*(line(key, {}) for key in made.keys), *made.text.splitlines()]


def of_settings(given: dict[str, Any], trainer: str, folder: Path) -> list[str]:
    request = ImportRequest(files=(Path("config"),), output=folder / "made.toml", force=True)
    draft = ImportDraft(FormerSettings(dict(given)), request)
    keys = optimizers.finish_warmup(draft, tuple(importer.TRAINERS[trainer].convert(draft)))
    return [*(line(key, given) for key in keys), *draft.text("").splitlines()]


def line(key: ImportedKey, given: dict[str, Any]) -> str:
    """What became of a setting; with its value, where that is not the given one."""
    same = key.key in given and given[key.key] == key.value
    return f"{key.key}{'' if same else f' = {key.value!r}'}: {key.fate}: {key.remark}"


def outcome(given: list[str] | dict[str, Any], trainer: str, folder: Path) -> list[str]:
    try:
        made = (of_files if isinstance(given, list) else of_settings)(given, trainer, folder)  # type: ignore[operator]
    except UserError as error:
        return [f"{error.code}: {error.field}: {error.problem}: {error.remedy}"]
    return [each.replace(str(GOLDEN), "") for each in made]


@pytest.mark.parametrize("kept", sorted(OUTCOMES.glob("*.json")), ids=lambda path: path.stem)
def test_an_import_is_what_it_was(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for case in json.loads(kept.read_text(encoding="utf-8")):
        assert outcome(case["given"], kept.stem, tmp_path) == case["outcome"], case["given"]


def test_every_rule_in_code_is_named_by_a_table() -> None:
    """Rules are found by their names in tables; one that no table names, and no other function calls, is a leftover."""
    package = Path(importer.__file__).parent
    tables = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.toml"))
    for module in package.glob("*/*.py"):
        text = module.read_text(encoding="utf-8")
        for name in re.findall(r"^def _(\w+)\(value: Any, draft: ImportDraft\) -> Outcome:", text, re.MULTILINE):
            named = re.search(rf'"{name}"|^{name} = \[', tables, re.MULTILINE)
            assert named or text.count(f"_{name}") > 1, f"{module.name}: {name}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        for kept in OUTCOMES.glob("*.json"):
            text = []
            for case in json.loads(kept.read_text(encoding="utf-8")):
                given = json.dumps(case["given"], ensure_ascii=False)
                lines = json.dumps(outcome(case["given"], kept.stem, Path(made)), ensure_ascii=False, indent=0)
                text.append(f'{{"given": {given},\n"outcome": {lines}}}')
            kept.write_text("[" + ",\n".join(text) + "]\n", encoding="utf-8")
