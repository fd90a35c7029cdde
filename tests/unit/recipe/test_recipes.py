"""The recipes that come with the project load, and those of Open-Sora are what the importer makes."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.request import ImportRequest
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

ROOT = Path(__file__).parents[3]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
CONFIGS = sorted((ROOT / "tests" / "opensora_configs").glob("opensora-*.py"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads(path):
    """A recipe is checked as a whole when it is read: keys, names, sizes and buckets."""
    assert recipe_file.load(path).version == 1


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_recipes_of_open_sora_are_what_the_importer_makes_of_its_configs(config, tmp_path):
    """A change of the importer shows in the recipes, or the recipes are made again."""
    made = importer.convert(ImportRequest(files=(config,), output=tmp_path / f"{config.stem}.toml"))
    assert (ROOT / "recipes" / f"{config.stem}.toml").read_text(encoding="utf-8") == made.text
    assert {"opensora-1.2-stage1", "opensora-1.1-stage1"} <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize(
    ("name", "store", "prompts", "is_kept"),
    [
        ("wan", False, [], True),
        ("wan", True, ["a mug"], False),
        ("qwen-image-edit", True, [], False),
        ("qwen-image-edit", True, ["a mug"], True),
    ],
)
def test_a_text_encoder_is_kept_for_texts_that_cannot_be_embedded_before(name, store, prompts, is_kept):
    """Those of previews, where the encoder sees their pictures."""
    recipe = SimpleNamespace(
        encode=SimpleNamespace(store=store),
        samples=SimpleNamespace(prompts=prompts),
        text_encoder=SimpleNamespace(name=name),
    )
    assert Recipe.keeps_text_encoder.fget(recipe) == is_kept
