"""`import` of SimpleTuner: options and data backends become one recipe, and each of their settings is accounted for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from former_configs import GOLDEN, converted, fates
from refused import refused

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate
from reelworks.annexes.imports.simpletuner import models
from reelworks.models import registry

FIRST, SECOND = GOLDEN / "simpletuner-1.json", GOLDEN / "simpletuner-2.toml"
FLUX = {
    "model_family": "flux",
    "model_flavour": "dev",
    "model_type": "lora",
    "max_train_steps": 10,
    "num_train_epochs": 0,
}
PICTURES = {"id": "pictures", "type": "local", "instance_data_dir": "pictures", "caption_strategy": "textfile"}
TEXTS = {"id": "text", "dataset_type": "text_embeds", "type": "local", "default": True}


def written(tmp_path: Path, options: Mapping[str, Any], *backends: Mapping[str, Any]) -> tuple[Path, Path]:
    """Options on Flux, and data backends, as two files that do not name one another."""
    paths = tmp_path / "config.json", tmp_path / "multidatabackend.json"
    paths[0].write_text(json.dumps({**FLUX, **options}), encoding="utf-8")
    paths[1].write_text(json.dumps([*(backends or [PICTURES]), TEXTS]), encoding="utf-8")
    return paths


def test_secrets_are_neither_shown_nor_written(tmp_path: Path) -> None:
    made, _ = converted(tmp_path, FIRST)
    assert "hub_token" in fates(made)
    assert "hf_secretsecret" not in made.text + str(made.keys)


def test_two_files_of_one_run_need_not_name_each_other(tmp_path: Path) -> None:
    options, backends = written(tmp_path, {"data_backend_config": "somewhere/else.json"})
    for files in ((options, backends), (backends, options)):
        _, recipe = converted(tmp_path, *files)
        assert recipe.dataset[0].path == "pictures"
    made, recipe = converted(tmp_path, options)
    assert fates(made)["data_backend_config"] == Fate.TO_FILL_IN
    assert recipe.dataset[0].path == "clips-1"


@pytest.mark.parametrize("key", ["disabled", "disable"])
def test_a_backend_that_is_off_is_not_trained(tmp_path: Path, key: str) -> None:
    off = {**PICTURES, "id": "off", "instance_data_dir": "others", key: True}
    _, recipe = converted(tmp_path, *written(tmp_path, {}, off, PICTURES))
    assert [data.path for data in recipe.dataset] == ["pictures"]


def test_files_are_found_from_the_folder_of_simpletuner(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "mine"
    folder.mkdir(parents=True)
    options, _ = written(folder, {"data_backend_config": "config/mine/multidatabackend.json"})
    _, recipe = converted(tmp_path, options)
    assert recipe.dataset[0].path == "pictures"


@pytest.mark.parametrize("suffix", ["json", "toml", "env"])
def test_of_several_configs_in_a_folder_one_is_trained(tmp_path: Path, suffix: str) -> None:
    """SimpleTuner loads one of them; of a config.env beside it, only the launch takes its numbers."""
    variables = "export TRAINING_NUM_PROCESSES=3\nMODEL_FAMILY=flux\nLR_WARMUP_STEPS=7\nUSE_EMA=true\n"
    (tmp_path / "config.env").write_text(variables, encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({**FLUX, "seed": 5}), encoding="utf-8")
    (tmp_path / "config.toml").write_text(tomli_w.dumps({**FLUX, "lora_rank": 9}), encoding="utf-8")
    made, _ = converted(tmp_path, tmp_path / f"config.{suffix}")
    given = {key.key for key in made.keys if "(a default of" not in key.remark}
    own = {"json": {"seed"}, "toml": {"lora_rank"}, "env": {"lr_warmup_steps", "use_ema"}}
    assert given & set().union(*own.values()) == own[suffix]
    assert "num_processes" in given


def test_variables_of_a_shell(tmp_path: Path) -> None:
    backends = tmp_path / "backends.json"
    backends.write_text(json.dumps([PICTURES, TEXTS]), encoding="utf-8")
    path = tmp_path / "config.env"
    path.write_text(
        "export MODEL_FAMILY='sd3'\nMODEL_TYPE=lora\nMAX_NUM_STEPS=1_000\nMAX_NUM_STEPS=700\nNUM_EPOCHS=0\n"
        f"LEARNING_RATE=1e-5\nDATALOADER_CONFIG={backends}\nUSE_GRADIENT_CHECKPOINTING=false\n"
        'TRAINER_EXTRA_ARGS="--lora_rank=8"\nTRAINER_EXTRA_ARGS+=" --lora_alpha 4"\n',
        encoding="utf-8",
    )
    _, recipe = converted(tmp_path, path)
    assert (recipe.model.name, recipe.train.max_steps, recipe.train.learning_rate) == ("sd3.5-medium", 700, 1e-5)
    assert recipe.lora is not None
    assert (recipe.lora.rank, recipe.lora.alpha, recipe.model.gradient_checkpointing) == (8, 4.0, False)


def test_a_command_line(tmp_path: Path) -> None:
    command = "simpletuner train --model_family=z_image --model_flavour=base --model_type=lora --max_train_steps=30"
    made, recipe = converted(tmp_path, command=command)
    assert (made.trainer, recipe.model.name, recipe.train.max_steps) == ("simpletuner", "z-image", 30)


def test_a_folder_at_two_sizes_is_used_at_each(tmp_path: Path) -> None:
    small, large = ({**PICTURES, "id": f"p{size}", "resolution": size} for size in (512, 1024))
    made, recipe = converted(tmp_path, *written(tmp_path, {}, small, large))
    assert [(entry.resolution, entry.keep_prob) for entry in recipe.bucket] == [("1024px", 1.0), ("512px", 1.0)]
    found = [(data.dataset_name, data.resolutions) for data in recipe.dataset]
    assert found == [("p512", ["512px"]), ("p1024", ["1024px"])]
    assert fates(made)["data.0.resolution"] == Fate.TAKEN


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"resolution": 1.0, "resolution_type": "area"}, "1024px"),  # √1,000,000 rounded to 64
        ({"resolution": 0.5, "resolution_type": "area"}, "704px"),
        ({"resolution": 512, "resolution_type": "pixel_area"}, "512px"),
        ({"resolution": 480, "resolution_type": "pixel"}, "480px"),
    ],
)
def test_resolutions(tmp_path: Path, settings: dict[str, Any], expected: str) -> None:
    _, recipe = converted(tmp_path, *written(tmp_path, {}, {**PICTURES, **settings}))
    assert recipe.bucket[0].resolution == expected


def test_shapes_of_crops(tmp_path: Path) -> None:
    square = {**PICTURES, "crop": True, "crop_aspect": "square", "crop_style": "random"}
    _, recipe = converted(tmp_path, *written(tmp_path, {}, square))
    assert (recipe.buckets.aspect_ratios, recipe.data.crop) == (["1:1"], "random")
    closest = {**PICTURES, "crop": True, "crop_aspect": "closest", "crop_aspect_buckets": [1.0, 0.75, 1.5]}
    _, recipe = converted(tmp_path, *written(tmp_path, {}, closest))
    assert recipe.buckets.aspect_ratios == ["1:1", "0.75:1", "1.5:1"]


def test_conditioning_backends_are_sources_or_controls(tmp_path: Path) -> None:
    edited = {**PICTURES, "conditioning_data": "before"}
    before = {"id": "before", "dataset_type": "conditioning", "instance_data_dir": "before", "type": "local"}
    options = {"model_family": "flux2", "model_flavour": "dev"}
    _, recipe = converted(tmp_path, *written(tmp_path, options, edited, before))
    assert recipe.dataset[0].source == "before"
    made, recipe = converted(tmp_path, *written(tmp_path, {}, edited, before))
    assert fates(made)["data.0.conditioning_data"] == Fate.NOT_POSSIBLE  # Flux dev takes none
    assert recipe.dataset[0].source is None


def test_flavours(tmp_path: Path) -> None:
    flavours = {
        ("wan", "i2v-14b-2.2-low"): ("wan-2.2-i2v-14b", "low"),
        ("flux", ""): ("flux-dev", None),
        ("z-image", "turbo"): ("z-image-turbo", None),
        ("ernie", ""): ("ernie-image", None),
        ("longcat_image", "dev"): ("longcat-image-dev", None),
        ("kandinsky5-video", ""): ("kandinsky5-lite", None),
        ("kandinsky5-video", "t2v-pro-sft-10s-hd"): ("kandinsky5-pro", None),
        ("kandinsky5-image", "t2i-lite-pretrain"): ("kandinsky5-image", None),
        ("hidream", "dev"): ("hidream-i1-dev", None),
        ("ideogram", ""): ("ideogram-4", None),
        ("lumina2", "neta-lumina"): ("lumina-image-2.0", None),
        ("sanavideo", ""): ("sana-video-2b", None),
    }
    for (family, flavour), expected in flavours.items():
        _, recipe = converted(tmp_path, *written(tmp_path, {"model_family": family, "model_flavour": flavour}))
        assert (recipe.model.name, recipe.model.experts) == expected
    _, recipe = converted(tmp_path, *written(tmp_path, {"model_flavour": ""}))
    assert recipe.model.weights == "black-forest-labs/FLUX.1-Krea-dev"  # its default since 2025
    _, recipe = converted(
        tmp_path, *written(tmp_path, {"pretrained_model_name_or_path": "black-forest-labs/FLUX.1-schnell"})
    )
    assert recipe.model.name == "flux-schnell"
    own = {"model_flavour": "dev", "pretrained_transformer_model_name_or_path": "mine.safetensors"}
    _, recipe = converted(tmp_path, *written(tmp_path, own))
    assert (recipe.model.name, recipe.model.weights) == ("flux-dev", "mine.safetensors")


def test_every_flavour_is_a_published_preset() -> None:
    for flavours in models.FLAVOURS.values():
        assert all(registry.PRESETS[flavour.preset].release is not None for flavour in flavours.values())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"model_family": "kolors"}, "unknown-model"),
        ({"model_family": 3}, "config-unreadable"),
        ({"model_type": "full", "controlnet": True}, "config-unreadable"),
    ],
)
def test_what_is_not_trained_here_is_one_line(tmp_path: Path, options: dict[str, Any], code: str) -> None:
    with refused(code) as caught:
        converted(tmp_path, *written(tmp_path, options), trainer="simpletuner")
    assert len(str(caught.value).splitlines()) == 2


def test_noise_of_sdxl_has_an_offset(tmp_path: Path) -> None:
    """With its share of clips, which is a quarter by default; flow matching has none there."""
    options = {"model_family": "sdxl", "model_flavour": "base-1.0", "offset_noise": True, "input_perturbation": 0.1}
    made, recipe = converted(tmp_path, *written(tmp_path, options))
    objective = recipe.objective
    assert (objective.noise_offset, objective.noise_offset_probability) == (0.1, 0.25)
    assert objective.input_perturbation == 0.1
    assert {fates(made)[key] for key in ("offset_noise", "input_perturbation")} == {Fate.TAKEN}
    made, recipe = converted(tmp_path, *written(tmp_path, {"offset_noise": True}))
    assert recipe.objective.noise_offset == 0
    assert fates(made)["offset_noise"] is Fate.NO_MEANING


def test_stable_diffusion_1_may_end_in_pure_noise(tmp_path: Path) -> None:
    """A flavour is one of its checkpoints; only a prediction of v takes the rescaled schedule."""
    options = {"model_family": "sd1x", "model_flavour": "1.4", "rescale_betas_zero_snr": True}
    made, recipe = converted(tmp_path, *written(tmp_path, options))
    assert (recipe.model.name, recipe.model.weights) == ("sd1.5", "CompVis/stable-diffusion-v1-4")
    assert fates(made)["rescale_betas_zero_snr"] is Fate.NOT_POSSIBLE
    made, recipe = converted(tmp_path, *written(tmp_path, {**options, "prediction_type": "v_prediction"}))
    assert (recipe.objective.name, recipe.objective.zero_terminal_snr) == ("v-prediction", True)


def test_values_that_a_recipe_cannot_have_are_told_and_left_out(tmp_path: Path) -> None:
    options = {"learning_rate": -1, "train_batch_size": "many", "lora_rank": 0, "seed": "x", "max_train_steps": "none"}
    broken = {**PICTURES, "resolution": -5, "repeats": "often", "minimum_image_size": [1]}
    made, recipe = converted(tmp_path, *written(tmp_path, options, broken))
    for key in ("learning_rate", "train_batch_size", "lora_rank", "seed", "data.0.resolution", "data.0.repeats"):
        assert fates(made)[key] == Fate.TO_FILL_IN, key
    assert (recipe.train.max_steps, recipe.bucket[0].resolution) == (1000, "1024px")


def test_nothing_of_simpletuner_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}", encoding="utf-8")
    with refused("config-unreadable"):
        importer.convert(ImportRequest(files=(path,), output=tmp_path / "o.toml", trainer="simpletuner"))
    shutil.copy(FIRST, path)
    made, _ = converted(tmp_path, path)
    assert fates(made)["data_backend_config"] == Fate.TO_FILL_IN
    assert fates(made)["lora_type"] == Fate.TO_FILL_IN  # lycoris_config is not there


@pytest.mark.parametrize(
    ("family", "flavour", "given", "shift"),
    [
        ("wan", "i2v-14b-2.2-high", None, 5.0),
        ("wan", "i2v-14b-2.2-low", 7.0, 5.0),  # whatever the config says
        ("wan", "t2v-480p-1.3b-2.1", None, 3.0),
        ("minimaxh3", "fl2va", 3.0, 12.0),  # which is the default of all others
        ("minimaxh3", "fl2va", 7.0, 7.0),
    ],
)
def test_flavours_have_shifts_of_their_own(
    tmp_path: Path, family: str, flavour: str, given: float | None, shift: float
) -> None:
    options = {"model_family": family, "model_flavour": flavour, "pretrained_model_name_or_path": None}
    options |= {} if given is None else {"flow_schedule_shift": given}
    _, recipe = converted(tmp_path, *written(tmp_path, options))
    assert recipe.objective.timestep_shift == shift


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("qwen_image", ["to_k", "to_q", "to_v", "to_out.0"]),  # without the layers of the text
        ("flux2", ["attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0", "attn.to_qkv_mlp_proj"]),
        ("z_image", "default"),
    ],
)
def test_a_lora_adapts_the_layers_that_it_does_there(tmp_path: Path, family: str, targets: list[str] | str) -> None:
    options = {
        "model_family": family,
        "model_flavour": None,
        "model_type": "lora",
        "pretrained_model_name_or_path": None,
    }
    _, recipe = converted(tmp_path, *written(tmp_path, options))
    assert recipe.lora is not None
    assert recipe.lora.targets == targets


def test_an_average_that_moves_each_nth_step_is_as_slow_here(tmp_path: Path) -> None:
    options = {"use_ema": True, "ema_decay": 0.99, "ema_update_interval": 10}
    _, recipe = converted(tmp_path, *written(tmp_path, options))
    assert recipe.train.ema_decay == pytest.approx(0.99 ** (1 / 10))


@pytest.mark.parametrize(("flavour", "of_pictures"), [("flf2v-14b-2.1", True), ("i2v-14b-2.2-high", False)])
def test_lycoris_adapts_the_layers_of_pictures_where_a_network_has_them(
    tmp_path: Path, flavour: str, of_pictures: bool
) -> None:
    lycoris = {"algo": "lora", "linear_dim": 4, "linear_alpha": 4, "apply_preset": {"target_module": ["Attention"]}}
    (tmp_path / "lycoris.json").write_text(json.dumps(lycoris), encoding="utf-8")
    options = {"model_family": "wan", "model_flavour": flavour, "lora_type": "lycoris"}
    options["lycoris_config"] = str(tmp_path / "lycoris.json")
    _, recipe = converted(tmp_path, *written(tmp_path, options))
    assert recipe.lora is not None
    assert ("add_k_proj" in recipe.lora.targets, "to_k" in recipe.lora.targets) == (of_pictures, True)
