"""Which device trains, and what is told of it: by patches of what torch and the system say."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import second_device
import tiny_recipe
import torch

from reelworks.core import device_memory, gpus, machine
from reelworks.core.errors import UserError
from reelworks.data.distributed import mesh
from reelworks.models.attention import torch_kernels
from reelworks.quickstart import quickstart
from reelworks.training.memory import recomputation
from reelworks.training.recipe import device_limits, recipe_file


def be_a_mac(patch: pytest.MonkeyPatch, macos: int = 15, **states: bool) -> None:
    """Let torch and the system say that this is a Mac."""
    said = {"is_built": True, "is_available": True} | states
    patch.setattr(sys, "platform", "darwin")
    patch.setattr(platform, "machine", lambda: "arm64")
    patch.setattr(platform, "mac_ver", lambda: (f"{macos}.1", ("", "", ""), "arm64"))
    patch.setattr(torch.cuda, "is_available", lambda: False)
    for name, value in said.items():
        patch.setattr(torch.backends.mps, name, lambda value=value: value)
    patch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: (macos, 1) >= (major, minor))


def test_a_mac_trains_on_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    be_a_mac(monkeypatch)
    assert machine.default_device() == machine.default_device(0) == torch.device("mps:0")
    assert machine.exact_device(machine.default_device()) == torch.device("cpu")
    assert (machine.why_cpu(), machine.has_gpu()) == ("", True)
    environment: dict[str, str] = {}
    machine.let_mps_fall_back(environment)
    assert environment == {"PYTORCH_ENABLE_MPS_FALLBACK": "1"}
    machine.let_mps_fall_back(given := {"PYTORCH_ENABLE_MPS_FALLBACK": "0"})
    assert given == {"PYTORCH_ENABLE_MPS_FALLBACK": "0"}


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ({"macos": 13}, "from macOS 14, and this is 13.1"),
        ({"is_available": False}, "finds no GPU"),
        ({"is_available": False, "is_built": False}, "not built for Apple's GPUs"),
    ],
)
def test_a_mac_says_why_its_cpu_trains(monkeypatch: pytest.MonkeyPatch, states: dict[str, Any], reason: str) -> None:
    be_a_mac(monkeypatch, **states)
    assert machine.default_device() == torch.device("cpu")
    assert reason in machine.why_cpu()


def test_the_cpu_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    be_a_mac(monkeypatch)
    monkeypatch.setenv("REELWORKS_DEVICE", "cpu")
    assert machine.default_device() == torch.device("cpu")
    assert machine.why_cpu() == "REELWORKS_DEVICE is set"
    monkeypatch.setenv("REELWORKS_DEVICE", "mps")
    with pytest.raises(UserError, match="set it to cpu"):
        machine.default_device()


@pytest.mark.parametrize("system", ["Windows", "Linux"])
def test_a_card_is_seen_by_its_drivers_file_on_each_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str
) -> None:
    """Plans, `new lora` and the start of a training ask for it, with a torch that can use it and with one that cannot."""
    library = tmp_path / "System32" / "nvcuda.dll"
    library.parent.mkdir()
    monkeypatch.setenv("SYSTEMROOT", str(tmp_path))
    monkeypatch.setattr(machine, "_GPU_FILES", ())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA GeForce RTX 3090")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(total_memory=24 << 30))
    recipe = recipe_file.parse(tiny_recipe.of_family("wan-tiny", tmp_path / "run", {"path": str(tmp_path)}))
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"gradient_checkpointing": "auto"})})
    request = SimpleNamespace(vram_gb=None, named_gpu=None)
    assert (gpus.here(), quickstart._vram_bytes(request)) == (None, None)
    if system == "Windows":
        library.touch()
    else:
        monkeypatch.setattr(machine, "_GPU_FILES", (str(tmp_path),))
    assert (gpus.here(), quickstart._vram_bytes(request)) == (gpus.GPUS["RTX 3090"], 24 << 30)
    assert recomputation.cards_for(recipe, 1).limit_bytes == recomputation.limit(recipe, 24 << 30)
    assert machine.why_cpu() == ""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine.why_cpu() == f"this torch is for {machine.torch_target()}, and finds no GPU that it can use"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert machine.torch_target() == "CUDA 13.0"


def test_a_machine_without_a_gpu_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine.let_mps_fall_back(environment := {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine, "_GPU_FILES", ())
    assert (machine.why_cpu(), environment) == ("", {})
    assert device_memory.total_bytes(torch.device("cpu")) is None


def test_several_ranks_are_refused_on_apples_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    second_device.use_as_apples(monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="train with one process"), mesh.join():
        pass


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"lora": {"rank": 2, "base": "float8"}}, "lora.base"),
        ({"lora": {"rank": 2, "base": "int8", "int8_products": True}}, "lora.int8_products"),
        ({"train": {"compile": True}}, "train.compile"),
        ({"train": {"optimizer": "adamw8bit"}}, "train.optimizer"),
        ({"parallel": {"offload": True}}, "parallel.offload"),
        ({"lora": {"rank": 2, "base": "int8"}}, None),
        ({}, None),
    ],
)
def test_what_apples_gpu_lacks_is_refused(tmp_path: Path, changes: dict[str, Any], field: str | None) -> None:
    recipe = recipe_file.parse(
        tiny_recipe.changed(tiny_recipe.of_family("wan-tiny", tmp_path / "run", {"path": str(tmp_path)}), changes)
    )
    device_limits.require(recipe, torch.device("cpu"))
    if field is None:
        device_limits.require(recipe, torch.device("mps"))
        return
    with pytest.raises(UserError) as refused:
        device_limits.require(recipe, torch.device("mps"))
    assert refused.value.field == field


@pytest.mark.parametrize(("hip", "named"), [("7.1.2", "ROCm 7.1.2, MIOpen 3005001"), (None, "cuDNN 3005001")])
def test_kernels_are_told_by_the_library_that_has_them(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, named: str
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "AMD Instinct MI300X")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 3005001)
    assert torch_kernels.versions() == f"torch {torch.__version__} {named} on AMD Instinct MI300X"
