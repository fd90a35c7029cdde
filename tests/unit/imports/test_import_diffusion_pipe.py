"""`import` of diffusion-pipe: all kinds of models, the size of a step, lengths of clips, and spoiled files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w
from former_configs import GOLDEN, converted
from hostile_configs import JUNK, spoiled
from hypothesis import given

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.diffusion_pipe import models
from reelworks.annexes.imports.diffusion_pipe.diffusion_pipe import DIFFUSION_PIPE
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.files import ConfigFile, flatten
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.rules import Fate
from reelworks.core import toml
from reelworks.core.errors import UserError

MAIN_1, DATASET_1 = GOLDEN / "diffusion-pipe-1.toml", GOLDEN / "diffusion-pipe-1-dataset.toml"


def told(made: importer.Imported) -> dict[str, tuple[Fate, str]]:
    return {key.key: (key.fate, key.remark) for key in made.keys}


@pytest.mark.parametrize(
    ("settings", "preset"),
    [
        ({"type": "flux", "diffusers_path": "/m/FLUX.1-dev"}, "flux-dev"),
        (
            {"type": "flux", "diffusers_path": "/m/FLUX.1-dev", "transformer_path": "/m/flux1-kontext-dev.sft"},
            "flux-kontext",
        ),
        ({"type": "wan", "ckpt_path": "C:\\models\\Wan2.1-I2V-14B-720P"}, "wan-2.1-i2v-14b"),
        (
            {
                "type": "wan",
                "ckpt_path": "/m/Wan2.2-T2V-A14B",
                "transformer_path": "/m/Wan2.2-T2V-A14B/low_noise_model",
            },
            "wan-2.2-14b",
        ),
        ({"type": "wan", "ckpt_path": "/m/Wan2.2-TI2V-5B"}, "wan-2.2-5b"),
        ({"type": "sd3", "diffusers_path": "/m/stable-diffusion-3.5-large"}, "sd3.5-large"),
        ({"type": "flux2", "diffusion_model": "/m/flux-2-klein-base-9b.safetensors"}, "flux2-klein-base-9b"),
        ({"type": "z_image", "diffusion_model": "/m/z_image_turbo_bf16.safetensors"}, "z-image-turbo"),
        ({"type": "lumina_2", "transformer_path": "/m/lumina_2_model_bf16.safetensors"}, "lumina-image-2.0"),
        ({"type": "hidream", "diffusers_path": "/m/HiDream-I1-Full", "llama3_path": "/m/llama"}, "hidream-i1-full"),
        ({"type": "ideogram4", "diffusion_model": "/m/ideogram4_fp8_scaled.safetensors"}, "ideogram-4"),
        ({"type": "hunyuan_image", "transformer_path": "/m/hunyuanimage2.1.safetensors"}, "hunyuan-image-2.1"),
        ({"type": "ernie_image", "diffusion_model": "/m/ernie-image-turbo.safetensors"}, "ernie-image-turbo"),
        ({"type": "qwen_image", "diffusers_path": "/m/Qwen-Image-Edit-2509"}, "qwen-image-edit-2509"),
        ({"type": "ltx2", "diffusion_model": "/m/ltx-2.3-22b-dev.safetensors"}, "ltx-2.3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_names_of_weights_tell_the_model(settings: dict[str, str], preset: str) -> None:
    assert models.preset_names(FormerSettings(flatten({"model": settings})))[0] == preset


def write(folder: Path, main: dict[str, Any], dataset: dict[str, Any]) -> tuple[Path, Path]:
    (folder / "main.toml").write_text(tomli_w.dumps(main), encoding="utf-8")
    (folder / "dataset.toml").write_text(tomli_w.dumps(dataset), encoding="utf-8")
    return folder / "main.toml", folder / "dataset.toml"


def test_checkpoints_after_examples_come_after_the_steps_that_train_as_many(tmp_path: Path) -> None:
    main = {"model": {"type": "wan", "diffusion_model": "x.safetensors"}, "optimizer": {"type": "adamw", "lr": 1e-4}}
    main |= {"micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "save_every_n_examples": 64}
    _, recipe = converted(tmp_path, *write(tmp_path, main, {"resolutions": [512], "directory": [{"path": "a"}]}))
    assert recipe.checkpoints.every_steps == 8


@pytest.mark.parametrize(
    ("kind", "shift"),
    [("z_image", 3.158), ("ernie_image", 1.878), ("flux2", 1.878), ("hunyuan_image", 1.649), ("ltx2", 1.649)],
)
def test_the_shift_grows_with_the_latents_that_it_counts(tmp_path: Path, kind: str, shift: float) -> None:
    main = {"model": {"type": kind, "diffusion_model": "x.safetensors", "flux_shift": True}}
    main |= {"adapter": {"type": "lora", "rank": 8}, "optimizer": {"type": "adamw", "lr": 1e-4}}
    _, recipe = converted(tmp_path, *write(tmp_path, main, {"resolutions": [1024], "directory": [{"path": "a"}]}))
    assert recipe.objective.timestep_shift == pytest.approx(shift)


@pytest.mark.parametrize(
    ("path", "bounds", "experts"),
    [
        ("/home/me/workflows/Wan2.2-T2V-A14B/high_noise_model", {"min_t": 0.875}, "high"),
        ("/home/me/workflows/Wan2.2-T2V-A14B/high_noise_model", {}, "high"),
        ("/home/me/Wan2.2-T2V-A14B/low_noise_model", {}, "low"),
        ("/home/me/Wan2.2-T2V-A14B/model", {"max_t": 0.875}, "low"),
    ],
)
def test_bounds_tell_the_network_of_two_or_else_the_end_of_its_path(
    tmp_path: Path, path: str, bounds: dict[str, float], experts: str
) -> None:
    model = {"type": "wan", "ckpt_path": "m/Wan2.2-T2V-A14B", "transformer_path": path, "dtype": "bfloat16"}
    main = {"epochs": 2, "warmup_steps": 100, "force_constant_lr": 1e-5, "model": model | bounds}
    main |= {"optimizer": {"type": "adamw", "lr": 1e-4}}
    dataset = {"resolutions": [480], "frame_buckets": [1], "directory": [{"path": "a"}]}
    _, recipe = converted(tmp_path, *write(tmp_path, main, dataset))
    assert recipe.model.experts == experts
    assert recipe.train.warmup_steps == 0  # replaced by the constant rate


def test_the_low_noise_network_of_two(tmp_path: Path) -> None:
    model = {
        "type": "wan",
        "ckpt_path": "m/Wan2.2-T2V-A14B",
        "transformer_path": "m/low_noise_model",
        "dtype": "bfloat16",
    }
    main = {"epochs": 2, "model": model | {"min_t": 0.0, "max_t": 0.875}, "optimizer": {"type": "adamw", "lr": 1e-4}}
    files = write(tmp_path, main, {"resolutions": [480], "frame_buckets": [1, 33], "directory": [{"path": "a"}]})
    made, recipe = converted(tmp_path, *files)
    assert (recipe.model.name, recipe.model.experts) == ("wan-2.2-14b", "low")
    assert recipe.objective.timestep_range == [0.0, 875.0]
    assert recipe.lora is None
    assert told(made)["model.max_t"][0] == Fate.DEFAULT


def test_the_command_line_tells_the_size_of_a_step(tmp_path: Path) -> None:
    """4 GPUs in 2 stages are 2 processes with data of their own: 2 × 3 micro-batches in a step."""
    main = toml.parse(MAIN_1.read_text(encoding="utf-8")) | {"pipeline_stages": 2, "gradient_accumulation_steps": 3}
    write(tmp_path, main | {"dataset": "dataset.toml"}, toml.parse(DATASET_1.read_text(encoding="utf-8")))
    script = tmp_path / "run.sh"
    script.write_text(
        'NCCL_P2P_DISABLE="1" deepspeed --num_gpus=4 train.py --deepspeed --config main.toml --trust_cache\n',
        encoding="utf-8",
    )
    made, recipe = converted(tmp_path, script)
    assert recipe.train.micro_batches_per_step == 6
    assert {"num_gpus", "trust_cache", "deepspeed"} <= told(made).keys()
    assert "no such setting" not in str(made.keys)


@pytest.mark.parametrize("resolution", [512, 1024])
def test_lumina_has_a_shift_of_the_size_and_its_pipelines_instruction(tmp_path: Path, resolution: int) -> None:
    """Its instruction would stand before that of the pipeline; another prefix stays."""
    shifts = {512: 1.878, 1024: 3.158}
    model = {"type": "lumina_2", "transformer_path": "/m/a.safetensors", "llm_path": "/m/b", "lumina_shift": True}
    prefix = "You are an assistant designed to generate high-quality images based on user prompts. <Prompt Start> "
    for text, caption in ((prefix, "{text}"), ("a photo, ", "a photo, {text}")):
        directories = {"resolutions": [resolution], "caption_prefix": text, "directory": [{"path": "a"}]}
        made, recipe = converted(tmp_path, *write(tmp_path, {"epochs": 1, "model": model}, directories))
        assert recipe.objective.timestep_shift == shifts[resolution]
        assert recipe.dataset[0].caption == caption
        assert told(made)["caption_prefix"][0] is Fate.TAKEN


@pytest.mark.parametrize("kind", ["omnigen2", "cosmos"])
def test_a_model_that_is_not_here_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    files = write(tmp_path, {"epochs": 1, "model": {"type": kind}}, {"directory": [{"path": "a"}]})
    with pytest.raises(UserError, match=kind):
        converted(tmp_path, *files)


def test_files_of_others_are_not_taken_for_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[general]\nresolution = 512\n[[datasets]]\nbatch_size = 2\n", encoding="utf-8")
    assert not DIFFUSION_PIPE.recognises(ConfigFile(tmp_path / "a.toml"))
    assert DIFFUSION_PIPE.recognises(ConfigFile(DATASET_1))
    with pytest.raises(UserError, match="give the main TOML too"):
        importer.convert(ImportRequest(files=(DATASET_1,), output=tmp_path / "b.toml"))


TOML_JUNK = [value for value in JUNK if not isinstance(value, int) or abs(value) < 2**63]


@given(
    config=spoiled(
        {
            "main": toml.parse(MAIN_1.read_text(encoding="utf-8")),
            "data": toml.parse(DATASET_1.read_text(encoding="utf-8")),
        },
        TOML_JUNK,
    )
)
def test_no_spoiled_config_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any]
) -> None:
    """It gives a recipe with a line for each key, or says what is wrong."""
    folder = tmp_path_factory.mktemp("spoiled")
    parts = [config.get(name) if isinstance(config.get(name), dict) else {} for name in ("main", "data")]
    files = write(folder, *parts)  # type: ignore[arg-type]
    request = ImportRequest(files=files, output=folder / "out.toml", trainer="diffusion-pipe", clips=False)
    try:
        made = importer.convert(request)
    except UserError:
        return
    keys = flatten(parts[0]).keys() | (flatten(parts[1]).keys() if parts[1] else set())
    assert {key for key in keys if key} <= told(made).keys()
    assert len(made.keys) == len(told(made))
    DIFFUSION_PIPE.buckets(DIFFUSION_PIPE.read([ConfigFile(file) for file in files]), 0)


def test_lengths_that_the_model_does_not_take_become_the_next_lower_ones(tmp_path: Path) -> None:
    """Wan takes 4 n + 1 frames: 34 are cut to 33 there, too, and MiniMax H3 takes 17 n + 5 here."""
    data = {"resolutions": [480], "frame_buckets": [1, 34], "directory": [{"path": "a"}]}
    for kind, frames, fate in (("wan", [1, 33], Fate.TAKEN), ("minimax_h3", [1, 22], Fate.NOT_POSSIBLE)):
        model = {"type": kind, "ckpt_path": "Wan2.1-T2V-14B", "dtype": "bfloat16"}
        made, recipe = converted(tmp_path, *write(tmp_path, {"epochs": 1, "model": model}, data))
        assert recipe.bucket[0].num_frames == frames
        assert told(made)["frame_buckets"][0] == fate
        assert len(made.keys) == len(told(made))


def test_a_batch_size_that_is_none_leaves_the_buckets_to_be_proposed(tmp_path: Path) -> None:
    main = toml.parse(MAIN_1.read_text(encoding="utf-8")) | {"micro_batch_size_per_gpu": [[512]]}
    made, recipe = converted(tmp_path, *write(tmp_path, main, toml.parse(DATASET_1.read_text(encoding="utf-8"))))
    assert (recipe.bucket, recipe.buckets.entries) == ([], "auto")
    assert told(made)["directory"][0] == Fate.TO_FILL_IN


@pytest.mark.parametrize(
    ("sizes", "entries", "fate"),
    [
        ([[1024, 1024, 1], [512, 512, 81]], {"1024px": 1, "512px": 81}, Fate.TAKEN),
        ([[640, 352, 33], [352, 640, 33], [480, 480, 33]], {"476px": 33}, Fate.TAKEN),
        ([[512, 512, 1], [512, 512, 33]], {"512px": [1, 33]}, Fate.TAKEN),
        ([[512, 512, 81], [1024, 1024, 17]], {"1024px": 17, "512px": 81}, Fate.NOT_POSSIBLE),
        ([[512, 512, 1], [1024, 1024, 1]], {"810px": 1}, Fate.NOT_POSSIBLE),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_fixed_sizes_are_those_of_their_lengths(
    tmp_path: Path, sizes: list[list[int]], entries: dict[str, Any], fate: Fate, own: bool
) -> None:
    """Pictures of 1024 pixels beside clips of 512 would otherwise meet in clips of 810, which need four times the memory."""
    model = {"type": "wan", "ckpt_path": "/m/Wan2.1-T2V-14B", "dtype": "bfloat16"}
    main = {"epochs": 1, "model": model, "adapter": {"type": "lora", "rank": 4}}
    given = {"size_buckets": sizes}
    data = {"directory": [{"path": "a", **given}]} if own else {**given, "directory": [{"path": "a"}, {"path": "b"}]}
    made, recipe = converted(tmp_path, *write(tmp_path, main, data))
    assert {entry.resolution: entry.num_frames for entry in recipe.bucket} == entries
    assert told(made)["directory.0.size_buckets" if own else "size_buckets"][0] is fate
    assert all(each.resolutions is None for each in recipe.dataset)  # which would train a clip at each


def test_pictures_of_fixed_sizes_do_not_let_shorter_videos_in() -> None:
    settings = FormerSettings(flatten({"size_buckets": [[512, 512, 1], [512, 512, 33]], "directory": [{"path": "a"}]}))
    rules = DIFFUSION_PIPE.buckets(settings, 0)
    assert rules is not None
    assert rules.least_frames == 33
