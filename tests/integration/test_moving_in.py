"""A folder prepared for kohya's tools, with its script, is imported, trained, converted and read by another program, as typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import prepare_files
import pytest
from safetensors import safe_open

from reelworks.models import factory, registry
from reelworks.training.recipe import recipe_file

SCRIPT = """accelerate launch sdxl_train_network.py \\
  --pretrained_model_name_or_path=stabilityai/stable-diffusion-xl-base-1.0 --train_data_dir=mugs --output_dir=out \\
  --output_name=mug --network_module=networks.lora --network_dim=4 --network_alpha=2 --network_train_unet_only \\
  --resolution=64 --enable_bucket --min_bucket_reso=32 --bucket_reso_steps=16 --train_batch_size=2 \\
  --learning_rate=1e-3 --max_train_steps=6 --save_every_n_steps=3 --caption_extension=.txt --seed=7
"""


def typed(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "reelworks", *words], cwd=folder, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow(reason="four commands, one of which trains")
def test_a_folder_and_script_of_kohya_end_as_files_that_others_read(tmp_path: Path) -> None:
    (tmp_path / "mugs" / "10_rwmug cup").mkdir(parents=True)
    for number in range(5):
        prepare_files.picture(tmp_path / "mugs" / "10_rwmug cup" / f"{number}.png", size=(64, 48), caption=None)
    (tmp_path / "train.sh").write_text(SCRIPT, encoding="utf-8")
    said = typed(tmp_path, "import", "train.sh", "--model", "sdxl-tiny", "-o", "mug.toml")
    assert "sd-scripts trains 5 of them in an epoch" in said
    assert "this recipe trains 5" in said
    recipe = recipe_file.load(tmp_path / "mug.toml")
    assert recipe.lora is not None
    assert (recipe.lora.rank, recipe.lora.alpha, recipe.train.max_steps, recipe.seed) == (4, 2.0, 6, 7)
    assert (recipe.dataset[0].repeats, recipe.dataset[0].missing_caption) == (10, "rwmug cup")
    lines = (tmp_path / "mug.toml").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "mug.toml").write_text(
        "".join(line for line in lines if "stable-diffusion-xl" not in line), encoding="utf-8"
    )
    typed(tmp_path, "train", "mug.toml")
    (written,) = (tmp_path / recipe.output / "exports").glob("*6-*-comfyui.safetensors")
    for convention in ("diffusers", "comfyui", "kohya"):
        typed(tmp_path, "lora", "convert", str(written), "--to", convention, "-o", f"{convention}.safetensors")
    names = {
        convention: set(safe_open(tmp_path / f"{convention}.safetensors", "pt").keys())
        for convention in ("diffusers", "comfyui", "kohya")
    }
    assert {name.split(".")[0] for name in names["comfyui"]} == {"diffusion_model"}
    assert all(name.startswith("lora_unet_") for name in names["kohya"])
    network = factory.build_denoiser(
        recipe.model.model_copy(update={"weights": None}),
        autoencoder=recipe.autoencoder,
        text=recipe.text_encoder,
        device="cpu",
        seed=0,
    ).module
    part = registry.PRESETS["sdxl-tiny"].config.network.part
    network.load_lora_adapter(str(tmp_path), weight_name="diffusers.safetensors", prefix=part)  # type: ignore[operator]
    adapted = {name for name, _ in network.named_parameters() if ".lora_A." in name}
    assert len(adapted) == sum(name.endswith(".lora_A.weight") for name in names["diffusers"])
