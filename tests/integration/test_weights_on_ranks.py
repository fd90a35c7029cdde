"""Files of weights and sound on several processes: they train as one process does, and show the same previews."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import children
import gguf
import numpy as np
import pytest
import sound_clips
import tiny_recipe
import torch
from PIL import Image
from test_lora import lora, on_file, pictures
from test_training_adapter import adapter_file

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file

__all__ = ["lora", "pictures"]
Recipe = dict[str, Any]
# By default, the number of micro-batches of a step, and how many of one bucket follow each other, depend on the ranks.
GLOBAL = {"micro_batches_per_step": 2, "same_bucket_run": 1}
TRAIN = {"max_steps": 3, "learning_rate": 1e-3, "threads": 1} | GLOBAL


def with_adapter(values: Recipe, folder: Path) -> Recipe:
    path, _ = adapter_file(values, folder)
    return values | {"lora": values["lora"] | {"training_adapter": str(path)}}


def on_codes(values: Recipe, folder: Path) -> Recipe:
    """The base in a GGUF file, of which a training keeps the codes."""
    plain = recipe_file.parse({key: value for key, value in values.items() if key != "lora"})
    writer = gguf.GGUFWriter(folder / "base.gguf", "wan")
    for name, value in build.denoiser(plain, torch.device("cpu")).module.state_dict().items():
        if value.ndim == 2 and value.shape[0] > 1 and value.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quantize(value.numpy(), kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = values["model"] | {"weights": str(folder / "base.gguf")}
    return values | {"model": model, "lora": values["lora"] | {"base": "gguf"}}


def shown_on_another(values: Recipe, folder: Path, lora) -> Recipe:
    shown = on_file(lora, folder, 2)["model"]["weights"]
    return values | {"samples": values["samples"] | {"weights": shown}}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["replicated", "fsdp"])
@pytest.mark.parametrize("feature", ["training adapter", "gguf", "previews on another model"])
def test_two_ranks_read_files_of_weights_as_one_process_does(lora, tmp_path, feature, strategy):
    """The same losses and norms of gradients from the same global batches, and the same previews, within rounding."""
    values = on_file(lora, tmp_path, 1)
    values["lora"] = values["lora"] | {"dropout": 0.0, "targets": "blocks"}
    values["train"] = TRAIN
    sizes = {"num_frames": 1, "height": 32, "width": 32, "num_inference_steps": 2, "guidance_scale": 3.0}
    values["samples"] = {"prompts": ["a kite"], **sizes}
    if feature == "training adapter":
        values = with_adapter(values, tmp_path)
    elif feature == "gguf":
        values = on_codes(values, tmp_path)
    else:
        values = shown_on_another(values, tmp_path, lora)

    one, two = (trained(values, tmp_path / f"on-{n}", n, strategy=strategy) for n in (1, 2))
    assert all(value > 0 for value in one)
    assert two == pytest.approx(one, rel=5e-4)
    first, second = (
        np.asarray(Image.open(next((tmp_path / f"on-{n}" / "samples").glob("step-000000003/*.png"))), np.int32)
        for n in (1, 2)
    )
    assert first.std() > 1
    assert np.abs(first - second).max() <= 2


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["replicated", "fsdp"])
def test_two_ranks_train_sound_as_one_process_does(tmp_path, strategy):
    """Picture and sound, and either given, live and from the store."""
    clips = tmp_path / "clips"
    clips.mkdir()
    for i in range(4):
        sound_clips.write(clips / f"{i}.mp4", seconds=1.0, events=[0.1 + 0.2 * i, 0.8])
        (clips / f"{i}.txt").write_text(f"clip {i}", encoding="utf-8")
    modes, none_held_out = {"modes": {"sound": 0.3, "video": 0.3}}, {"split": 0.0}
    values = tiny_recipe.of_sounds(clips, "", sound=modes, train=TRAIN, validation=none_held_out)
    one = trained(values, tmp_path / "on-1", 1, strategy=strategy)
    assert all(value > 0 for value in one)
    assert trained(values, tmp_path / "on-2", 2, strategy=strategy) == pytest.approx(one, rel=5e-4)
    stored = values | {"encode": {"store": True}}
    assert trained(stored, tmp_path / "stored", 2, strategy=strategy) == pytest.approx(one, rel=5e-4)


def trained(values: Recipe, output: Path, world: int, *, strategy: str) -> list[float]:
    """Train on several processes; returns the numbers of clips, losses and norms of gradients of all steps."""
    recipe = values | {"output": str(output), "parallel": {"strategy": strategy}}
    assert children.train(recipe, world=world) == [0] * world, children.output(recipe)
    steps = list(events.read(RunFolder(output).events_file, "step"))
    assert len(steps) == values["train"]["max_steps"]
    return [event[field] for field in ("clips", "loss", "grad_norm") for event in steps]
