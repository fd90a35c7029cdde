"""`import` of ai-toolkit: what its values mean there is what the recipe says, and each setting is accounted for.

Numbers are worked out by hand beside them, or come from ai-toolkit's own bucket code (tests/golden/imports).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from former_configs import GOLDEN, converted, fates, remark, settings_of
from refused import refused

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.ai_toolkit import models
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate
from reelworks.models import registry

FIRST, SECOND = (GOLDEN / f"ai-toolkit-{number}.yaml" for number in (1, 2))


def job(tmp_path: Path, **process: Any) -> Path:
    """A job with one process on Z-Image, with some settings in place of these."""
    values = {
        "type": "sd_trainer",
        "model": {"arch": "zimage", "name_or_path": "Tongyi-MAI/Z-Image"},
        "datasets": [{"folder_path": "pictures"}],
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"job": "extension", "config": {"name": "n", "process": [values | process]}}))
    return path


def test_a_lora_of_pictures(tmp_path: Path) -> None:
    made, recipe = converted(tmp_path, FIRST)
    assert made.trainer == "ai-toolkit"
    # Accumulation of the older kind: 1200 micro-batches are 600 steps, and intervals are halved too.
    assert (recipe.train.max_steps, recipe.train.gradient_accumulation_steps) == (600, 2)
    assert (recipe.checkpoints.every_steps, recipe.samples.every_steps) == (100, 200)
    # Prodigy below 0.1 starts at 1.0 there.
    assert (recipe.train.optimizer, recipe.train.learning_rate, recipe.train.weight_decay) == ("prodigy", 1.0, 0.05)
    # Each picture at each size.
    assert [(entry.resolution, entry.keep_prob) for entry in recipe.bucket] == [("768px", 1.0), ("512px", 1.0)]
    assert (recipe.dataset[0].resolutions, recipe.dataset[0].repeats) == (["768px", "512px"], 1)
    # Alpha has no effect on LoRAs of transformers there.
    assert recipe.lora is not None
    assert (recipe.lora.rank, recipe.lora.alpha, recipe.lora.targets, recipe.lora.base) == (
        24,
        None,
        "blocks",
        "float8",
    )
    assert recipe.samples.prompts == ["a p0rc3l4in bowl on a table", "a p0rc3l4in vase"]
    assert (recipe.samples.width, recipe.samples.height) == (992, 688)  # multiples of 16
    assert recipe.objective.timestep_sampling == "logit-normal"
    assert recipe.objective.timestep_shift == "none"
    assert (recipe.objective.caption_dropout, recipe.train.ema_decay) == (0.1, 0.98)
    assert (recipe.dataset[0].trigger, recipe.dataset[0].caption) == ("p0rc3l4in", "{text}")
    assert recipe.output == "out/porcelain"
    assert "max_steps = 600                # train.steps = 1200" in made.text
    assert fates(made)["train.optimizer_params.d_coef"] == Fate.NOT_POSSIBLE
    assert fates(made)["network.linear_alpha"] == Fate.NO_MEANING


def test_a_lokr_of_clips_and_stills(tmp_path: Path) -> None:
    made, recipe = converted(tmp_path, SECOND)
    assert (recipe.model.name, recipe.model.weights) == ("wan-2.1-14b", "Wan-AI/Wan2.1-T2V-14B-Diffusers")
    # Accumulation of the newer kind: steps are the optimizer's.
    assert (recipe.train.max_steps, recipe.train.gradient_accumulation_steps) == (3000, 2)
    assert (recipe.train.learning_rate, recipe.train.warmup_steps, recipe.train.weight_decay) == (2e-4, 50, 0.01)
    assert recipe.lora is not None
    assert (recipe.lora.type, recipe.lora.rank, recipe.lora.decompose_factor) == ("lokr", 100_000, 8)
    # 3 repeats and a mirrored copy of each; stills are pictures alone.
    assert [(data.repeats, data.flip, data.filter) for data in recipe.dataset] == [
        (6, 0.5, None),
        (1, 0.0, "kind == 'image'"),
    ]
    assert [data.dataset_name for data in recipe.dataset] == ["dance", "stills"]
    assert recipe.bucket[0].num_frames == [1, 41]
    assert (recipe.data.fps, recipe.data.short_clips, recipe.samples.num_frames) == (16.0, "hold", 41)
    assert (recipe.objective.timestep_sampling, recipe.objective.timestep_shift) == ("uniform", 3.0)
    assert (recipe.seed, recipe.train.ema_decay, recipe.exports.weights) == (7, 0.0, "model")
    for key in ("process.1", "datasets.1.is_reg", "train.noise_offset", "model.quantize"):
        assert fates(made)[key] == Fate.NOT_POSSIBLE


@pytest.mark.parametrize("path", [FIRST, SECOND], ids=["first", "second"])
def test_every_setting_has_one_line(tmp_path: Path, path: Path) -> None:
    made, _ = converted(tmp_path, path)
    values = yaml.safe_load(path.read_text())
    others = {f"process.{number}" for number in range(1, len(values["config"]["process"]))}
    expected = settings_of(values["config"]["process"][0]) | others | {"job", "config.name"}
    assert expected <= fates(made).keys()
    # Beside the config's own, nothing but defaults of the trainer.
    told = {key.key for key in made.keys if key.remark.endswith("(a default of the trainer)")}
    assert fates(made).keys() - expected == told


def test_alpha_scales_loras_of_convolutional_networks(tmp_path: Path) -> None:
    model = {"name_or_path": "stabilityai/stable-diffusion-xl-base-1.0", "is_xl": True}
    _, recipe = converted(tmp_path, job(tmp_path, model=model, network={"type": "lora", "linear": 16}))
    assert recipe.lora is not None
    assert (recipe.lora.rank, recipe.lora.alpha) == (16, 1.0)


def test_what_a_form_fills_in_without_use_is_not_called_impossible(tmp_path: Path) -> None:
    network = {"type": "lora", "linear": 32, "conv": 16, "network_kwargs": {"ignore_if_contains": []}}
    first = {"folder_path": "a", "mask_path": None, "mask_min_value": 0.1, "controls": []}
    second = {"folder_path": "b", "mask_path": "masks", "mask_min_value": 0.1}
    train = {"bypass_guidance_embedding": True, "ema_config": {"use_ema": False, "ema_decay": 0.99}}
    made, recipe = converted(tmp_path, job(tmp_path, network=network, datasets=[first, second], train=train))
    assert [data.loss_mask for data in recipe.dataset] == [None, "masks"]
    assert fates(made)["network.conv"] == fates(made)["datasets.0.mask_min_value"] == Fate.NO_MEANING
    impossible = {key for key, fate in fates(made).items() if fate == Fate.NOT_POSSIBLE}
    assert "datasets.1.mask_min_value" in impossible
    assert not {key for key in impossible if not key.startswith("datasets.1.")}


def test_control_folders_are_the_sources_of_edits(tmp_path: Path) -> None:
    model = {"arch": "qwen_image_edit_plus", "name_or_path": "Qwen/Qwen-Image-Edit-2509"}
    datasets = [{"folder_path": "after", "control_path_1": "before", "control_path_2": "style", "mask_path": "masks"}]
    samples = {"samples": [{"prompt": "make it blue", "ctrl_img_1": "a.png", "ctrl_img_2": "b.png"}]}
    made, recipe = converted(tmp_path, job(tmp_path, model=model, datasets=datasets, sample=samples))
    assert recipe.dataset[0].source == ["before", "style"]
    assert recipe.dataset[0].loss_mask == "masks"
    assert recipe.samples.source == ["a.png", "b.png"]
    assert fates(made)["sample.samples.0.ctrl_img_2"] == Fate.TAKEN


def test_a_full_fine_tune_has_no_lora(tmp_path: Path) -> None:
    made, recipe = converted(tmp_path, job(tmp_path, train={"lr": 3e-5, "optimizer": "adafactor"}))
    assert recipe.lora is None
    assert (recipe.train.optimizer, recipe.train.learning_rate, recipe.train.max_steps) == ("adafactor", 3e-5, 1000)
    assert "network.linear" not in fates(made)


def test_the_networks_of_a_pair(tmp_path: Path) -> None:
    model = {
        "arch": "wan22_14b:t2v",
        "name_or_path": "ai-toolkit/Wan2.2-T2V-A14B-Diffusers-bf16",
        "model_kwargs": {"train_high_noise": False, "train_low_noise": True},
    }
    _, recipe = converted(tmp_path, job(tmp_path, model=model))
    assert (recipe.model.name, recipe.model.experts) == ("wan-2.2-14b", "low")
    assert recipe.model.weights == "Wan-AI/Wan2.2-T2V-A14B-Diffusers"


def test_a_distilled_model_keeps_its_training_adapter(tmp_path: Path) -> None:
    adapter = "ostris/zimage_turbo_training_adapter/zimage_turbo_training_adapter_v2.safetensors"
    model = {"arch": "zimage:turbo", "name_or_path": "Tongyi-MAI/Z-Image-Turbo", "assistant_lora_path": adapter}
    _, recipe = converted(tmp_path, job(tmp_path, model=model, network={"type": "lora", "linear": 8}))
    assert recipe.model.name == "z-image-turbo"
    assert recipe.lora is not None
    assert recipe.lora.training_adapter == adapter


def test_values_that_a_recipe_cannot_have_are_told_and_left_out(tmp_path: Path) -> None:
    train = {"steps": "many", "lr": -1.0, "batch_size": 0, "optimizer_params": {"betas": [0.9]}, "surprise": 3}
    made, recipe = converted(tmp_path, job(tmp_path, train=train, network={"type": "lora", "linear": "wide"}))
    for key in ("train.steps", "train.lr", "train.batch_size", "network.linear", "train.optimizer_params.betas"):
        assert fates(made)[key] == Fate.TO_FILL_IN, key
    assert recipe.train.max_steps == 1000
    assert "no such setting is known" in remark(made, "train.surprise")


@pytest.mark.parametrize(
    ("process", "code"),
    [
        ({"model": {"arch": "hidream", "name_or_path": "x"}}, "unknown-model"),
        ({"model": {"name_or_path": "ostris/Flex.1-alpha", "is_flux": True}}, "unknown-model"),
        ({"type": "slider"}, "config-unreadable"),
        ({"adapter": {"type": "ip", "train": True}}, "config-unreadable"),  # not a training of all weights
    ],
)
def test_what_is_not_trained_here_is_one_line(tmp_path: Path, process: dict[str, Any], code: str) -> None:
    with refused(code) as caught:
        converted(tmp_path, job(tmp_path, **process))
    assert len(str(caught.value).splitlines()) == 2
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["", "[1, 2]", "job: 1", "job: 1\nconfig: {process: []}", "job: 1\nconfig: [process]"])
def test_a_job_without_a_process_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with refused("config-unreadable"):
        importer.convert(ImportRequest(files=(path,), output=tmp_path / "o.toml", trainer="ai-toolkit"))


def test_every_architecture_is_a_published_preset() -> None:
    named = {*models.PRESETS.values(), *(preset for pairs in models.BY_WEIGHTS.values() for _, preset in pairs)}
    assert all(registry.PRESETS[preset].release is not None for preset in named)
