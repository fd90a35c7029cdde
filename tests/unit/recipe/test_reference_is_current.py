"""docs/reference/recipe.md and its JSON Schema say what the config classes say, dtypes.md what contracts do."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "generate_reference", ROOT / "scripts" / "generate_reference.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["recipe.md", "recipe.schema.json", "dtypes.md"])
def test_the_file_is_what_the_script_would_write(generator: ModuleType, name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == generator.contents()[name], "out of date: run `make reference`"


def test_every_key_stands_in_its_own_section(generator: ModuleType) -> None:
    sections = generator.contents()["recipe.md"].split("\n## ")
    tables = list(generator._tables(generator.Recipe))
    inner = {table.key for table in tables}
    for table in tables:
        (section,) = [s for s in sections if s.startswith(f"`{table.header}`\n")]
        keys = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
        assert keys == {name for name in table.model.model_fields if f"{table.key}.{name}" not in inner}


def test_the_schema_says_only_what_toml_can(generator: ModuleType) -> None:
    assert "null" not in generator.contents()["recipe.schema.json"]


def test_meanings_come_from_descriptions_and_from_docstrings(generator: ModuleType) -> None:
    text = generator.contents()["recipe.md"]
    assert (
        "| `gradient_accumulation_steps` | whole number ≥ 1 | `1` | Micro-batches per rank and step |" in text
    )
    assert "| `caption_dropout` | number ≥ 0, ≤ 1 | `0.1` | Share of clips shown with" in text


def test_the_schema_knows_the_keys_of_complete_recipes(generator: ModuleType) -> None:
    schema = json.loads(generator.contents()["recipe.schema.json"])
    recipes = sorted((ROOT / "recipes").glob("*.toml"))
    assert recipes
    for recipe in recipes:
        values = tomllib.loads(recipe.read_text())
        assert set(schema["required"]) <= values.keys() <= schema["properties"].keys()
    assert schema["additionalProperties"] is False


def test_generating_imports_no_torch(generator: ModuleType) -> None:
    code = f"import runpy, sys; runpy.run_path({str(ROOT / 'scripts' / 'generate_reference.py')!r}); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
