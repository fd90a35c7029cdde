"""What lies on two devices is never mixed: whole trainings on a device whose tensors torch refuses to mix with the CPU's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest
import second_device
import tiny_recipe
import torch

from reelworks.models.lora import base_model
from reelworks.run import events
from reelworks.run.folder import RunFolder
from reelworks.testing import contract
from reelworks.train.step.optimizer_names import OPTIMIZERS

SHOWN = {"prompts": ["a kite"], "every_steps": 2, "num_inference_steps": 2}
OFTEN: dict[str, Any] = {
    "samples": SHOWN,
    "checkpoints": {"every_steps": 2},
    "exports": {"weights": "ema"},
    "validation": {"split": 0.2, "every_steps": 2, "timesteps": [200.0, 800.0]},
}
LORA = {"rank": 2, "targets": "blocks"}
FEATURES: dict[str, dict[str, Any]] = {
    "int8": {"lora": LORA | {"base": "int8"}},
    "float8": {"lora": LORA | {"base": "float8"}},
    "nf4": {"lora": LORA | {"base": "nf4"}},
    "dora": {"lora": LORA | {"dora": True}},
    "lokr": {"lora": LORA | {"type": "lokr"}},
    "loha": {"lora": LORA | {"type": "loha"}},
    "oft": {"lora": {"type": "oft", "block_size": 4, "targets": "blocks"}},
    "guided targets": {"lora": LORA, "objective": {"target_guidance_scale": 3.0}},
    "pairs": {"lora": LORA, "objective": {"dpo_beta": 100.0}},
    "export of the trained weights": {"exports": {"weights": "model"}},
    "not finite": {"train": {"learning_rate": 1e30, "max_non_finite": 100}},
}


def on_second(*recipes: dict[str, Any]) -> None:
    """Train recipes on the device, one after the other in a process of their own."""
    assert children.ended([children.SERVER.Process(target=_all, args=(recipes,))]) == [0]


def _all(recipes: tuple[dict[str, Any], ...]) -> None:
    for recipe in recipes:
        second_device.train(recipe)


def losses(run: Path) -> list[float]:
    return [event["loss"] for event in events.timeline(RunFolder(run).events_file, "step")]


def of_family(name: str, footage: Path, output: Path, **changes: Any) -> dict[str, Any]:
    train = {"max_epochs": "none", "max_steps": 3, "ema_device": "cpu", "log_block_grad_norms_every": 1}
    tables = OFTEN | {"train": train, "text_encoder": {"pooled_dim": 8, "device": "cpu"}}
    recipe = tiny_recipe.of_family(name, output, {"path": str(footage)}, **tables)
    return tiny_recipe.changed(recipe, {"precision": {"compute": "bfloat16"}} | changes)


def test_an_average_in_cpu_memory_is_saved_shown_exported_and_resumed(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """With the losses of a training on the CPU, which computes the same numbers."""
    train = {"ema_device": "cpu", "spikes": "skip", "spike_threshold": 0.01, "clip_losses": 2, "clip_losses_every": 2}
    tables = OFTEN | {"samples": SHOWN | {"metrics": ["motion"]}}
    first, more, alone = (
        tiny(output, **tables, train=train | {"max_steps": steps, "threads": 1})
        for output, steps in (("run", 2), ("run", 4), ("alone", 4))
    )
    on_second(first, more)
    assert children.train(alone) == [0]
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "alone"), rel=1e-5)
    assert len(list((tmp_path / "run/exports").glob("*ema*"))) == 2
    assert len(list((tmp_path / "run/samples").rglob("*.mp4"))) == 2


def test_an_adapter_on_codes_trains_beside_a_text_encoder_in_cpu_memory(footage: Path, tmp_path: Path) -> None:
    on_second(of_family("wan-tiny", footage, tmp_path / "run", lora=LORA | {"base": "int8"}))
    assert np.isfinite(losses(tmp_path / "run")).all()


@pytest.mark.slow
@pytest.mark.parametrize("feature", FEATURES)
def test_features_train(footage: Path, tmp_path: Path, feature: str) -> None:
    recipe = of_family("wan-tiny", footage, tmp_path / "run", **FEATURES[feature])
    if feature == "pairs":
        (worse := tmp_path / "worse").mkdir()
        for file in footage.glob("picture-*.png"):
            shutil.copy(file, worse / file.name)
        recipe["dataset"] = [{"path": str(footage), "rejected": str(worse), "filter": "num_frames == 1"}]
    on_second(recipe)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_optimizers_train(footage: Path, tmp_path: Path, name: str) -> None:
    train = {"max_epochs": "none", "max_steps": 3, "optimizer": name}
    on_second(of_family("sd3-tiny", footage, tmp_path / "run", train=train))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in contract.CLASSES if name not in ("wan-2.2-tiny", "wan-vace-tiny")])
def test_families_train(footage: Path, tmp_path: Path, name: str) -> None:
    on_second(of_family(name, footage, tmp_path / "run"))


def _refusals() -> None:
    """Raise unless the device refuses what a GPU refuses, and takes what a GPU takes."""
    with second_device.opened() as device:
        here, there = torch.ones(3, 4, device=device), torch.ones(3, 4)
        refused = [
            lambda: here + there,
            lambda: torch.stack([here, there]),
            lambda: torch._foreach_norm([here, there]),
            lambda: here.numpy(),
            lambda: np.asarray(here),
            lambda: torch.randn(3, device=device, generator=torch.Generator()),
            lambda: torch.nn.functional.linear(here, there),
            lambda: there[here.bool()],
        ]
        for work in refused:
            with pytest.raises((RuntimeError, TypeError)):
                work()
        assert base_model.digest({"a": here}) == base_model.digest({"a": there})
        here += torch.tensor(1.0)
        assert here.cpu().sum() == 24
        assert here[torch.tensor([0, 2])].shape == (2, 4)
        assert here.to(device, copy=False).copy_(there).tolist() == there.tolist()
        assert torch.randn(3, device=device, generator=torch.Generator(device)).device == here.device


def test_the_device_refuses_what_a_gpu_refuses() -> None:
    assert children.ended([children.SERVER.Process(target=_refusals)]) == [0]
