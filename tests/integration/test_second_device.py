"""Whole trainings on a pretended second device, which refuses what a GPU refuses, take the steps of the CPU.

One kind of it lacks what Apple's GPUs lack. All other tests run on it with `pytest --second-device`; here is each key whose state lies on two devices.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import second_device
import tiny_recipe
import torch
from PIL import Image, ImageOps
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.models import factory
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.config import ModelConfig
from reelworks.testing import contract
from reelworks.training.loop import trainer
from reelworks.training.loop.request import TrainRequest
from reelworks.training.recipe import recipe_file
from reelworks.training.step.optimizer_names import OPTIMIZERS

_FRESH = dict.fromkeys(("hidden_size", "depth", "num_heads"))
_LORA: dict[str, Any] = {
    "model": {"name": "wan-tiny", **_FRESH, "gradient_checkpointing": True},
    "bucket": [{"resolution": "32px", "num_frames": 1, "batch_size": 3}],
    "text_encoder": {"device": "cpu"},
    "validation": {"split": 0.5},
}
CHANGES: dict[str, dict[str, Any]] = {
    "an average on the CPU": {"train": {"ema_device": "cpu"}},
    "weights on the CPU": {"parallel": {"offload": True}},
    "int8": _LORA | {"lora": {"rank": 2, "base": "int8"}, "train": {"ema_device": "cpu"}},
    "float8": _LORA | {"lora": {"rank": 2, "base": "float8"}},
    "nf4": _LORA | {"lora": {"rank": 2, "base": "nf4"}},
    "both on the CPU": {"parallel": {"offload": True}, "train": {"ema_device": "cpu"}},
    "aids": {
        "model": {"gradient_checkpointing": "selective"},
        "encode": {"store": True},
        "train": {"gradient_accumulation_steps": 2, "clip_losses": "auto"},
    },
}
# The average of `int8` lies on the CPU, too.
_SLOW = ("an average on the CPU", "weights on the CPU", "float8", "nf4", "both on the CPU", "aids")


def trained(recipe: dict[str, Any], max_steps: int = 4) -> dict[tuple[str, int], float]:
    """Train, and return the losses of steps and validations."""
    recipe = recipe | {"train": {**recipe["train"], "max_steps": max_steps}}
    assert trainer.run(recipe_file.parse(recipe), TrainRequest()) == 0
    file = RunFolder(Path(recipe["output"])).events_file
    kinds = ("step", "validation")
    return {(kind, event["step"]): event["loss"] for kind in kinds for event in events.timeline(file, kind)}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in _SLOW)) for n in CHANGES])
@pytest.mark.slow
def test_a_training_is_that_of_the_cpu(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With saves, validations and previews, interrupted and resumed; then it is exported, measured, and generates."""
    changes = CHANGES[name] | {"checkpoints": {"every_steps": 2}, "precision": {"compute": "bfloat16"}}
    changes["samples"] = {"prompts": ["a picture"], "num_inference_steps": 2, "num_frames": 1, "every_steps": 4}
    expected = trained(tiny("cpu", **changes))
    device = second_device.use(monkeypatch)
    trained(tiny("there", **changes), max_steps=2)
    found = trained(tiny("there", **changes))
    assert len(expected) > 4
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=0.01)
    run = str(tmp_path / "there")
    for words in (
        ["checkpoints", "export", run, "-o", str(tmp_path / "out.safetensors")],
        ["generate", run, "--prompt", "a picture", "-o", str(tmp_path / "made.png")],
        ["eval", run, "--timesteps", "2"],
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (words, device, result.output, result.exception)


Use = Callable[[pytest.MonkeyPatch], torch.device]
on_both = pytest.mark.parametrize("use", [second_device.use, second_device.use_as_apples])

APPLES: dict[str, dict[str, Any]] = {
    "a whole network": {},
    "a LoRA of a video network": {"lora": {"rank": 2}},
    "a LoRA of few bits": {"lora": {"rank": 2, "base": "nf4"}, "train": {"spikes": "skip"}},
    "int8": {"lora": {"rank": 2, "base": "int8"}},
    "in float32": {"precision": {"compute": "float32"}},
    "stored latents": {"encode": {"store": True}},
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "a LoRA of a video network")) for n in APPLES]
)
@pytest.mark.slow
def test_a_training_on_apples_gpu_is_that_of_the_cpu(
    footage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With saves, validations and previews, interrupted and resumed; then it generates and is measured."""
    expected = trained(of_family("wan-tiny", footage, tmp_path / "cpu", **APPLES[name]))
    second_device.use_as_apples(monkeypatch)
    recipe = of_family("wan-tiny", footage, tmp_path / "there", **APPLES[name])
    trained(recipe, max_steps=2)
    found = trained(recipe)
    assert [*RunFolder(tmp_path / "there").samples_folder.rglob("*.*")]
    assert len(expected) > 4
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=0.01)
    run = str(tmp_path / "there")
    for words in (
        ["generate", run, "--prompt", "a picture", "-o", str(tmp_path / "made.png")],
        ["eval", run, "--timesteps", "2"],
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (words, result.output, result.exception)


def of_family(name: str, footage: Path, output: Path, **changes: Any) -> dict[str, Any]:
    """Return the recipe of a family's tiny network that saves, validates and shows pictures."""
    tables: dict[str, Any] = {
        "train": {"max_epochs": "none", "ema_device": "cpu", "log_block_grad_norms_every": 1},
        "text_encoder": {"pooled_dim": 8, "device": "cpu"},
        "samples": {"prompts": ["a kite"], "every_steps": 2, "num_inference_steps": 2},
        "checkpoints": {"every_steps": 2},
        "exports": {"weights": "model"},
        "validation": {"split": 0.2, "every_steps": 2},
        "precision": {"compute": "bfloat16"},
    }
    return tiny_recipe.changed(tiny_recipe.of_family(name, output, {"path": str(footage)}, **tables), changes)


@pytest.mark.slow
@on_both
@pytest.mark.parametrize("name", [name for name in contract.CLASSES if name not in ("wan-2.2-tiny", "wan-vace-tiny")])
def test_families_train(footage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, use: Use) -> None:
    use(monkeypatch)
    assert trained(of_family(name, footage, tmp_path / "run"), max_steps=3)


@pytest.mark.slow
@on_both
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_optimizers_train(footage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, use: Use) -> None:
    if use is second_device.use_as_apples and name == "adamw8bit":
        pytest.skip("refused on Apple's GPU")
    use(monkeypatch)
    train = {"optimizer": name, "ema_device": "auto"}
    assert trained(of_family("sd3-tiny", footage, tmp_path / "run", train=train), max_steps=3)


FEATURES: dict[str, dict[str, Any]] = {
    "dora": {"lora": {"rank": 2, "dora": True}},
    "lokr": {"lora": {"type": "lokr", "rank": 2, "targets": "blocks"}},
    "loha": {"lora": {"type": "loha", "rank": 2, "targets": "blocks"}},
    "oft": {"lora": {"type": "oft", "block_size": 4, "targets": "blocks"}},
    "guided targets": {"lora": {"rank": 2}, "objective": {"target_guidance_scale": 3.0}},
    "pairs": {"lora": {"rank": 2}, "objective": {"dpo_beta": 100.0}},
    "not finite": {"train": {"learning_rate": 1e30, "max_non_finite": 100}},
    "spikes": {"train": {"spikes": "skip", "spike_threshold": 0.01}},
}


@pytest.mark.slow
@on_both
@pytest.mark.parametrize("feature", FEATURES)
def test_features_train(footage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feature: str, use: Use) -> None:
    use(monkeypatch)
    recipe = of_family("wan-tiny", footage, tmp_path / "run", **FEATURES[feature])
    if feature == "pairs":
        (worse := tmp_path / "worse").mkdir()
        for file in footage.glob("picture-*.png"):
            ImageOps.invert(Image.open(file).convert("RGB")).save(worse / file.name)
        recipe["dataset"] = [{"path": str(footage), "rejected": str(worse), "filter": "num_frames == 1"}]
    assert trained(recipe, max_steps=3)


@pytest.mark.parametrize("base", ["float32", "bfloat16", "int8", "float8", "nf4"])
@pytest.mark.quick_cases(1)
def test_a_lora_is_drawn_where_its_network_is(monkeypatch: pytest.MonkeyPatch, base: Any) -> None:
    """A base has one digest on all devices."""
    devices = torch.device("cpu"), second_device.use(monkeypatch)
    digests = [
        factory.build_denoiser(
            ModelConfig(name="wan-tiny"),
            autoencoder=contract.AUTOENCODER,
            text=contract.TEXT,
            device=device,
            seed=0,
            compute=torch.bfloat16,
            lora=LoraConfig(rank=2, base=base),
        ).base
        for device in devices
    ]
    assert digests[0] is not None
    assert digests[0] == digests[1]
