"""Names and keys that people bring from other trainers: taken where their meaning is clear, else answered by ours."""

from __future__ import annotations

import re

import pytest
import tiny_recipe
from pydantic import BaseModel
from refused import refused

from reelworks.commands import main
from reelworks.core import toml_none
from reelworks.models import registry
from reelworks.training.recipe import errors, recipe_file
from reelworks.training.recipe.recipe import Recipe

RECIPE = tiny_recipe.least(bucket=[{"resolution": "32px", "num_frames": 1}], train={"max_steps": 9})


@pytest.mark.parametrize(
    ("asked", "preset"),
    [
        ("Wan", "wan-2.1-1.3b"),
        ("WAN_2.1", "wan-2.1-1.3b"),
        ("black-forest-labs/FLUX.1-dev", "flux-dev"),
        ("FLUX.1-dev", "flux-dev"),
        ("Wan-AI/Wan2.2-TI2V-5B-Diffusers", "wan-2.2-5b"),
        ("Wan-AI/Wan2.2-TI2V-5B", "wan-2.2-5b"),
        ("Wan-AI/Wan2.2-I2V-A14B", "wan-2.2-i2v-14b"),  # not the preset of the same weights with a last frame
        ("Wan-AI/Wan2.1-VACE-1.3B", "wan-2.1-vace-1.3b"),
        ("SDXL", "sdxl"),
        ("SD15", "sd1.5"),
        ("stable-diffusion-v1-5", "sd1.5"),
        ("runwayml/stable-diffusion-v1-5", "sd1.5"),
        ("flux2-klein", "flux2-klein-base-4b"),
        ("flux.2-klein-4B", "flux2-klein-4b"),
        ("black-forest-labs/FLUX.2-klein-base-9B", "flux2-klein-base-9b"),
        ("chroma", "chroma1-hd"),
        ("FLUX.3", "flux3-klein-base"),
        ("black-forest-labs/flux-3-image-klein-base", "flux3-klein-base"),
        ("Krea-2", "krea2-raw"),
        ("krea/Krea-2-Turbo", "krea2-turbo"),
        ("baidu/ERNIE-Image", "ernie-image"),
        ("ernie", "ernie-image"),
        ("meituan-longcat/LongCat-Image-Dev", "longcat-image-dev"),
        ("hunyuanvideo-community/HunyuanImage-2.1-Diffusers", "hunyuan-image-2.1"),
        ("Efficient-Large-Model/SANA-Video_2B_480p_diffusers", "sana-video-2b"),
        ("kandinskylab/Kandinsky-5.0-T2V-Lite-sft-5s-Diffusers", "kandinsky5-lite"),
        ("kandinskylab/Kandinsky-5.0-T2V-Pro-sft-5s-Diffusers", "kandinsky5-pro"),
        ("kandinskylab/Kandinsky-5.0-T2I-Lite-sft-Diffusers", "kandinsky5-image"),
        ("kandinsky", "kandinsky5-lite"),
        ("Ideogram 4", "ideogram-4"),
        ("HiDream-ai/HiDream-I1-Dev", "hidream-i1-dev"),
        ("hidream", "hidream-i1-full"),
        ("Lumina-Image-2.0", "lumina-image-2.0"),
        ("lumina", "lumina-image-2.0"),
        ("CalamitousFelicitousness/Ideogram-4-bf16-Diffusers", "ideogram-4"),
        ("Anima", "anima"),
        ("circlestone-labs/Anima-Base-v1.0-Diffusers", "anima"),
        ("Anima-2.9B", "anima-2.9b"),
    ],
)
def test_a_model_is_found_by_other_spellings_and_by_its_address(asked, preset):
    assert registry.preset_name(asked) == preset


def test_each_preset_and_short_name_is_found_as_itself():
    for name in registry.PRESETS:
        assert registry.preset_name(name) == name
    for short, preset in registry.SHORT_NAMES.items():
        assert registry.preset_name(short.upper()) == preset


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("sd2.1", "Stable Diffusion 2 cannot be trained here"),
        ("hunyuan-video", "the first HunyuanVideo (13B, 2024) cannot be trained here"),
        ("Tongyi-MAI/Z-Image-Omni-Base", "announced and not yet seen, cannot be trained here"),
        ("flux-3-image-klein", "not a velocity (train on its base), cannot be trained here"),
        ("CogVideoX-5b", "CogVideoX cannot be trained here"),
    ],
)
def test_a_model_that_is_not_here_is_refused_by_its_own_name_with_those_that_are(asked, says):
    with refused("unknown-model", says=re.escape(says)) as caught:
        registry.preset_name(asked)
    assert "sdxl" in caught.value.remedy
    assert "hunyuan-video-1.5" in caught.value.remedy


@pytest.mark.parametrize("asked", ["JuggernautXL", "Juggernaut-XL-v9"])
def test_a_model_that_was_tuned_from_another_is_answered_by_its_base_in_any_version(asked):
    with refused("unknown-model", says="other weights") as caught:
        registry.preset_name(asked)
    assert caught.value.remedy == "give --model sdxl --weights FILE, the file of these weights"


def test_a_recipe_is_answered_by_the_presets_name():
    with refused("unknown-model") as caught:
        recipe_file.parse({**RECIPE, "model": {"name": "black-forest-labs/FLUX.1-dev"}})
    assert caught.value.remedy == 'write "flux-dev"'


@pytest.mark.parametrize(
    ("where", "key", "remedy"),
    [
        ("", "lr", "write train.learning_rate"),
        ("train", "steps", "write train.max_steps"),
        ("train", "batch_size", "write buckets.batch_size"),
        ("", "resolution", "write a [[bucket]] with resolution"),
        ("lora", "network_dim", "write lora.rank"),
        ("lora", "network_alpha", "write lora.alpha"),
        ("", "learningRate", "write train.learning_rate"),
        ("", "repeats", "write dataset.repeats"),
        ("train", "seed", "write seed at the top of the recipe, above the first [table]"),
        ("model", "lora", "write it as [lora]"),
        ("train", "bucket", "write it as [[bucket]]"),
        ("train", "sequence_degree", "write bucket.sequence_degree or parallel.sequence_degree"),
    ],
)
def test_a_key_of_others_or_of_another_table_is_told_first_with_ours(where, key, remedy):
    recipe = {name: value for name, value in RECIPE.items() if name != "dataset"}  # which is wrong too
    recipe |= {where: {**recipe.get(where, {}), key: 1}} if where else {key: 1}
    with refused("unknown-key") as caught:
        recipe_file.parse(recipe)
    assert caught.value.remedy.startswith(remedy)
    assert "also dataset" in caught.value.remedy


def test_a_key_of_a_stage_is_told_in_the_stage():
    stage = {"name": "first", "steps": 3, "learning_rate": 1e-4}
    with refused("unknown-key", "stage.0.learning_rate", says="write stage.train.learning_rate"):
        recipe_file.parse({**RECIPE, "stage": [stage]})


def test_each_key_that_is_told_instead_exists():
    of_options = (way.removeprefix("--set ") for ways in main._ELSEWHERE.values() for way in ways)
    for remedy in (*errors._ELSEWHERE.values(), *of_options):
        if key := re.match(r"([a-z_]+)\.(?:0\.)?([a-z_]+)", remedy):
            config = toml_none.config_in(Recipe.model_fields[key[1]].annotation)
            assert config is not None
            assert issubclass(config, BaseModel)
            assert key[2] in config.model_fields, remedy


@pytest.mark.parametrize("side", [512, "512"])
def test_a_number_is_the_side_of_a_square(side):
    recipe = recipe_file.parse({**RECIPE, "bucket": [{"resolution": side, "num_frames": 1}]})
    assert recipe.bucket[0].resolution == "512px"
