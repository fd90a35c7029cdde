"""`import` of ai-toolkit: what its values mean there is what the recipe says, and each setting is accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from former_configs import GOLDEN, converted, fates, remark
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
    path.write_text(
        yaml.safe_dump({"job": "extension", "config": {"name": "n", "process": [values | process]}}), encoding="utf-8"
    )
    return path


def test_alpha_scales_loras_of_convolutional_networks(tmp_path: Path) -> None:
    model = {"name_or_path": "stabilityai/stable-diffusion-xl-base-1.0", "is_xl": True}
    made, recipe = converted(tmp_path, job(tmp_path, model=model, network={"type": "lora", "linear": 16}))
    assert recipe.lora is not None
    assert (recipe.lora.rank, recipe.lora.alpha) == (16, 1.0)
    assert fates(made)["network.type"] is Fate.NOT_POSSIBLE  # inputs of times are adapted there, too


@pytest.mark.parametrize(("model", "trained"), [("sdxl", True), ("zimage", False)])
def test_text_encoders_of_a_lora(tmp_path: Path, model: str, trained: bool) -> None:
    """They are trained where a LoRA can have them, at the rate of all, whatever is given."""
    train = {"train_text_encoder": True, "text_encoder_lr": 2e-5, "lr": 1e-4}
    path = job(tmp_path, model={"arch": model, "name_or_path": "a/b"}, network={"type": "lora"}, train=train)
    made, recipe = converted(tmp_path, path)
    assert (recipe.lora.text_encoders, recipe.train.text_encoder_learning_rate) == (trained, None)
    assert fates(made)["train.train_text_encoder"] is (Fate.TAKEN if trained else Fate.NOT_POSSIBLE)
    assert fates(made)["train.text_encoder_lr"] is Fate.NO_MEANING


def test_control_folders_are_the_sources_of_edits(tmp_path: Path) -> None:
    model = {"arch": "qwen_image_edit_plus", "name_or_path": "Qwen/Qwen-Image-Edit-2509"}
    datasets = [{"folder_path": "after", "control_path_1": "before", "control_path_2": "style", "mask_path": "masks"}]
    samples = {"samples": [{"prompt": "make it blue", "ctrl_img_1": "a.png", "ctrl_img_2": "b.png"}]}
    made, recipe = converted(tmp_path, job(tmp_path, model=model, datasets=datasets, sample=samples))
    assert recipe.dataset[0].source == ["before", "style"]
    assert recipe.dataset[0].loss_mask == "masks"
    assert recipe.samples.source == ["a.png", "b.png"]
    assert fates(made)["sample.samples.0.ctrl_img_2"] == Fate.TAKEN


def test_a_model_with_one_control_takes_one_folder_of_them(tmp_path: Path) -> None:
    """Of several, none is chosen: the recipe's place for it is to be filled in."""
    for folders, control, fate in (
        (["canny"], "canny", Fate.TAKEN),
        (["canny", "depth"], "controls", Fate.TO_FILL_IN),
    ):
        datasets = [{"folder_path": "pictures", "control_path": folders}]
        made, recipe = converted(tmp_path, job(tmp_path, datasets=datasets), model="flux-control")
        assert recipe.dataset[0].control == control
        assert fates(made)["datasets.0.control_path"] is fate


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


def test_the_company_s_codes_of_ideogram_keep_the_encoders_of_the_release(tmp_path: Path) -> None:
    """Its folder has a text encoder in codes of its own, which is not read here."""
    model = {"arch": "ideogram4", "name_or_path": "ideogram-ai/ideogram-4-fp8"}
    _, recipe = converted(tmp_path, job(tmp_path, model=model))
    assert (recipe.model.name, recipe.model.weights) == ("ideogram-4", "ideogram-ai/ideogram-4-fp8")
    release = registry.release_of("ideogram-4").weights
    assert recipe.text_encoder.weights == recipe.autoencoder.weights == release


def test_lumina_by_its_switch_has_the_shift_of_the_release(tmp_path: Path) -> None:
    """Names of its example."""
    model = {"is_lumina2": True, "name_or_path": "Alpha-VLLM/Lumina-Image-2.0", "quantize_te": True}
    _, recipe = converted(tmp_path, job(tmp_path, model=model, train={"timestep_type": "lumina2_shift"}))
    assert (recipe.model.name, recipe.objective.timestep_shift) == ("lumina-image-2.0", 6.0)
    assert recipe.objective.timestep_sampling == "uniform"


def test_the_shift_is_that_of_its_own_scheduler(tmp_path: Path) -> None:
    """It is not the release's for each model."""
    model = {"arch": "ernie_image", "name_or_path": "baidu/ERNIE-Image"}
    _, recipe = converted(tmp_path, job(tmp_path, model=model, train={"timestep_type": "shift"}))
    assert (recipe.model.name, recipe.objective.timestep_shift) == ("ernie-image", 3.0)
    assert registry.release_of("ernie-image").timestep_shift == 4.0


@pytest.mark.parametrize(("arch", "shift"), [("wan22_5b", 5.0), ("chroma", 3.16)])
def test_shifts_that_are_not_those_of_the_release(tmp_path: Path, arch: str, shift: float) -> None:
    path = job(tmp_path, model={"arch": arch, "name_or_path": "a/b"}, train={"timestep_type": "shift"})
    made, recipe = converted(tmp_path, path)
    assert recipe.objective.timestep_shift == shift
    assert ("grows with the size" in remark(made, "train.timestep_type")) == (arch == "chroma")


def test_a_model_with_sound_is_trained_without_it_unless_it_is_asked_for(tmp_path: Path) -> None:
    model = {"arch": "ltx2", "name_or_path": "Lightricks/LTX-2"}
    for sound, name in ((False, "ltx-2"), (True, "ltx-2-sound")):
        path = job(tmp_path, model=model, datasets=[{"folder_path": "clips", "num_frames": 49, "do_audio": sound}])
        assert converted(tmp_path, path)[1].model.name == name


@pytest.mark.parametrize(
    ("settings", "fps", "fate"),
    [
        ({"num_frames": 33, "shrink_video_to_frames": False}, 24.0, None),  # its default
        ({"num_frames": 33, "shrink_video_to_frames": False, "fps": 16}, 16.0, Fate.NOT_POSSIBLE),
        ({"num_frames": 33, "auto_frame_count": True, "fps": 16}, 16.0, Fate.TAKEN),
        ({"auto_frame_count": True, "fps": 16}, 16.0, Fate.TAKEN),
        ({"num_frames": 33, "fps": 16}, None, Fate.NO_MEANING),
        ({"num_frames": 1, "shrink_video_to_frames": False}, None, None),
    ],
)
def test_frames_have_a_rate_where_they_follow_each_other(
    tmp_path: Path, settings: dict[str, Any], fps: float | None, fate: Fate | None
) -> None:
    model = {"arch": "wan21", "name_or_path": "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"}
    made, recipe = converted(tmp_path, job(tmp_path, model=model, datasets=[{"folder_path": "clips"} | settings]))
    assert recipe.data.frame_rate == fps
    if fate is not None:
        assert fates(made)["datasets.0.fps"] is fate


def test_a_rate_of_each_dataset_that_a_recipe_has_once_is_told(tmp_path: Path) -> None:
    model = {"arch": "wan21", "name_or_path": "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"}
    clips = [{"folder_path": f"clips{fps}", "num_frames": 33, "auto_frame_count": True, "fps": fps} for fps in (16, 24)]
    clips = [{**each, "caption_dropout_rate": each["fps"] / 100} for each in clips]
    made, recipe = converted(tmp_path, job(tmp_path, model=model, datasets=clips))
    assert (recipe.data.frame_rate, recipe.objective.caption_dropout) == (24.0, 0.16)
    assert "that of the first" in remark(made, "datasets.0.caption_dropout_rate")
    assert fates(made)["datasets.1.fps"] is Fate.NOT_POSSIBLE
    assert "in place of data.fps = 16.0 of datasets.0.fps" in remark(made, "datasets.1.fps")


def test_a_warm_up_counts_micro_batches_where_steps_do(tmp_path: Path) -> None:
    """With the older of its two settings of accumulation, the schedule goes on at each."""
    train = {"gradient_accumulation_steps": 4, "steps": 3000, "lr_scheduler": "constant_with_warmup"}
    for given, steps in (({}, 250), ({"lr_scheduler_params": {"num_warmup_steps": 100}}, 25)):
        recipe = converted(tmp_path, job(tmp_path, train=train | given))[1]
        assert (recipe.train.max_steps, recipe.train.warmup_steps) == (750, steps)


@pytest.mark.parametrize("key", ["snr_gamma", "min_snr_gamma"])
def test_only_one_of_two_weights_by_noise_has_a_bound(tmp_path: Path, key: str) -> None:
    model = {"name_or_path": "stabilityai/stable-diffusion-xl-base-1.0", "is_xl": True}
    made, recipe = converted(tmp_path, job(tmp_path, model=model, train={key: 5.0}))
    assert (recipe.objective.loss_weighting, recipe.objective.snr_gamma) == ("min-snr", 5.0)
    assert fates(made)[f"train.{key}"] is (Fate.NOT_POSSIBLE if key == "snr_gamma" else Fate.TAKEN)


@pytest.mark.parametrize(
    ("arch", "path", "preset"),
    [
        ("zimage", "/data/turbo-captions/models/Z-Image", "z-image"),
        ("zimage", "/data/models/Z-Image-Turbo", "z-image-turbo"),
        ("flux", "/models/schnell-tests/main/FLUX.1-dev", "flux-dev"),
    ],
)
def test_the_model_is_told_by_the_end_of_its_path(tmp_path: Path, arch: str, path: str, preset: str) -> None:
    assert converted(tmp_path, job(tmp_path, model={"arch": arch, "name_or_path": path}))[1].model.name == preset


@pytest.mark.parametrize(("low", "high", "bounds"), [(200, 999, [0.0, 800.0]), (0, 799, [200.0, 1000.0])])
def test_indices_of_descending_timesteps_are_a_range(tmp_path: Path, low: int, high: int, bounds: list[float]) -> None:
    train = {"min_denoising_steps": low, "max_denoising_steps": high}
    _, recipe = converted(tmp_path, job(tmp_path, train=train))
    assert recipe.objective.timestep_range == bounds


def test_weight_decay_is_that_of_its_own_8_bit_optimizer(tmp_path: Path) -> None:
    for name, decay in (("adamw8", 0.0), ("adamw8bit", 0.01)):
        assert converted(tmp_path, job(tmp_path, train={"optimizer": name}))[1].train.weight_decay == decay


def test_values_that_a_recipe_cannot_have_are_told_and_left_out(tmp_path: Path) -> None:
    train = {"steps": "many", "lr": -1.0, "batch_size": 0, "optimizer_params": {"betas": [0.9]}, "surprise": 3}
    made, recipe = converted(tmp_path, job(tmp_path, train=train, network={"type": "lora", "linear": "wide"}))
    for key in ("train.steps", "train.lr", "train.batch_size", "network.linear", "train.optimizer_params.betas"):
        assert fates(made)[key] == Fate.TO_FILL_IN, key
    assert recipe.train.max_steps == 1000
    assert "no such setting is known" in remark(made, "train.surprise")


@pytest.mark.parametrize("of", ["job", "dataset"])
def test_pictures_of_the_class_alone_have_no_trigger(tmp_path: Path, of: str) -> None:
    """Which they would learn as the word for everything."""
    own = {"trigger_word": "rwmug"}
    datasets = [
        {"folder_path": "mug", **own},
        {"folder_path": "mugs", "is_reg": True, **(own if of == "dataset" else {})},
    ]
    _, recipe = converted(tmp_path, job(tmp_path, datasets=datasets, **(own if of == "job" else {})))
    assert [dataset.trigger for dataset in recipe.dataset] == ["rwmug", None]


@pytest.mark.parametrize(
    ("process", "code"),
    [
        ({"model": {"arch": "hidream_e1", "name_or_path": "x"}}, "unknown-model"),
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
    path.write_text(text, encoding="utf-8")
    with refused("config-unreadable"):
        importer.convert(ImportRequest(files=(path,), output=tmp_path / "o.toml", trainer="ai-toolkit"))


def test_every_architecture_is_a_published_preset() -> None:
    named = {*models.PRESETS.values(), *(preset for pairs in models.BY_WEIGHTS.values() for _, preset in pairs)}
    assert all(registry.PRESETS[preset].release is not None for preset in named)
