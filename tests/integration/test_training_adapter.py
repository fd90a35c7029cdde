"""A training adapter takes part in training as if its weights were the base's, and in nothing that comes of it."""

from __future__ import annotations

from dataclasses import replace

import children
import killing
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from test_kill_and_resume import losses
from test_lora import lora, on_file, pictures, tensors

from reelworks.core import machine
from reelworks.core.shape import Shape
from reelworks.inference.generate.load_run import LoadedModel
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models.adapters import files, inject, training_adapter
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file

__all__ = ["lora", "pictures"]
CPU = torch.device("cpu")
SETTINGS = LoraConfig(rank=3, alpha=2.3, targets="blocks")


def adapter_file(values, folder, seed=0):
    """A LoRA of random numbers that is no small change, and the weights of its base with it."""
    denoiser = build.denoiser(recipe_file.parse({key: v for key, v in values.items() if key != "lora"}), CPU)
    inject.inject(denoiser, SETTINGS, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in inject.weights(denoiser.module).values():
            value.copy_(0.2 * torch.randn(value.shape, generator=generator))
    file = files.to_file(inject.weights(denoiser.module), "comfyui", adapter=SETTINGS.adapter, model="wan-tiny")
    path = folder / f"adapter-{seed}.safetensors"
    save_file({key: value.contiguous() for key, value in file.tensors.items()}, path, file.header)
    return path, inject.merge(denoiser.module)


@pytest.fixture
def adapted(lora, tmp_path):
    """A recipe with a base in a file and an adapter, and the same one on their sum."""
    values = on_file(lora, tmp_path, 1)
    path, summed = adapter_file(values, tmp_path)
    save_file({name: value.contiguous() for name, value in summed.items()}, tmp_path / "sum.safetensors")

    def make(output, lora_on=None, **train):
        made = values | {
            "output": str(tmp_path / output),
            "lora": values["lora"] | {"dropout": 0.0} | ({"training_adapter": str(path)} if lora_on is None else {}),
            "model": values["model"] | ({} if lora_on is None else {"weights": str(lora_on)}),
            "train": {"max_steps": 6, "learning_rate": 0.001, "threads": 1, "ema_decay": 0.9} | train,
            "samples": {"prompts": ["a kite"], "num_frames": 1, "height": 32, "width": 32, "num_inference_steps": 2},
        }
        return made

    return make


def test_the_lora_is_that_of_the_summed_weights_and_previews_are_without_the_adapter(adapted, tmp_path):
    """Losses and LoRA agree with those on the sum in a file; preview, export and `generate` stand on the plain base."""
    assert children.train(adapted("with")) == [0]
    assert children.train(adapted("sum", tmp_path / "sum.safetensors")) == [0]
    one, other = ([float.fromhex(v) for v in losses(tmp_path / name).values()] for name in ("with", "sum"))
    assert one == pytest.approx(other, rel=1e-4)
    made, wanted = tensors(tmp_path / "with"), tensors(tmp_path / "sum")
    assert made.keys() == wanted.keys()
    learnt = [name for name in made if name.startswith("model.") and "lora_B" in name]
    assert learnt
    for name in learnt:
        assert (made[name] - wanted[name]).norm() < 1e-2 * wanted[name].norm()

    recipe = recipe_file.load(tmp_path / "with" / "recipe.toml")
    exported = next((tmp_path / "with" / "exports").glob("*diffusers*"))
    used = recipe.lora.model_copy(update={"weights": str(exported), "training_adapter": None})
    plain = build.denoiser(recipe.model_copy(update={"lora": used}), machine.default_device())
    loaded = LoadedModel.load(tmp_path / "with")
    kept, found = loaded.denoiser.module.state_dict(), plain.module.state_dict()
    assert kept.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in kept.items())
    options = GenerateOptions(Shape(1, 32, 32), 24.0, 2, recipe.samples.guidance_scale or 5.0, recipe.seed)
    preview = np.asarray(Image.open(next((tmp_path / "with" / "samples").glob("step-000000006/*.png"))))
    assert np.array_equal(preview, loaded.generate(["a kite"], options).clips[0][0])
    adapter = training_adapter.TrainingAdapter.read(recipe.lora.training_adapter)
    with_it = build.denoiser(recipe, machine.default_device())
    assert with_it.base.training_adapter == adapter.digest()
    with_it.module.load_state_dict(kept)
    trained = replace(loaded, denoiser=with_it, boundary=DtypeBoundary(with_it))
    assert not np.array_equal(preview, trained.generate(["a kite"], options).clips[0][0])


@pytest.mark.slow
def test_a_resume_costs_nothing_and_needs_the_same_adapter(adapted, tmp_path):
    """Killed and resumed, state and losses agree to the last bit; with another adapter, or none, a resume is refused."""
    assert children.train(adapted("calm")) == [0]
    assert children.train(adapted("killed"), fault=("after the average moved", 6)) == [killing.SELF_KILLED]
    changed = adapted("killed")
    other, _ = adapter_file(changed, tmp_path, seed=1)
    for adapter in ({"training_adapter": str(other)}, {}):
        without = {key: value for key, value in changed["lora"].items() if key != "training_adapter"}
        values = changed | {"lora": without | adapter}
        assert children.train(values) != [0]
        assert "the run was trained with the training adapter" in children.output(values)
    assert children.train(adapted("killed")) == [0]
    assert losses(tmp_path / "calm") == losses(tmp_path / "killed")
    one, two = tensors(tmp_path / "calm"), tensors(tmp_path / "killed")
    assert one.keys() == two.keys()
    assert all(torch.equal(value, two[name]) for name, value in one.items())
