"""Data, checkpoints and whole trainings on a GPU: what is read, saved and resumed is what the CPU would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import devices
import numpy as np
import pytest
import torch

from reelworks import testing
from reelworks.data.checkpoint.async_save import Background
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.load import load
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.loop import trainer
from reelworks.training.loop.request import TrainRequest
from reelworks.training.recipe import recipe_file


@devices.both(["float32", "bfloat16"], quick=["float32", "bfloat16"])
def test_a_save_has_what_was_there_when_it_began(device: str, name: str, tmp_path: Path) -> None:
    """Training overwrites its weights at once, while they are still on their way into pinned memory."""
    store, background = CheckpointFolder(tmp_path / "checkpoints"), Background()
    count = 1 << 24 if device == "cuda" else 1 << 12
    dtype = getattr(torch, name)
    for step in (1, 2):  # the second takes the memory of the first
        generator = torch.Generator().manual_seed(step)
        values = [torch.randn(count, generator=generator).to(dtype) for _ in range(3)]
        state = {"model": {f"w{i}": value.clone().to(device) for i, value in enumerate(values)}}
        background.start(store, step, state)
        for value in state["model"].values():
            value.zero_()
        background.finish()
        found = {"model": {f"w{i}": torch.empty(count, dtype=dtype, device=device) for i in range(3)}}
        load(store.path(step), found)
        assert all(torch.equal(found["model"][f"w{i}"].cpu(), value) for i, value in enumerate(values))


def recipe_in(folder: Path, output: str, **changes: Any) -> dict[str, Any]:
    recipe: dict[str, Any] = {
        "version": 1,
        "output": str(folder / output),
        "seed": 7,
        "dataset": [{"path": str(testing.sample_folder())}],
        "catalog": str(folder / "catalog"),
        "bucket": [{"resolution": "48px", "num_frames": [1, 5], "batch_size": [3, 2]}],
        "buckets": {"upscale": True, "max_crop": 0.7, "aspect_ratios": ["3:2", "1:1"]},
        "data": {"num_workers": 0, "clip_start": "start"},
        "model": {"name": "stdit3-tiny", "hidden_size": 32, "depth": 1, "num_heads": 2},
        "autoencoder": {"stride": 4},
        "text_encoder": {"dim": 16, "max_length": 6},
        "train": {"max_steps": 4, "learning_rate": 1e-3, "threads": 2},
        "validation": {"split": 0.4, "every_steps": 2, "timesteps": [200.0, 800.0]},
        "checkpoints": {"every_steps": 2, "asynchronous": True},
    }
    for key, value in changes.items():
        recipe[key] = {**recipe.get(key, {}), **value} if isinstance(value, dict) else value
    return recipe


def trained(recipe: dict[str, Any]) -> list[float]:
    """Train, and return the losses of all steps and validations."""
    assert trainer.run(recipe_file.parse(recipe), TrainRequest()) == 0
    file = RunFolder(Path(recipe["output"])).events_file
    return [event["loss"] for kind in ("step", "validation") for event in events.timeline(file, kind)]


CHANGES: dict[str, dict[str, Any]] = {
    "stored latents": {"encode": {"store": True}},
    "compiled": {"train": {"compile": True}},
    "checkpointing": {"model": {"gradient_checkpointing": "selective"}},
    "average on the CPU": {"train": {"ema_device": "cpu"}},
    "average on the CPU, resumed": {"train": {"ema_device": "cpu"}},
    "resume": {},
}
# A graph takes long to compile: one size of pictures is enough.
_PICTURES: dict[str, Any] = {
    "bucket": [{"resolution": "48px", "num_frames": 1, "batch_size": 3}],
    "buckets": {"aspect_ratios": ["1:1"], "token_families": False},
}


@devices.both(CHANGES)
def test_losses_are_those_of_the_plain_training(device: str, name: str, tmp_path: Path) -> None:
    """Up to rounding in bfloat16, whatever saves memory or time."""
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("the GPU is used where there is one")
    if device not in ("cpu", "cuda") and name == "compiled":
        pytest.skip("torch compiles nothing for a pretended device")
    base, changes = _PICTURES if name == "compiled" else {}, CHANGES[name]
    if device == "cpu" and name == "compiled":
        changes = {"train": {"compile": True, "compile_backend": "eager"}}
    expected = trained(recipe_in(tmp_path, "plain", **base))
    if "resume" in name:
        trained(recipe_in(tmp_path, "other", train={**changes.get("train", {}), "max_steps": 2}))
    found = trained(recipe_in(tmp_path, "other", **base, **changes))
    assert len(expected) > 4
    assert found == pytest.approx(expected, rel=0.02)


@devices.both(["wan-tiny int8", "flux-tiny nf4"])
def test_a_lora_learns(device: str, name: str, tmp_path: Path) -> None:
    """A whole run of a LoRA on a quantised base, with a preview at its end."""
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("the GPU is used where there is one")
    model, base = name.split()
    losses = trained(
        recipe_in(
            tmp_path,
            "run",
            model={
                "name": model,
                "gradient_checkpointing": True,
                "hidden_size": None,
                "depth": None,
                "num_heads": None,
            },
            bucket=[{"resolution": "48px", "num_frames": 1, "batch_size": 3}],
            lora={"rank": 2, "base": base},
            samples={"prompts": ["a sample"], "num_inference_steps": 2},
        )
    )
    assert np.isfinite(losses).all()
    assert list((tmp_path / "run").rglob("*.png")) or list((tmp_path / "run").rglob("*.mp4"))
