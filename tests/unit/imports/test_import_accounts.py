"""The account of an import counts the clips it names, whatever folders lack, and sizes and rates are those of each dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import media_makers as media
import pytest
from PIL import Image

from reelworks.annexes.imports import cli, importer
from reelworks.annexes.imports.draft import Clip
from reelworks.annexes.imports.importer import Imported
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate, ImportedKey
from reelworks.annexes.imports.trainer import FormerBuckets
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

SD = "accelerate launch sdxl_train_network.py --pretrained_model_name_or_path x.safetensors --network_module networks.lora"
MUSUBI = "python qwen_image_train_network.py --network_module networks.lora_qwen_image"


def pictures(folder: Path, number: int, ending: str = "", side: int = 512) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(number):
        Image.new("RGB", (side, side), (9 * i, 90, 30)).save(folder / f"{i}{ending}.png")
        (folder / f"{i}.txt").write_text(f"picture {i}", encoding="utf-8")
    return folder


def imported(
    folder: Path, config: str | dict[str, Any], suffix: str, command: str | None = None
) -> tuple[Imported, Recipe]:
    file, recipe = folder / f"config{suffix}", folder / "recipe.toml"
    file.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    made = importer.convert(ImportRequest(files=(file,), command=command, output=recipe, force=True))
    return made, recipe_file.load(recipe, [])


def onetrainer(*concepts: dict[str, Any], **values: Any) -> dict[str, Any]:
    known = {"model_type": "FLUX_DEV_1", "training_method": "LORA", "base_model_name": "x", "resolution": "256"}
    return {**known, "epochs": 2, "batch_size": 1, "learning_rate": 1e-4, "concepts": list(concepts), **values}


def concept(folder: Path, **more: Any) -> dict[str, Any]:
    return {"path": str(folder), "name": folder.name, "image": {}, "text": {"prompt_source": "sample"}, **more}


def subsets(*folders: tuple[Path, int], more: str = "") -> str:
    blocks = [
        f'[[datasets]]\nresolution = {side}\nbatch_size = 1\n[[datasets.subsets]]\nimage_dir = "{folder.as_posix()}"\n'
        for folder, side in folders
    ]
    return f'[general]\ncaption_extension = ".txt"\n{more}\n{"".join(blocks)}'


@pytest.mark.parametrize(("more", "number"), [({}, 4), ({"include_subdirectories": True}, 6)])
def test_samples_count_pictures_and_no_masks(tmp_path: Path, more: dict[str, Any], number: int) -> None:
    """Twice as many samples as pictures are two of each, with masks and conditions beside them or not; each picture is one clip."""
    folder = pictures(tmp_path / "mug", 4)
    pictures(folder / "below", 2)
    for ending in ("-masklabel", "-condlabel"):
        for i in range(4):
            Image.new("L", (512, 512), 255).save(folder / f"{i}{ending}.png")
    samples = {"balancing": 2 * number, "balancing_strategy": "SAMPLES"}
    made, read = imported(tmp_path, onetrainer(concept(folder, **samples, **more)), ".json")
    assert made.clips is not None
    assert (read.dataset[0].repeats, made.clips.former_trained, made.clips.here_trained) == (2, number, number)


@pytest.mark.parametrize(
    ("balancing", "strategy", "trained"), [(2, "SAMPLES", 5), (9, "SAMPLES", 7), (0.5, "REPEATS", 5), (3, "REPEATS", 7)]
)
def test_only_clips_that_an_epoch_draws_are_counted(
    tmp_path: Path, balancing: float, strategy: str, trained: int
) -> None:
    """Beside another folder, whose three pictures are all trained."""
    drawn = concept(pictures(tmp_path / "mug", 4), balancing=balancing, balancing_strategy=strategy)
    made, _ = imported(tmp_path, onetrainer(drawn, concept(pictures(tmp_path / "cup", 3))), ".json")
    assert made.clips is not None
    assert (made.clips.clips, made.clips.former_trained) == (7, trained)


def test_pictures_in_a_folder_of_videos_are_trained_neither_there_nor_here(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "mug", 2)
    media.write_video(folder / "a.mp4", num_frames=9, size=(128, 128))
    (folder / "a.txt").write_text("a mug", encoding="utf-8")
    config = f'[general]\ncaption_extension = ".txt"\n[[datasets]]\nresolution = 64\ntarget_frames = [9]\nvideo_directory = "{folder.as_posix()}"\n'
    made, read = imported(
        tmp_path,
        config,
        ".toml",
        f"{MUSUBI.replace('qwen_image', 'wan')} --task t2v-1.3B".replace("lora_qwen_image", "lora_wan"),
    )
    assert made.clips is not None
    assert read.dataset[0].filter == "kind == 'video'"
    assert (made.clips.clips, made.clips.former_trained, made.clips.here_trained) == (3, 1, 1)


@pytest.mark.parametrize(("multi", "rest"), [(False, 1), (True, 3)])
def test_the_rest_of_a_bucket_that_is_cut_to_whole_batches_is_counted(tmp_path: Path, multi: bool, rest: int) -> None:
    """Of seven pictures of one size, two batches of three or one of two on two GPUs each are trained there in an epoch."""
    of_batches = {"batch_size": 2 if multi else 3, "multi_gpu": multi, "device_indexes": "0,1"}
    made, _ = imported(tmp_path, onetrainer(concept(pictures(tmp_path / "mug", 7)), **of_batches), ".json")
    assert made.clips is not None
    assert (made.clips.former_trained, made.clips.here_trained) == (7, 7)
    assert list(made.clips.rest.values()) == [rest]


def test_clips_below_the_least_size_or_length_are_dropped() -> None:
    rules = FormerBuckets(least_pixels=256 * 256, least_frames=33, enlarges=False)
    clip = Clip(0, "a.mp4", 512, 288, 33, 24.0, False, "a cup")
    assert rules.drops(clip) == ""
    assert rules.drops(clip._replace(num_frames=32)) == "it has fewer than 33 frames"
    assert rules.drops(clip._replace(width=200)) == "it has fewer than 65,536 pixels"
    assert rules.drops(clip._replace(num_frames=1, is_image=True)) == ""
    assert "smaller clips are trained at their own size" in rules.in_words()


def test_an_empty_or_missing_folder_hides_no_other_one(tmp_path: Path) -> None:
    good, empty = pictures(tmp_path / "good", 3), tmp_path / "empty"
    empty.mkdir()
    made, _ = imported(tmp_path, subsets((good, 512), (empty, 512), (tmp_path / "gone", 512)), ".toml", SD)
    assert made.clips is not None
    assert (made.clips.clips, made.clips.former_trained) == (3, 3)
    assert any(str(empty) in str(key.value) for key in made.keys)


def test_settings_are_told_without_any_clip(tmp_path: Path) -> None:
    made, read = imported(tmp_path, subsets((tmp_path / "gone", 512)), ".toml", f"{SD} --learning_rate 3e-4")
    assert made.clips is None
    assert "gone" in made.without_clips
    assert read.train.learning_rate == 3e-4


@pytest.mark.parametrize("trainer", ["sd-scripts", "musubi-tuner", "onetrainer"])
def test_datasets_of_different_sizes_keep_them(tmp_path: Path, trainer: str) -> None:
    small, large = pictures(tmp_path / "small", 2), pictures(tmp_path / "large", 2)
    if trainer == "onetrainer":
        image = {"enable_resolution_override": True, "resolution_override": "512"}
        config: Any = onetrainer(concept(small), concept(large, image=image))
        _, read = imported(tmp_path, config, ".json")
    elif trainer == "sd-scripts":
        _, read = imported(tmp_path, subsets((small, 256), (large, 512)), ".toml", SD)
    else:
        blocks = [
            f'[[datasets]]\nresolution = {side}\nbatch_size = 1\nimage_directory = "{folder.as_posix()}"\n'
            for folder, side in ((small, 256), (large, 512))
        ]
        _, read = imported(tmp_path, f'[general]\ncaption_extension = ".txt"\n{"".join(blocks)}', ".toml", MUSUBI)
    found = {
        Path(one.path).name: [name for name in one.resolutions or () if "512" in name or "256" in name]
        for one in read.dataset
    }
    assert len(found["small"]) == len(found["large"]) == 1
    assert "256" in found["small"][0]
    assert "512" in found["large"][0]


@pytest.mark.parametrize("clips", ["all", "some", "none"])
def test_a_warm_up_that_is_a_share_of_epochs_has_its_steps_counted(tmp_path: Path, clips: str) -> None:
    """A quarter of three epochs of eight pictures in batches of one is six steps; without all of the pictures they are to be filled in."""
    folders = [pictures(tmp_path / name, 4) if clips in known else tmp_path / "gone"
               for name, known in (("mug", "all some"), ("cup", "all"))]  # fmt: skip
    command = f"{SD} --max_train_epochs 3 --lr_scheduler cosine --lr_warmup_steps 0.25 --learning_rate 1e-4"
    made, _ = imported(tmp_path, subsets(*((folder, 512) for folder in folders)), ".toml", command)
    told = [key for key in made.keys if key.key in ("lr_scheduler", "lr_warmup_steps")]
    assert ("warmup_steps = 6" in made.text) == (clips == "all")
    assert {key.key: key.fate for key in told} == {
        "lr_scheduler": Fate.TAKEN,
        "lr_warmup_steps": Fate.TAKEN if clips == "all" else Fate.TO_FILL_IN,
    }


@pytest.mark.parametrize("processes", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
@pytest.mark.parametrize("trainer", ["sd-scripts", "musubi-tuner", "onetrainer"])
def test_a_step_that_several_processes_share_makes_a_warm_up_shorter(
    tmp_path: Path, trainer: str, processes: int
) -> None:
    folder = pictures(tmp_path / "mug", 8)
    options = "--max_train_epochs 4 --lr_scheduler cosine --lr_warmup_steps 0.25"
    launch = f"accelerate launch --num_processes {processes}"
    if trainer == "onetrainer":
        devices = {"multi_gpu": True, "device_indexes": "0,1,2,3"[: 2 * processes - 1]}
        more = {"epochs": 4, "learning_rate_warmup_steps": 0.25, "learning_rate_scaler": "GLOBAL_BOTH", **devices}
        _, read = imported(tmp_path, onetrainer(concept(folder), **more), ".json")
        assert read.train.learning_rate == pytest.approx(1e-4 * processes**0.5)
    elif trainer == "sd-scripts":
        _, read = imported(
            tmp_path, subsets((folder, 512)), ".toml", f"{SD.replace('accelerate launch', launch)} {options}"
        )
    else:
        block = f'[[datasets]]\nresolution = 512\nbatch_size = 1\nimage_directory = "{folder.as_posix()}"\n'
        command = f"{MUSUBI.replace('python', launch)} {options}"
        _, read = imported(tmp_path, f'[general]\ncaption_extension = ".txt"\n{block}', ".toml", command)
    assert read.train.warmup_steps == 8 // processes


def test_a_name_with_dots_has_the_captions_beside_it(tmp_path: Path) -> None:
    config = onetrainer(concept(pictures(tmp_path / "v1.5", 2, ending=".edited")))
    for i in range(2):
        (tmp_path / "v1.5" / f"{i}.txt").rename(tmp_path / "v1.5" / f"{i}.edited.txt")
    made, _ = imported(tmp_path, config, ".json")
    assert made.clips is not None
    assert (made.clips.former_trained, made.clips.other_captions) == (2, {})


def test_a_name_that_simpletuner_shows_has_blanks_in_place_of_underscores(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "mug", 2, ending="_mug")
    for i in range(2):
        (folder / f"{i}.txt").rename(folder / f"{i}_mug.txt").write_text(f"{i} mug", encoding="utf-8")
    backend = {"id": "mug", "type": "local", "instance_data_dir": str(folder), "caption_strategy": "filename"}
    backends = [{**backend, "resolution": 256, "resolution_type": "pixel"}]
    config = {"model_family": "flux", "model_type": "lora", "max_train_steps": 9, "data_backend_config": backends}
    made, _ = imported(tmp_path, config, ".json")
    assert made.clips is not None
    assert (made.clips.former_trained, made.clips.other_captions) == (2, {})


def test_settings_of_datasets_are_told_once_if_the_same_became_of_them() -> None:
    remarks = ["dataset.0.flip = true", "dataset.1.flip = true", "flip: not for videos"]
    keys = [ImportedKey(f"datasets.{i}.flip", True, Fate.TAKEN, remark) for i, remark in enumerate(remarks)]
    alike, other = cli._lines(keys, every=False)
    assert alike.endswith("(2 times): dataset.*.flip = true")
    assert other.endswith(remarks[2])


def test_ai_toolkit_names_no_clip_whose_trigger_is_replaced(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "mug", 2)
    (folder / "0.txt").write_text("[trigger] on a table", encoding="utf-8")
    process = {
        **{"type": "sd_trainer", "network": {"type": "lora", "linear": 4}, "trigger_word": "p3r"},
        "model": {"name_or_path": "black-forest-labs/FLUX.1-dev", "is_flux": True},
        "train": {"steps": 9, "batch_size": 1, "lr": 1e-4},
        "datasets": [{"folder_path": str(folder), "resolution": 256}],
    }
    made, read = imported(tmp_path, {"job": "extension", "config": {"process": [process]}}, ".json")
    assert made.clips is not None
    assert read.dataset[0].trigger == "p3r"
    assert made.clips.other_captions == {}


@pytest.mark.parametrize("trainer", ["onetrainer", "simpletuner"])
def test_captions_of_tags_that_both_shuffle_are_no_others(tmp_path: Path, trainer: str) -> None:
    """By default OneTrainer keeps the first tag in its place, and SimpleTuner none."""
    folder = pictures(tmp_path / "mug", 2, side=64)
    for i, text in enumerate(["mug, red", "mug, red, on a table"]):
        (folder / f"{i}.txt").write_text(text, encoding="utf-8")
    config = onetrainer(concept(folder, text={"prompt_source": "sample", "enable_tag_shuffling": True}))
    if trainer == "simpletuner":
        backend = {"id": "mug", "type": "local", "instance_data_dir": str(folder), "caption_strategy": "textfile"}
        backends = [{**backend, "resolution": 256, "resolution_type": "pixel", "caption_shuffle": {"enable": True}}]
        config = {"model_family": "flux", "model_type": "lora", "max_train_steps": 9, "data_backend_config": backends}
    made, read = imported(tmp_path, config, ".json")
    assert (read.dataset[0].shuffle_tags, read.dataset[0].keep_tags) == (True, int(trainer == "onetrainer"))
    assert made.clips is not None
    assert (made.clips.former_trained, made.clips.other_captions) == (2, {})
