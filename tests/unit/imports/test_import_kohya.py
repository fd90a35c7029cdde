"""`import` of sd-scripts and musubi-tuner: folders, lists and pages around them are read, and nothing hostile breaks it."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import diffusers
import pytest
from former_configs import GOLDEN, converted, fates
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.datasets import shift_by_size
from reelworks.annexes.imports.kohya import timesteps
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate
from reelworks.core import toml
from reelworks.core.errors import UserError


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def pictures(folder: Path, sizes: list[tuple[int, int]], captions: bool = True) -> None:
    folder.mkdir(parents=True)
    for number, size in enumerate(sizes):
        Image.new("RGB", size, (number * 9, 40, 90)).save(folder / f"{number}.png")
        if captions:
            (folder / f"{number}.txt").write_text(f"a thing, number {number}", encoding="utf-8")


def test_folders_with_repeats_and_what_becomes_of_their_pictures(tmp_path: Path) -> None:
    """4 pictures ten times are 40, which 3 others, for regularisation, are repeated to: 14, 13 and 13 times there."""
    pictures(tmp_path / "train" / "10_rwmug cup", [(64, 64), (64, 64), (96, 64), (64, 128)])
    pictures(tmp_path / "train" / "10_rwmug cup" / "more", [(64, 64)])
    pictures(tmp_path / "train" / "notes", [(64, 64)])
    pictures(tmp_path / "regular" / "1_cup", [(64, 64)] * 3, captions=False)
    command = (
        "accelerate launch sdxl_train_network.py --pretrained_model_name_or_path=stabilityai/stable-diffusion-xl-base-1.0 "
        f"--train_data_dir={tmp_path / 'train'} --reg_data_dir={tmp_path / 'regular'} --resolution=64 --enable_bucket "
        "--train_batch_size=8 --min_bucket_reso=32 --bucket_reso_steps=16 --max_train_steps=100 --network_train_unet_only"
    )
    made, recipe = converted(tmp_path, command=command, clips=True)
    assert [(each.repeats, each.missing_caption) for each in recipe.dataset] == [
        (10, "rwmug cup"),
        (pytest.approx(40 / 3), "cup"),
    ]
    assert recipe.model.weights == "stabilityai/stable-diffusion-xl-base-1.0"
    assert recipe.lora is not None
    account = made.clips
    assert account is not None
    assert (account.clips, account.former_trained, account.here_trained) == (8, 8, 8)
    assert (account.left_out, account.rest) == ({}, {})
    assert account.rules == ("no clip is left out for its bucket's last batch", "smaller clips are enlarged")


def test_data_folders_are_searched_for_repeats(tmp_path: Path) -> None:
    pictures(tmp_path / "mine" / "3_word", [(64, 64)])
    made, recipe = converted(tmp_path, GOLDEN / "sd-scripts-1.toml", data=(tmp_path / "mine",))
    assert [(each.path, each.repeats) for each in recipe.dataset] == [(str(tmp_path / "mine" / "3_word"), 3)]
    told, recipe = converted(tmp_path, tmp_path / "mine", model="sdxl", trainer=None)
    assert fates(told)["command"] is Fate.TO_FILL_IN
    assert recipe.lora is not None
    assert recipe.train.learning_rate == 1e-4
    assert (recipe.dataset[0].repeats, recipe.dataset[0].missing_caption) == (3, "word")
    assert made.trainer == "sd-scripts"


def test_lists_have_a_root(tmp_path: Path) -> None:
    (tmp_path / "list.jsonl").write_text(
        json.dumps({"video_path": str(tmp_path / "a" / "x.mp4"), "caption": "x"}), encoding="utf-8"
    )
    dataset = file(tmp_path, "d.toml", f"[[datasets]]\nvideo_jsonl_file = {json.dumps(str(tmp_path / 'list.jsonl'))}")
    _, recipe = converted(tmp_path, dataset, model="wan-2.1-1.3b")
    assert recipe.dataset[0].root == str(tmp_path / "a")


def test_prompts_of_previews(tmp_path: Path) -> None:
    prompts = file(
        tmp_path,
        "prompts.txt",
        "# none\na cup --w 512 --h 768 --s 20 --l 7.5 --d 1\na red cup --w 512 --h 640 --fs 6.0 --of\n",
    )
    command = f"python sdxl_train_network.py --sample_prompts {prompts} --sample_every_n_steps 100"
    made, recipe = converted(tmp_path, command=command)
    samples = recipe.samples
    assert (samples.prompts, samples.every_steps, samples.width) == (["a cup", "a red cup"], 100, 512)
    assert (samples.height, samples.num_inference_steps) == (None, None)
    remark = next(key.remark for key in made.keys if key.key == "sample_prompts")
    assert "height" in remark
    assert "without seed: previews have the same noise each time" in remark


def test_a_page_has_the_prompts_in_a_box_and_a_warmup_of_no_known_steps_is_to_be_filled_in(tmp_path: Path) -> None:
    """kohya_ss writes the lines of its box into a file of its own; a share of 0 steps would be no warm-up."""
    pictures(tmp_path / "data" / "1_x", [(64, 64)])  # which are too small for a bucket
    box = "a mug --w 1024 --h 1024 --l 7\n# none\n猫 mug --w 1024 --h 1024 --l 7 --n bad, ugly"
    values = {"LoRA_type": "Standard", "max_resolution": "1024,1024", "sdxl": True, "epoch": 3, "lr_warmup": 10}
    values |= {
        "pretrained_model_name_or_path": "x/y",
        "train_data_dir": str(tmp_path / "data"),
        "bucket_no_upscale": True,
        "lr_scheduler": "cosine",
        "enable_bucket": True,
    }
    config = file(tmp_path, "gui.json", json.dumps(values | {"sample_prompts": box}))
    made, recipe = converted(tmp_path, config)
    assert (recipe.samples.prompts, recipe.samples.width) == (["a mug", "猫 mug"], 1024)
    told = {key.key: key for key in made.keys}
    assert "without negative_prompt: the empty caption takes its place" in told["sample_prompts"].remark
    assert told["lr_warmup_steps"].fate is Fate.TO_FILL_IN


def test_a_rate_falls_as_often_over_the_epochs(tmp_path: Path) -> None:
    options = "--lr_scheduler cosine_with_restarts --lr_scheduler_num_cycles 3 --max_train_epochs 9"
    made, recipe = converted(tmp_path, command=f"python sdxl_train_network.py {options}")
    assert (recipe.train.learning_rate_schedule, recipe.train.learning_rate_cycles) == ("cosine", 3)
    assert (recipe.train.max_epochs, recipe.train.max_steps) == (9, None)
    assert {fates(made)[key] for key in ("lr_scheduler", "lr_scheduler_num_cycles")} == {Fate.TAKEN}


def test_numbers_and_switches_may_be_texts_and_null_is_the_trainers_default(tmp_path: Path) -> None:
    config = {
        **{"pretrained_model_name_or_path": "x.safetensors", "network_module": "networks.lora", "network_dim": None},
        **{"max_grad_norm": "0", "v_parameterization": "true", "zero_terminal_snr": "true", "masked_loss": "true"},
        "datasets": [
            {"subsets": [{"image_dir": "a", "conditioning_data_dir": "m"}, {"image_dir": "b", "num_repeats": "0"}]}
        ],
    }
    made, recipe = converted(tmp_path, file(tmp_path, "c.json", json.dumps(config)), trainer="sd-scripts", model="sdxl")
    assert recipe.lora is not None
    assert (recipe.lora.rank, recipe.train.max_grad_norm, len(recipe.dataset)) == (4, None, 1)
    assert (recipe.objective.name, recipe.objective.zero_terminal_snr) == ("v-prediction", True)
    assert recipe.dataset[0].loss_mask is not None
    assert fates(made)["datasets.0.subsets.1.image_dir"] == Fate.TAKEN


@pytest.mark.parametrize(
    ("setting", "is_lora"), [("network_dim", True), ("network_alpha", True), ("max_train_epochs", False)]
)
def test_a_setting_of_networks_alone_tells_that_one_is_trained(tmp_path: Path, setting: str, is_lora: bool) -> None:
    config = file(tmp_path, "c.toml", f'pretrained_model_name_or_path = "x.safetensors"\n{setting} = 4')
    _, recipe = converted(tmp_path, config, trainer="sd-scripts", model="sdxl")
    assert (recipe.lora is not None) == is_lora


def test_noise_of_sdxl(tmp_path: Path) -> None:
    """Its noise is that of sd-scripts; flow matching is trained without most of it there."""
    options = (
        "--noise_offset 0.05 --noise_offset_random_strength --adaptive_noise_scale 0.01 --multires_noise_iterations 8 "
        "--multires_noise_discount 0.4 --ip_noise_gamma 0.1"
    )
    made, recipe = converted(tmp_path, command=f"python sdxl_train_network.py {options}")
    objective = recipe.objective
    assert (objective.noise_offset, objective.noise_offset_random_strength) == (0.05, True)
    assert (objective.adaptive_noise_scale, objective.input_perturbation) == (0.01, 0.1)
    assert (objective.multires_noise_iterations, objective.multires_noise_discount) == (8, 0.4)
    taken = {option.split()[0] for option in options.split("--")[1:]}
    assert {key: fates(made)[key] for key in taken} == dict.fromkeys(taken, Fate.TAKEN)

    for script, perturbed in (("flux", 0.1), ("sd3", 0.0)):
        made, recipe = converted(tmp_path, command=f"python {script}_train_network.py {options}")
        assert (recipe.objective.noise_offset, recipe.objective.multires_noise_iterations) == (0, 0)
        assert recipe.objective.input_perturbation == perturbed
        assert fates(made)["noise_offset"] is Fate.NO_MEANING
    made, recipe = converted(tmp_path, command="python sdxl_train_network.py --multires_noise_discount 0.4")
    assert fates(made)["multires_noise_discount"] is Fate.NO_MEANING


def test_a_schedule_that_ends_in_pure_noise(tmp_path: Path) -> None:
    """It is taken for v, of which alone a network learns there; sd-scripts warns of the other."""
    command = "python sdxl_train_network.py --zero_terminal_snr"
    made, recipe = converted(tmp_path, command=f"{command} --v_parameterization")
    assert (recipe.objective.name, recipe.objective.zero_terminal_snr) == ("v-prediction", True)
    made, recipe = converted(tmp_path, command=command)
    assert (recipe.objective.name, recipe.objective.zero_terminal_snr) == ("epsilon", False)
    assert fates(made)["zero_terminal_snr"] is Fate.NOT_POSSIBLE


@pytest.mark.parametrize(
    ("options", "trained", "rate"),
    [
        ("", True, None),
        ("--network_train_unet_only", False, None),
        ("--text_encoder_lr 5e-5", True, 5e-5),
        ("--text_encoder_lr 0", False, None),
        ("--text_encoder_lr 5e-5 5e-5", True, 5e-5),
        ("--unet_lr 2e-4", True, 1e-4),
        ("--text_encoder_lr 5e-5 --optimizer_type Prodigy", True, None),
    ],
)
def test_text_encoders_of_a_lora(tmp_path: Path, options: str, trained: bool, rate: float | None) -> None:
    """sd-scripts trains them beside the network unless it is told not to, at a rate of their own or that of all."""
    command = f"python sdxl_train_network.py --network_module networks.lora --learning_rate 1e-4 {options}"
    _, recipe = converted(tmp_path, command=command)
    assert (recipe.lora.text_encoders, recipe.train.text_encoder_learning_rate) == (trained, rate)


def test_a_page_config_of_kohya_ss(tmp_path: Path) -> None:
    """Its page has a share of warm-up in percent, and names of its own."""
    values = {
        "LoRA_type": "LyCORIS/LoKr",
        "sdxl": True,
        "epoch": 8,
        "max_resolution": "1024,1024",
        "optimizer": "Prodigy",
        "learning_rate": 1.0,
        "unet_lr": 1.0,
        "lr_warmup": 10,
        "lr_scheduler": "cosine",
        "max_train_steps": 0,
        "train_data_dir": "img",
        "pretrained_model_name_or_path": "stabilityai/stable-diffusion-xl-base-1.0",
        "network_dim": 16,
        "network_alpha": 1,
        "factor": -1,
        "conv_dim": 8,
        "flux1_checkbox": False,
        "output_name": "x",
    }
    made, recipe = converted(tmp_path, file(tmp_path, "page.json", json.dumps(values)))
    assert (made.trainer, recipe.model.name, recipe.train.max_epochs) == ("sd-scripts", "sdxl", 8)
    assert (recipe.train.optimizer, recipe.train.learning_rate) == ("prodigy", 1.0)
    assert recipe.lora is not None
    assert recipe.lora.type == "lokr"
    assert fates(made)["network_args.conv_dim"] is Fate.NOT_POSSIBLE


def test_what_the_page_of_kohya_ss_leaves_out_of_a_command(tmp_path: Path) -> None:
    """Epochs beside steps, one of two kinds of noise, and text encoders at a rate of 0; what it passes on is told."""
    values = {
        "LoRA_type": "Kohya LoCon",
        "sdxl": True,
        "epoch": 10,
        "max_train_epochs": 0,
        "max_train_steps": 1600,
        "max_resolution": "1024,1024",
        "train_data_dir": "img",
        "pretrained_model_name_or_path": "stabilityai/stable-diffusion-xl-base-1.0",
        "unet_lr": 0.0001,
        "text_encoder_lr": 0.0,
        "noise_offset_type": "Multires",
        "noise_offset": 0.05,
        "multires_noise_iterations": 6,
        "multires_noise_discount": 0.3,
        "conv_dim": 16,
        "rank_dropout": 0.1,
        "max_grad_norm": 0,  # which this page leaves out, and that of DreamBooth passes on
    }
    made, recipe = converted(tmp_path, file(tmp_path, "page.json", json.dumps(values)))
    assert (recipe.train.max_epochs, recipe.train.max_steps) == (None, 1600)
    assert recipe.train.max_grad_norm == 1.0
    assert recipe.lora is not None
    assert not recipe.lora.text_encoders
    assert (recipe.objective.noise_offset, recipe.objective.multires_noise_iterations) == (0, 6)
    told = fates(made)
    assert told["network_args.conv_dim"] is told["network_args.rank_dropout"] is Fate.NOT_POSSIBLE
    assert "noise_offset" not in told
    plain = {**values, "noise_offset_type": "Original", "text_encoder_lr": 0.00005, "LoRA_type": "Standard"}
    made, recipe = converted(tmp_path, file(tmp_path, "page.json", json.dumps(plain)))
    assert recipe.lora is not None
    assert recipe.lora.text_encoders
    assert (recipe.objective.noise_offset, recipe.objective.multires_noise_iterations) == (0.05, 0)
    assert "network_args.conv_dim" not in fates(made)


_COMMAND = "{script} --pretrained_model_name_or_path={model} --train_data_dir=img --max_train_steps=1000 {options}"


def command(script: str, model: str, options: str) -> str:
    return "accelerate launch " + _COMMAND.format(script=script, model=model, options=options)


@pytest.mark.parametrize(
    ("options", "key", "fate"),
    [
        ("--loss_type=huber", "huber_schedule", Fate.NOT_POSSIBLE),  # which is by the noise there
        ("--loss_type=huber --huber_schedule=constant", "huber_schedule", Fate.TAKEN),
        ("--resolution=1024 --enable_bucket", "enable_bucket", Fate.NOT_POSSIBLE),  # sides are at most 1024 there
        ("--resolution=1024 --enable_bucket --max_bucket_reso=2048", "enable_bucket", Fate.TAKEN),
        ("--resolution=1024 --enable_bucket --bucket_no_upscale", "enable_bucket", Fate.TAKEN),
    ],
)
def test_defaults_of_the_script_that_are_others_here_are_told(
    tmp_path: Path, options: str, key: str, fate: Fate
) -> None:
    made, recipe = converted(tmp_path, command=command("sdxl_train_network.py", "a/b", options))
    assert fates(made)[key] is fate
    assert recipe.train.loss_reduction == "micro_batch"


@pytest.mark.parametrize(("options", "told"), [("", True), ("--stop_text_encoder_training=-1", False)])
def test_a_dreambooth_trains_text_encoders_by_default(tmp_path: Path, options: str, told: bool) -> None:
    made, _ = converted(tmp_path, command=command("train_db.py", "sd15.safetensors", options), model="sd1.5")
    assert (fates(made).get("train_text_encoder") is Fate.NOT_POSSIBLE) == told


@pytest.mark.parametrize(("processes", "steps"), [(1, 100), (4, 25)])
def test_a_warm_up_counts_the_steps_of_all_processes(tmp_path: Path, processes: int, steps: int) -> None:
    """Accelerate's schedule goes as many on at each step of the optimizer."""
    options = f"--num_processes {processes} sdxl_train_network.py"
    made = command(options, "a/b", "--lr_scheduler=constant_with_warmup --lr_warmup_steps=100")
    assert converted(tmp_path, command=made)[1].train.warmup_steps == steps


@pytest.mark.parametrize(("every", "last", "kept"), [(100, 200, 2), (100, 250, 3), (300, 100, 1)])
def test_files_stay_as_long_as_there(tmp_path: Path, every: int, last: int, kept: int) -> None:
    options = f"--save_every_n_steps={every} --save_last_n_steps={last} --save_last_n_steps_state={2 * last}"
    recipe = converted(tmp_path, command=command("sdxl_train_network.py", "a/b", options))[1]
    assert (recipe.exports.keep_last, recipe.checkpoints.every_steps) == (kept, every)
    assert recipe.checkpoints.keep_last == -(-2 * last // every)


def test_kandinsky_5_is_told_by_its_task(tmp_path: Path) -> None:
    """Tokens attend to all others here, whatever the task, and an option of the attention there is not taken."""
    command = (
        "python kandinsky5_train_network.py --task k5-pro-t2v-10s-sd --dit kandinsky5pro_t2v_pretrain_10s.safetensors "
        "--text_encoder_qwen q --text_encoder_clip c --timestep_sampling shift --discrete_flow_shift 5 --scheduler_scale 10 "
        "--network_module networks.lora_kandinsky --network_dim 32 --force_nabla_attention --nabla_P 0.8"
    )
    made, recipe = converted(tmp_path, command=command)
    assert (recipe.model.name, recipe.model.weights) == ("kandinsky5-pro", "kandinsky5pro_t2v_pretrain_10s.safetensors")
    assert recipe.objective.timestep_shift == 5.0
    told = fates(made)
    assert told["force_nabla_attention"] is Fate.NOT_POSSIBLE
    assert {told[key] for key in ("nabla_P", "scheduler_scale", "text_encoder_qwen")} == {Fate.NO_MEANING}


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("python train_network.py --v2 --network_dim 4", "Stable Diffusion 2"),
        ("python train_textual_inversion.py", "textual inversion"),
        ("python sdxl_train_control_net.py", "ControlNet"),
        ("python src/musubi_tuner/hv_train_network.py --dit x", "HunyuanVideo"),
        ("python fpack_train_network.py --dit x", "FramePack"),
        ("python wan_train_network.py --task t2v-14B-FC", "t2v-14B-FC"),
        ("python kandinsky5_train_network.py --task k5-pro-i2v-5s-sd", "k5-pro-i2v-5s-sd"),
    ],
)
def test_a_model_that_is_not_here_is_one_line(tmp_path: Path, command: str, named: str) -> None:
    with pytest.raises(UserError, match=named) as caught:
        converted(tmp_path, command=command)
    assert "cannot be trained here" in caught.value.problem
    assert not (tmp_path / "imported.toml").exists()


@pytest.mark.parametrize(
    "command",
    [
        "python src/musubi_tuner/wan_train_network.py",
        "python -m musubi_tuner.wan_train_network",
        "accelerate launch --mixed_precision bf16 -m musubi_tuner.wan_train_network",
        "accelerate launch --mixed_precision bf16 --module musubi_tuner.wan_train_network",
    ],
)
def test_a_program_is_started_as_a_file_or_as_a_module(tmp_path: Path, command: str) -> None:
    made, recipe = converted(
        tmp_path, command=f"{command} --task t2v-1.3B --network_module networks.lora_wan --seed 24"
    )
    assert (recipe.model.name, recipe.seed) == ("wan-2.1-1.3b", 24)
    assert all(key.value == "bf16" for key in made.keys if key.key == "accelerate.mixed_precision")
    script = file(tmp_path, "train.sh", f"{command} --task t2v-1.3B --network_module networks.lora_wan\n")
    request = ImportRequest(files=(script,), output=tmp_path / "from_script.toml", clips=False)
    assert 'name = "wan-2.1-1.3b"' in importer.convert(request).text


@pytest.mark.parametrize(
    ("options", "preset", "density", "shift"),
    [
        ("anima-base-v1.0.safetensors", "anima", ("logit-normal", 1.0), "none"),
        ("Anima-2.9B-preview-v1.safetensors --sigmoid_scale 2", "anima-2.9b", ("logit-normal", 2.0), "none"),
        ("a.safetensors --timestep_sampling shift --discrete_flow_shift 3", "anima", ("logit-normal", 1.0), 3.0),
        ("a.safetensors --timestep_sampling sigma", "anima", ("uniform", 1.0), "none"),
    ],
)
def test_anima_is_trained_at_its_timesteps_and_without_its_modulation(
    tmp_path: Path, options: str, preset: str, density: Any, shift: Any
) -> None:
    command = (
        "python anima_train_network.py --network_module networks.lora_anima --network_dim 8 --network_args "
        f'"train_llm_adapter=True" --qwen3 q.safetensors --pretrained_model_name_or_path {options}'
    )
    made, recipe = converted(tmp_path, command=command)
    assert recipe.model.name == preset
    assert (recipe.objective.timestep_sampling, recipe.objective.logit_std) == density
    assert recipe.objective.timestep_shift == shift
    assert recipe.lora is not None
    assert recipe.lora.targets == ["to_q", "to_k", "to_v", "to_out.0", "ff.net.0.proj", "ff.net.2"]
    assert recipe.exports.formats == ["diffusers", "comfyui", "kohya"]
    assert fates(made)["network_args.train_llm_adapter"] is Fate.NOT_POSSIBLE
    assert fates(made)["qwen3"] is Fate.NO_MEANING


@pytest.mark.parametrize(
    ("options", "density", "shift"),
    [("", ("logit-normal", 1.5), 1.875), ("--timestep_sampling sigmoid", ("logit-normal", 1.0), "none")],
)
def test_ideogram_is_trained_at_the_timesteps_of_its_pipeline(
    tmp_path: Path, options: str, density: Any, shift: Any
) -> None:
    """In the mean of their logits, log(side / 512), and in their deviation; without a size, of 960 × 960 pixels."""
    data = tmp_path / "data.toml"
    data.write_text(
        '[general]\nresolution = [960, 960]\n[[datasets]]\nimage_directory = "pictures"\n', encoding="utf-8"
    )
    command = (
        "python ideogram4_train_network.py --network_module networks.lora_ideogram4 --dit ideogram4_fp8_scaled.safetensors "
        f"--dataset_config {data} {options}"
    )
    _, recipe = converted(tmp_path, command=command)
    assert (recipe.model.name, recipe.model.weights) == ("ideogram-4", "ideogram4_fp8_scaled.safetensors")
    assert (recipe.objective.timestep_sampling, recipe.objective.logit_std) == density
    assert recipe.objective.timestep_shift == shift
    assert recipe.lora is not None
    assert recipe.lora.targets == [
        *(f"layers.*.attention.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0")),
        *(f"layers.*.feed_forward.w{number}" for number in (1, 2, 3)),
    ]


def test_sd3s_numbers_are_its_timesteps_and_those_of_others_count_from_pure_noise(tmp_path: Path) -> None:
    density = "--weighting_scheme logit_normal --logit_mean 0.5 --logit_std 0.8"
    for command, mean in (
        (f"python sd3_train_network.py --pretrained_model_name_or_path sd3.5_large.safetensors {density}", 0.5),
        (
            "python flux_train_network.py --pretrained_model_name_or_path flux1-dev.safetensors --timestep_sampling sigma "
            f"{density}",
            -0.5,
        ),
    ):
        objective = converted(tmp_path, command=f"{command} --network_module networks.lora --network_dim 4")[
            1
        ].objective
        assert (objective.timestep_sampling, objective.logit_mean, objective.logit_std) == ("logit-normal", mean, 0.8)


@pytest.mark.parametrize(
    ("options", "sampling", "shift"),
    [
        ("", "uniform", 5.0),
        ("--discrete_flow_shift 3 --weighting_scheme sigma_sqrt", "uniform", 3.0),
        ("--timestep_sampling shift", "logit-normal", 5.0),
    ],
)
def test_hunyuan_image_predicts_the_velocity_unless_it_is_told_otherwise(
    tmp_path: Path, options: str, sampling: str, shift: float
) -> None:
    command = (
        "python hunyuan_image_train_network.py --network_module networks.lora_hunyuan_image --network_dim 16 --fp8_vl "
        f"--pretrained_model_name_or_path hunyuanimage2.1.safetensors --byt5 b.safetensors {options}"
    )
    made, recipe = converted(tmp_path, command=command)
    assert (recipe.model.name, recipe.model.weights) == ("hunyuan-image-2.1", "hunyuanimage2.1.safetensors")
    assert (recipe.objective.timestep_sampling, recipe.objective.timestep_shift) == (sampling, shift)
    assert recipe.objective.loss_weighting == "none"
    assert recipe.lora is not None
    assert recipe.lora.targets == "blocks"
    assert {fates(made)[key] for key in ("byt5", "fp8_vl")} == {Fate.NO_MEANING}


@pytest.mark.parametrize(
    ("options", "sampling", "shift"),
    [
        ("", "logit-normal", 6.0),
        ("--discrete_flow_shift 3", "logit-normal", 3.0),
        ("--timestep_sampling nextdit_shift --sigmoid_scale 2", "uniform", 3.1582),
        ("--timestep_sampling sigma --weighting_scheme sigma_sqrt", "uniform", 6.0),
    ],
)
def test_lumina_is_trained_at_its_timesteps_and_behind_its_pipelines_instruction(
    tmp_path: Path, options: str, sampling: str, shift: float
) -> None:
    command = (
        "python lumina_train_network.py --network_module networks.lora_lumina --network_dim 16 --gemma2 g.safetensors "
        f"--pretrained_model_name_or_path lumina_2_model_bf16.safetensors --use_flash_attn --resolution 1024 {options}"
    )
    made, recipe = converted(tmp_path, command=command)
    assert (recipe.model.name, recipe.model.weights) == ("lumina-image-2.0", "lumina_2_model_bf16.safetensors")
    objective = recipe.objective
    assert (objective.timestep_sampling, objective.timestep_shift, objective.logit_std) == (sampling, shift, 1.0)
    assert objective.loss_weighting == "none"
    assert {fates(made)[key] for key in ("gemma2", "use_flash_attn")} == {Fate.NO_MEANING}
    assert fates(made)["system_prompt"] is Fate.NOT_POSSIBLE
    pipeline = diffusers.Lumina2Pipeline(None, None, None, None, None)
    told, _ = converted(tmp_path, command=f"{command} --system_prompt '{pipeline.system_prompt}'")
    assert fates(told)["system_prompt"] is Fate.DEFAULT


@pytest.mark.parametrize(
    ("options", "text", "fate"),
    [
        ("", "sd1.5", None),
        ("--clip_skip 1", "sd1.5", Fate.DEFAULT),
        ("--clip_skip 2", "sd1.5-clip-skip-2", Fate.TAKEN),
        ("--clip_skip 3", "sd1.5", Fate.NOT_POSSIBLE),
    ],
)
def test_stable_diffusion_1_has_the_layer_of_its_text_encoder(
    tmp_path: Path, options: str, text: str, fate: Any
) -> None:
    command = f"python train_network.py --pretrained_model_name_or_path old.safetensors --network_module networks.lora {options}"
    made, recipe = converted(tmp_path, command=command)
    assert (recipe.model.name, recipe.text_encoder.name) == ("sd1.5", text)
    assert fates(made).get("clip_skip") is fate
    assert recipe.lora is not None
    assert "proj_in" not in recipe.lora.targets  # a convolution there


@pytest.mark.parametrize(
    ("options", "experts", "replaced"),
    [
        ("--min_timestep 875 --max_timestep 1000", "high", []),
        ("--min_timestep 900 --max_timestep 1000", "high", ["min_timestep"]),
        ("--min_timestep 0 --max_timestep 875", "low", []),
        ("--dit_high_noise models/high.safetensors", "both", []),
        ("--dit_high_noise models/high.safetensors --min_timestep 100", "both", ["min_timestep"]),
        ("", "low", ["dit"]),
    ],
)
def test_the_networks_of_wan_2_2(tmp_path: Path, options: str, experts: str, replaced: list[str]) -> None:
    """Each is trained at its own timesteps, with the density cut there, which the trainer squeezes into them."""
    made, recipe = converted(
        tmp_path, command=f"python wan_train_network.py --task t2v-A14B --dit models/low.safetensors {options}"
    )
    assert recipe.model.experts == experts
    bounds = {key.key: key for key in made.keys if key.key in ("dit", "min_timestep", "max_timestep")}
    assert [name for name, key in bounds.items() if key.fate is Fate.NOT_POSSIBLE] in (replaced, ["dit", *replaced])
    assert all("squeezed" in key.remark for name, key in bounds.items() if name != "dit" and name not in replaced)


@pytest.mark.parametrize(("samples", "start"), [("", "start"), ("frame_sample = 4", "random")])
def test_a_single_part_of_a_video_is_its_beginning(tmp_path: Path, samples: str, start: str) -> None:
    dataset = f'[[datasets]]\nvideo_directory = "v"\ntarget_frames = [17]\nframe_extraction = "uniform"\n{samples}\n'
    config = file(tmp_path, "clips.toml", dataset)
    _, recipe = converted(tmp_path, config, model="wan-2.1-1.3b", trainer="musubi-tuner")
    assert recipe.data.clip_start == start


@pytest.mark.parametrize(
    ("lengths", "fate"),
    [("", Fate.NOT_POSSIBLE), ("target_frames = [17]", Fate.TAKEN), ('frame_extraction = "full"', Fate.TAKEN)],
)
def test_videos_without_a_length_are_told_to_have_been_single_frames(tmp_path: Path, lengths: str, fate: Fate) -> None:
    config = file(tmp_path, "clips.toml", f'[[datasets]]\nvideo_directory = "v"\n{lengths}\n')
    made, _ = converted(tmp_path, config, model="wan-2.1-1.3b", trainer="musubi-tuner")
    (line,) = [key for key in made.keys if key.key == "datasets.0.video_directory"]
    assert (line.fate, "bucket.num_frames = [5]" in line.remark) == (fate, fate is Fate.NOT_POSSIBLE)


@pytest.mark.parametrize(("bound", "fate"), [("1000", Fate.DEFAULT), ("800", Fate.NOT_POSSIBLE)])
def test_bounds_of_timesteps_that_leave_all_of_them_are_none(tmp_path: Path, bound: str, fate: Fate) -> None:
    made, _ = converted(tmp_path, command=command("sdxl_train_network.py", "a/b", f"--max_timestep={bound}"))
    assert fates(made)["max_timestep"] is fate


@pytest.mark.parametrize(
    ("script", "model", "scale"),
    [("flux_train_network.py", "flux1-dev.safetensors", 3.5), ("sdxl_train_network.py", "a/b", 6.5)],
)
def test_previews_have_the_guidance_that_the_model_takes(tmp_path: Path, script: str, model: str, scale: float) -> None:
    """A line may have both: one is an input of the network, and one takes two passes."""
    prompts = file(tmp_path, "prompts.txt", "a cat --w 1024 --h 768 --s 20 --g 3.5 --l 6.5")
    _, recipe = converted(
        tmp_path, command=command(script, model, f"--sample_prompts={prompts} --sample_every_n_steps=9")
    )
    assert (recipe.samples.guidance_scale, recipe.samples.num_inference_steps) == (scale, 20)


@pytest.mark.parametrize(("model", "scale"), [("flux2-klein-base-4b", 3.5), ("kandinsky5-pro", 3.5), ("z-image", 6.5)])
def test_previews_of_musubi_have_guidance_by_either_name(tmp_path: Path, model: str, scale: float) -> None:
    """Two passes of FLUX.2 Klein and Kandinsky 5 are scaled by the name that is an input elsewhere; the other is told."""
    prompts = file(tmp_path, "prompts.txt", "a cat --g 3.5 --l 6.5")
    made, recipe = converted(
        tmp_path,
        file(tmp_path, "c.toml", f'dit = "x"\nnetwork_module = "networks.lora"\nsample_prompts = "{prompts}"'),
        model=model,
        trainer="musubi-tuner",
    )
    assert recipe.samples.guidance_scale == scale
    (told,) = (key.remark for key in made.keys if key.key == "sample_prompts")
    assert "without" in told


def test_a_warm_up_may_be_in_percent(tmp_path: Path) -> None:
    made = command("sdxl_train_network.py", "a/b", "--lr_scheduler=cosine --lr_warmup_steps=5%")
    assert converted(tmp_path, command=made)[1].train.warmup_steps == 50


@pytest.mark.parametrize(
    ("path", "preset"),
    [
        ("/models/kontext-stuff/main/flux1-dev.safetensors", "flux-dev"),
        ("/m/flux1-kontext-dev.safetensors", "flux-kontext"),
        ("/m/FLUX.1-Kontext-dev/transformer/diffusion_pytorch_model-00001-of-00003.safetensors", "flux-kontext"),
        ("/hub/models--black-forest-labs--FLUX.1-Kontext-dev/snapshots/0a1b2c/flux.safetensors", "flux-kontext"),
    ],
)
def test_the_model_is_told_by_the_end_of_its_path(tmp_path: Path, path: str, preset: str) -> None:
    assert converted(tmp_path, command=command("flux_train_network.py", path, ""))[1].model.name == preset


@pytest.mark.parametrize(("weights", "preset"), [("z_image_turbo_bf16", "z-image-turbo"), ("z_image_bf16", "z-image")])
def test_a_model_of_musubi_is_told_by_the_name_of_its_weights(tmp_path: Path, weights: str, preset: str) -> None:
    arguments = f"python zimage_train_network.py --dit {weights}.safetensors --network_module networks.lora_zimage"
    assert converted(tmp_path, command=arguments)[1].model.name == preset


def test_sizes_are_multiples_of_the_autoencoder_of_the_model(tmp_path: Path) -> None:
    config = file(tmp_path, "clips.toml", '[general]\nresolution = [1016, 1016]\n[[datasets]]\nimage_directory = "v"\n')
    for model, side in (("flux-dev", 1008), ("flux2-dev", 1008), ("hunyuan-image-2.1", 992), ("wan-2.2-5b", 992)):
        _, recipe = converted(tmp_path, config, model=model, trainer="musubi-tuner")
        assert recipe.bucket[0].resolution == f"{side}x{side}"


@pytest.mark.parametrize(
    ("file", "experts"),
    [
        ("/data/highres/wan2.2_t2v_low_noise_14B.safetensors", "low"),
        ("/m/Wan2.2-T2V-A14B/high_noise_model/diffusion_pytorch_model-00001-of-00006.safetensors", "high"),
        ("/m/wan2.2_t2v_high_noise_flow_14B.safetensors", "high"),
        ("low_models/wan2.2_t2v_highnoise_14B.safetensors", "high"),
    ],
)
def test_a_network_of_two_is_told_by_the_name_of_its_file_or_else_its_folder(
    tmp_path: Path, file: str, experts: str
) -> None:
    made = f"python wan_train_network.py --task t2v-A14B --dit {file}"
    assert converted(tmp_path, command=made)[1].model.experts == experts


def test_a_page_config_is_read_alike_behind_another_one(tmp_path: Path) -> None:
    page = {"max_resolution": "512,512", "epoch": 2, "noise_offset_type": "Original", "train_data_dir": "img"}
    pages = [
        page | {"pretrained_model_name_or_path": "old.safetensors"} | more for more in ({"max_train_steps": 9}, {})
    ]
    read = [converted(tmp_path, file(tmp_path, "page.json", json.dumps(each)))[1] for each in pages]
    assert [recipe.train.max_epochs for recipe in read] == [None, 2]


@pytest.mark.parametrize(
    ("script", "frames"), [("wan_train_network.py --task t2v-1.3B", 17), ("qwen_image_train_network.py", 1)]
)
def test_videos_of_musubi_are_enlarged_and_are_pictures_to_a_model_of_pictures(
    tmp_path: Path, script: str, frames: int
) -> None:
    """Whatever the config says of buckets, which is about pictures."""
    videos = 'enable_bucket = true\nbucket_no_upscale = true\nvideo_directory = "v"\ntarget_frames = [1, 17]\n'
    config = file(tmp_path, "d.toml", f"[[datasets]]\nresolution = [512, 512]\n{videos}")
    _, recipe = converted(tmp_path, config, command=f"python {script} --dataset_config d.toml")
    assert [(each.resolution, each.num_frames) for each in recipe.bucket] == [("512px", frames)]
    assert recipe.buckets.upscale


def test_a_page_of_dreambooth_passes_on_that_nothing_is_clipped(tmp_path: Path) -> None:
    page = {"max_resolution": "512,512", "epoch": 2, "max_grad_norm": 0, "num_processes": 2, "lr_warmup_steps": 50}
    page |= {"lr_scheduler": "cosine", "train_data_dir": "img", "pretrained_model_name_or_path": "old.safetensors"}
    _, recipe = converted(tmp_path, file(tmp_path, "page.json", json.dumps(page)))
    assert recipe.train.max_grad_norm is None
    assert recipe.train.warmup_steps == 25  # each process counts its own steps there


def test_a_share_of_all_steps_is_no_number_of_steps(tmp_path: Path) -> None:
    options = "--lr_scheduler cosine --max_train_steps 1000 --lr_warmup_steps=100%"
    _, recipe = converted(tmp_path, command=command("sdxl_train_network.py", "a/b", options))
    assert recipe.train.warmup_steps == 1000


def test_edits_have_sources(tmp_path: Path) -> None:
    dataset = '[[datasets]]\nimage_directory = "after"\ncontrol_directory = "before"\n'
    path = file(tmp_path, "d.toml", dataset)
    command = "python qwen_image_train_network.py --model_version edit-2509 --dataset_config d.toml"
    _, recipe = converted(tmp_path, path, command=command)
    assert (recipe.model.name, recipe.dataset[0].source) == ("qwen-image-edit-2509", "before")
    made, recipe = converted(tmp_path, command=command.replace("--dataset_config d.toml", ""))
    assert recipe.dataset[0].source == "sources"
    assert fates(made)["dataset.0.source"] is Fate.TO_FILL_IN


def test_shifts_by_size_are_those_of_the_trainers() -> None:
    """exp of a straight line in tokens of 16 x 16 pixels: 0.5 at 256 tokens, and 1.15 at 4096 (0.9 at 8192 for Qwen-Image)."""
    assert shift_by_size(timesteps.BY_SIZE["flux_shift"], 256**2) == pytest.approx(1.648721)
    assert shift_by_size(timesteps.BY_SIZE["flux_shift"], 1024**2) == pytest.approx(3.158193)
    assert shift_by_size(timesteps.BY_SIZE["qwen_shift"], 1448.154688**2) == pytest.approx(2.459603)


def test_settings_of_the_trainers_parsers_are_known() -> None:
    """A setting without a rule would be told as unknown; these are some of each parser, and the whole list is in `keys`."""
    names = (
        *(
            "multires_noise_iterations",
            "huber_schedule",
            "clip_skip",
            "fused_backward_pass",
            "deepspeed",
            "vae_batch_size",
        ),
        *("blockwise_fused_optimizers", "split_mode", "t5_dropout_rate", "initial_step", "alpha_mask", "cache_info"),
    )
    command = "python flux_train_network.py " + " ".join(f"--{name} 1" for name in names)
    request = ImportRequest(command=command, output=Path(os.devnull), force=True, clips=False)
    assert all("no such setting" not in key.remark for key in importer.convert(request).keys)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["sigma", "shift", "0.5", "nan", "-1", "1,2", "[", "\\", "AdamW", "..", "lokr", "./"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
SOURCES = [
    ("sd-scripts", toml.parse((GOLDEN / "sd-scripts-1.toml").read_text(encoding="utf-8")), "sdxl"),
    ("sd-scripts", toml.parse((GOLDEN / "sd-scripts-2.toml").read_text(encoding="utf-8")), "flux"),
    ("musubi-tuner", toml.parse((GOLDEN / "musubi-tuner-1.toml").read_text(encoding="utf-8")), "wan-2.1-1.3b"),
    ("musubi-tuner", toml.parse((GOLDEN / "musubi-tuner-2.toml").read_text(encoding="utf-8")), None),
]


def paths_in(values: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    return [found for key, inner in items for found in [(*path, key), *paths_in(inner, (*path, key))]]


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, dict[str, Any], str | None]:
    trainer, values, model = draw(st.sampled_from(SOURCES))
    values = json.loads(json.dumps(values))
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(paths_in(values) or [("x",)]))
        place = values
        for key in path[:-1]:
            place = place[key] if isinstance(place, list) or key in place else {}
        if isinstance(place, dict | list) and place:
            place[path[-1]] = draw(VALUES)
    return trainer, values, model


def check_hostile(folder: Path, case: tuple[str, dict[str, Any], str | None]) -> None:
    trainer, values, model = case
    path = file(folder, "config.json", json.dumps(values))
    with contextlib.suppress(UserError):  # one error for people; any other exception fails the test
        made, _ = converted(folder, path, trainer=trainer, model=model)
        fates(made)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutated())
def test_hostile_values_end_in_lines_or_in_one_error(
    tmp_path: Path, case: tuple[str, dict[str, Any], str | None]
) -> None:
    check_hostile(tmp_path, case)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutated())
def test_many_hostile_values(tmp_path: Path, case: tuple[str, dict[str, Any], str | None]) -> None:
    check_hostile(tmp_path, case)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "datasets = 3",
        "datasets = [1, 2]",
        "[[datasets]]",
        "general = 1\ndatasets = []",
        "\ufeffx = 1",
        "=",
        "[[a",
    ],
)
def test_broken_files_are_one_error_or_a_recipe(tmp_path: Path, text: str) -> None:
    path = file(tmp_path, "x.toml", text)
    for trainer in ("sd-scripts", "musubi-tuner"):
        with contextlib.suppress(UserError):
            made, _ = converted(tmp_path, path, trainer=trainer, model="sdxl")
            fates(made)
