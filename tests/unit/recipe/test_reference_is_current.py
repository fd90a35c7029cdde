"""The pages of docs/reference/ say what config classes, contracts and commands say."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import typer

from reelworks.commands.exit_codes import ExitCode
from reelworks.commands.main import app
from reelworks.training.loop import launch

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", ROOT / "scripts" / "generate_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.PAGES = {name: functools.cache(page) for name, page in module.PAGES.items()}  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    "name",
    [
        *("recipe.md", "recipe.schema.json", "dtypes.md", "cli.md", "errors.md", "gpu-figures.md", "optimizers.md"),
        *("json.md", "json.schema.json", "../images/house.svg"),
    ],
)
@pytest.mark.slow
def test_the_file_is_what_the_script_would_write(generator: ModuleType, name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == generator.PAGES[name](), "out of date: run `make reference`"


@pytest.mark.slow
def test_every_key_stands_in_its_own_section(generator: ModuleType) -> None:
    sections = generator.PAGES["recipe.md"]().split("\n## ")
    tables = list(generator._tables(generator.Recipe))
    inner = {table.key for table in tables}
    for table in tables:
        (section,) = [s for s in sections if s.startswith(f"`{table.header}`\n")]
        keys = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
        assert keys == {name for name in table.model.model_fields if f"{table.key}.{name}" not in inner}


def test_the_schema_says_only_what_toml_can(generator: ModuleType) -> None:
    assert "null" not in generator.PAGES["recipe.schema.json"]()


def test_meanings_come_from_descriptions_and_from_docstrings(generator: ModuleType) -> None:
    text = generator.PAGES["recipe.md"]()
    assert "| `gradient_accumulation_steps` | whole number ≥ 1 | `1` | Micro-batches per rank and step |" in text
    assert "| `caption_dropout` | number ≥ 0, ≤ 1 | `0.1` | Share of clips trained with" in text


def test_every_key_has_a_meaning(generator: ModuleType) -> None:
    rows = re.findall(r"^\| `.*", generator.PAGES["recipe.md"](), flags=re.MULTILINE)
    assert rows
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_schema_knows_the_keys_of_complete_recipes(generator: ModuleType) -> None:
    schema = json.loads(generator.PAGES["recipe.schema.json"]())
    recipes = sorted((ROOT / "recipes").glob("*.toml"))
    assert recipes
    for recipe in recipes:
        values = tomllib.loads(recipe.read_text(encoding="utf-8"))
        assert set(schema["required"]) <= values.keys() <= schema["properties"].keys()
    assert schema["additionalProperties"] is False


def test_every_verb_stands_in_the_reference_with_its_options(generator: ModuleType) -> None:
    text = generator.PAGES["cli.md"]()
    group = typer.main.get_command(app)
    verbs = {name: group.get_command(typer.Context(group), name) for name in group.list_commands(typer.Context(group))}
    assert {"train", "checkpoints"} <= verbs.keys()
    for name, verb in verbs.items():
        section = re.split(r"\n## ", text.partition(f"\n## {name}\n")[2])[0]
        assert section, name
        for parameter in verb.params:
            assert parameter.param_type_name == "argument" or f"`{parameter.opts[0]}`" in section, (
                name,
                parameter.opts,
            )


def test_options_have_values_defaults_and_meanings(generator: ModuleType) -> None:
    text = generator.PAGES["cli.md"]()
    assert "| `--world` | whole number ≥ 1 | `1` | Number of GPUs to plan for |" in text
    assert "| `--ema`, `--weights` | flag | `--ema` | Export the averaged or the trained weights |" in text
    assert "reelworks generate RUN|CHECKPOINT --output OUTPUT [OPTIONS]" in text
    assert not re.search(r"\| +\|$", text, flags=re.MULTILINE), "an option without help"


def test_exit_codes_are_those_that_the_trainer_leaves_with(generator: ModuleType) -> None:
    assert launch.EXIT_REQUEUE == ExitCode.REQUEUE
    codes = re.findall(r"^\| (\d+) \|", generator.PAGES["cli.md"](), flags=re.MULTILINE)
    assert [int(code) for code in codes] == list(ExitCode)


@pytest.mark.slow
def test_generating_imports_no_torch(generator: ModuleType) -> None:
    scripts = ROOT / "scripts"
    code = f"import runpy, sys; sys.path.insert(0, {str(scripts)!r}); "
    code += f"runpy.run_path({str(scripts / 'generate_reference.py')!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
