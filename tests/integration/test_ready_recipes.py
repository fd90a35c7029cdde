"""Recipes that come with the project for each model and size of GPU are what the verb writes, and `plan` accepts them."""

from __future__ import annotations

import importlib.util
import itertools
import json
import zlib
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.models import registry
from reelworks.quickstart import ready_recipes
from reelworks.training.plan import plan_forecast
from reelworks.training.recipe import dataset, recipe_file

FOLDER = Path(__file__).parents[2] / "recipes" / "lora"
FILES = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize(
    "models", [["sdxl", "wan-2.1-14b"], pytest.param(None, marks=pytest.mark.slow)], ids=["two", "all"]
)
def test_recipes_are_what_the_verb_writes(models: list[str] | None, monkeypatch: pytest.MonkeyPatch):
    """A change of the verb shows in them, or they are made again: python scripts/lora_recipes.py."""
    files = [file for file in FILES if models is None or stem_and_size(file)[0] in models]
    if models is not None:
        monkeypatch.setattr(ready_recipes, "models", lambda: models)
    spec = importlib.util.spec_from_file_location("lora_recipes", FOLDER.parents[1] / "scripts" / "lora_recipes.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert {file.name: file.read_text(encoding="utf-8") for file in files} == script.texts()


def test_each_family_has_a_model_and_each_recipe_fits_its_gpu():
    models = ready_recipes.models()
    families = {registry.family_of(model).name for model in models}
    alone = {
        registry.family_of(name).name
        for name, preset in registry.PRESETS.items()
        if preset.release and preset.release.weights and not preset.config.conditioning.companions.needs
    }
    assert families == alone
    for model, sizes in itertools.groupby(map(stem_and_size, FILES), lambda pair: pair[0]):
        assert model in models
        assert {size for _, size in sizes} <= {*ready_recipes.SIZES_GB}
    for one in ready_recipes.of_model("wan-2.1-14b"):
        assert one.result.choice.estimate.memory.total <= one.vram_gb * 1e9


def stem_and_size(file: Path) -> tuple[str, int]:
    model, _, size = file.stem.rpartition("-")
    return model, int(size.removesuffix("gb"))


def is_dear(file: Path) -> bool:
    return zlib.crc32(file.name.encode()) % 20 > 0


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(20):
        Image.new("RGB", (1280, 1024), (number, 90, 20)).save(folder / f"{number}.png", compress_level=1)
        (folder / f"{number}.txt").write_text(f"a cup {number}", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, id=file.stem, marks=[pytest.mark.slow] if is_dear(file) else []) for file in FILES],
)
def test_a_plan_of_a_recipe_trains_all_pictures(file: Path, pictures: Path, tmp_path: Path):
    recipe = recipe_file.load(file, [f'dataset.0.path="{pictures}"', f'output="{tmp_path}/run"'])
    dataset.scan_recipe(recipe)
    assert plan_forecast.forecast(recipe, 1).ahead.sum.clips == 20


@pytest.mark.slow
def test_they_are_listed_with_memory_and_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ready_recipes, "models", lambda: ["sdxl", "wan-2.1-14b"])
    made = CliRunner().invoke(app, ["new", "--list", "--gpu", "H100"])
    assert made.exit_code == 0
    assert made.stdout.count("wan-2.1-14b") == len([file for file in FILES if file.name.startswith("wan-2.1-14b")])
    assert "estimated for one H100" in made.stdout
    told = json.loads(CliRunner().invoke(app, ["new", "--list", "--gpu", "RTX 4090", "--json"]).stdout)
    assert [(one["model"], one["vram_gb"]) for one in told][:2] == [("sdxl", 8), ("sdxl", 12)]
    assert all(one["estimate"]["memory"]["total"] <= one["vram_gb"] * 1e9 for one in told)
