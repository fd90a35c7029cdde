"""A damaged file of a LoRA is refused alike to begin with, as a training adapter, and by the commands for files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refused import refused
from safetensors.torch import load_file, save_file
from test_lora_fit import begun, written
from torch import Tensor

from reelworks.annexes.lora import convert, info
from reelworks.annexes.lora.request import ConvertLoraRequest, LoraInfoRequest
from reelworks.models import base_model, identify, registry
from reelworks.models.adapters import closest, files, key_mapping, text_encoders
from reelworks.models.adapters.adapter_types.registry import LORA as LORA_TYPE
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.key_mapping import METADATA
from reelworks.models.adapters.training_adapter import TrainingAdapter
from reelworks.models.base_model import Base
from reelworks.testing import contract

LORA = LoraConfig(rank=3, targets=["to_q"])


@pytest.fixture
def good(tmp_path: Path) -> dict[str, Tensor]:
    written(tmp_path / "good.safetensors", "wan-tiny", LORA, "comfyui")
    return load_file(tmp_path / "good.safetensors")


def of(format: str, tmp_path: Path) -> dict[str, Tensor]:
    written(tmp_path / "other.safetensors", "wan-tiny", LORA, format)
    return load_file(tmp_path / "other.safetensors")


def refused_as_each(path: Path, problem: str) -> None:
    with refused("lora-unreadable", "lora.weights", says=problem):
        begun("wan-tiny", path, LORA)
    with refused("lora-unreadable", "lora.training_adapter", says=problem):
        denoiser = contract.build("wan-tiny")
        TrainingAdapter.read(str(path)).attach(denoiser.module, denoiser.config)
    assert any(problem in each for each in info.info(LoraInfoRequest(file=path)).result.notes)


def test_layers_tell_the_model_of_a_file_whose_header_names_none(
    tmp_path: Path, good: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of families whose networks name no layer so, the tiny ones are built alone: all others take seconds together."""
    names = [name for name in registry.PRESETS if name.endswith("tiny")] + ["wan-2.1-1.3b", "flux-dev", "ltx-2"]
    monkeypatch.setattr(registry, "PRESETS", {name: registry.PRESETS[name] for name in names})
    built, network = set[str](), identify.network

    def noted(name: str) -> Any:
        built.add(name)
        return network(name)

    monkeypatch.setattr(identify, "network", noted)
    closest._spelt.cache_clear()
    closest._names.cache_clear()
    save_file(good, tmp_path / "file.safetensors")
    assert "wan-tiny" in info.info(LoraInfoRequest(file=tmp_path / "file.safetensors")).models
    assert [name for name in names if name in built and not name.endswith("tiny")] == ["wan-2.1-1.3b"]


FIRST = "diffusion_model.blocks.0.self_attn.q"
A, B, ALPHA = ".lora_A.weight", ".lora_B.weight", ".alpha"


@pytest.mark.parametrize(
    ("part", "change", "problem"),
    [
        (A, lambda value: value * torch.nan, "holds infinities, NaN"),
        (B, lambda value: value + torch.inf, "holds infinities, NaN"),
        (B, lambda value: value.sign() * 1e30, "holds infinities, NaN"),
        (A, lambda value: value.to(torch.int8), "stored in whole numbers"),
        (A, lambda value: value > 0, "stored in whole numbers"),
        (A, lambda value: value[:0], "do not belong together"),
        (A, lambda value: value[:2], "do not belong together"),
        (A, lambda value: value.flatten(), "do not belong together"),
        (A, lambda value: value[0, 0], "do not belong together"),
        (B, lambda value: value[0, 0], "do not belong together"),
    ],
)
@pytest.mark.quick_cases(6)
def test_tensors_that_no_training_gives(
    tmp_path: Path, good: dict[str, Tensor], part: str, change: Callable[[Tensor], Tensor], problem: str
) -> None:
    key = next(key for key in good if key.endswith(part))
    save_file({**good, key: change(good[key]).contiguous()}, tmp_path / "bad.safetensors")
    refused_as_each(tmp_path / "bad.safetensors", problem)


@pytest.mark.parametrize(
    "shapes",
    [
        {"lora_A.weight": (24,), "lora_B.weight": (24,)},
        {"lora_down.weight": (2,), "lora_up.weight": (24, 2)},
        {"lokr_w1": (4,), "lokr_w2": (6, 24)},
        {"lokr_w1": (4,), "lokr_w2": (6,)},
        {"hada_w1_a": (24,), "hada_w1_b": (24,), "hada_w2_a": (24,), "hada_w2_b": (24,)},
        {"oft_R.weight": (6,)},
    ],
)
def test_vectors_in_place_of_matrices(tmp_path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    save_file({f"{FIRST}.{end}": torch.ones(shape) for end, shape in shapes.items()}, tmp_path / "bad.safetensors")
    with refused("lora-unreadable", "lora.weights", says="do not belong together"):
        begun("wan-tiny", tmp_path / "bad.safetensors", LORA)
    told = info.info(LoraInfoRequest(file=tmp_path / "bad.safetensors", model="wan-tiny"))
    assert "do not belong together" in told.result.notes[0]


def test_a_rank_of_0(tmp_path: Path, good: dict[str, Tensor]) -> None:
    empty = {key: value[:0] if key.endswith(A) else value[:, :0] for key, value in good.items()}
    save_file({key: value.contiguous() for key, value in empty.items()}, tmp_path / "bad.safetensors")
    refused_as_each(tmp_path / "bad.safetensors", "rank 0")


@pytest.mark.parametrize("part", [A, B])
def test_a_part_of_an_update(tmp_path: Path, good: dict[str, Tensor], part: str) -> None:
    """Training without it would begin from, or stand on, another network than the one that the file was made for."""
    lost = next(key for key in good if key.endswith(part))
    save_file({key: value for key, value in good.items() if key != lost}, tmp_path / "bad.safetensors")
    path, says = tmp_path / "bad.safetensors", "only a part"
    with refused("lora-unreadable", "lora.weights", says=says):
        begun("wan-tiny", path, LORA)
    with refused("lora-unreadable", "lora.training_adapter", says=says):
        TrainingAdapter.read(str(path))


@pytest.mark.parametrize(
    "alpha", [torch.tensor(torch.nan), torch.tensor(-torch.inf), torch.ones(2), torch.ones(0), torch.zeros(())]
)
def test_alphas_that_are_none(tmp_path: Path, good: dict[str, Tensor], alpha: Tensor) -> None:
    alphas = {key.replace(A, ALPHA): alpha.clone() for key in good if key.endswith(A)}
    save_file({**good, **alphas}, tmp_path / "bad.safetensors")
    with refused("lora-unreadable", "lora.weights"):
        begun("wan-tiny", tmp_path / "bad.safetensors", LORA)
    denoiser = contract.build("wan-tiny")
    with refused("lora-unreadable", "lora.training_adapter"):
        TrainingAdapter.read(str(tmp_path / "bad.safetensors")).attach(denoiser.module, denoiser.config)


@pytest.mark.parametrize(
    "settings",
    [
        "[]", '[["r", 1]]', '"r"', "5", "", "{", "[" * 100_000, '{"r": 3, "lora_alpha": "16"}', '{"r": 3, "lora_alpha": [1]}',
        '{"r": 3, "lora_alpha": NaN}', '{"r": 3, "lora_alpha": 0}', '{"r": 3, "lora_alpha": 1e999}', '{"r": "x", "lora_alpha": {}}',
    ],
)  # fmt: skip
def test_settings_that_are_none(tmp_path: Path, settings: str) -> None:
    save_file(of("diffusers", tmp_path), tmp_path / "bad.safetensors", {METADATA: settings})
    with refused("lora-unreadable", "lora.weights"):
        begun("wan-tiny", tmp_path / "bad.safetensors", LORA)
    denoiser = contract.build("wan-tiny")
    with refused("lora-unreadable", "lora.training_adapter"):
        TrainingAdapter.read(str(tmp_path / "bad.safetensors")).attach(denoiser.module, denoiser.config)


def test_two_updates_of_a_layer_under_two_prefixes(tmp_path: Path, good: dict[str, Tensor]) -> None:
    twice = good | {key.replace("diffusion_model.", "unet."): value.clone() for key, value in good.items()}
    save_file(twice, tmp_path / "bad.safetensors")
    refused_as_each(tmp_path / "bad.safetensors", "several updates of one layer")


@pytest.mark.parametrize("formats", [("kohya", "diffusers"), ("diffusers", "kohya"), ("comfyui", "diffusers")])
@pytest.mark.quick_cases(1)
def test_two_updates_of_a_layer_one_of_which_joins_it_with_others(tmp_path: Path, formats: tuple[str, str]) -> None:
    """Neither is chosen: what one names as query, key and value, the other may name as one layer."""
    settings, tensors, path = LoraConfig(rank=2, targets=["to_q", "to_k", "to_v"]), {}, tmp_path / "both.safetensors"
    for format in formats:
        written(path, "flux-tiny", settings, format)
        tensors |= {key: value.clone() for key, value in load_file(path).items()}
    save_file(tensors, path)
    says = "several updates of one layer"
    with refused("lora-unreadable", "lora.weights", says=says):
        begun("flux-tiny", path, settings)
    with refused("lora-unreadable", "lora.training_adapter", says=says):
        denoiser = contract.build("flux-tiny")
        TrainingAdapter.read(str(path)).attach(denoiser.module, denoiser.config)
    request = ConvertLoraRequest(file=path, to="kohya", output=tmp_path / "c.safetensors", model="flux-tiny")
    with refused("lora-unreadable", "file", says=says):
        convert.convert(request)


@pytest.mark.parametrize("end", [".lora_down.weight", ".lora_A.default.weight", ".lora.down.weight"])
def test_two_tensors_of_one_kind(tmp_path: Path, good: dict[str, Tensor], end: str) -> None:
    key = next(key for key in good if key.endswith(A))
    save_file({**good, key.replace(A, end): good[key] * 2}, tmp_path / "bad.safetensors")
    with refused("lora-unreadable", "lora.weights", says="two tensors of one kind"):
        begun("wan-tiny", tmp_path / "bad.safetensors", LORA)
    told = info.info(LoraInfoRequest(file=tmp_path / "bad.safetensors", model="wan-tiny"))
    assert told.others == {"parts of LoRAs": 3}  # is left out, and named


@pytest.mark.parametrize("described", ["[]", "x", '{"model": 1}', '{"a_later_key": 1}', "[" * 100_000])
def test_a_base_that_is_not_understood_is_none(
    tmp_path: Path, good: dict[str, Tensor], caplog: pytest.LogCaptureFixture, described: str
) -> None:
    save_file(good, tmp_path / "file.safetensors", {files.BASE: described})
    here = Base("wan-tiny", None, base_model.digest(good))
    files.warn_of_base(str(tmp_path / "file.safetensors"), here)
    assert caplog.records == []
    begun("wan-tiny", tmp_path / "file.safetensors", LORA)


def test_settings_for_each_layer_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not once for each layer: a file of thousands would take minutes."""
    names = [f"blocks.{number}.to_q" for number in range(200)]
    header = {METADATA: json.dumps({"r": 4, "lora_alpha": 4, "alpha_pattern": dict.fromkeys(names, 2)})}
    asked, within = [], text_encoders.within
    monkeypatch.setattr(text_encoders, "within", lambda layer: asked.append(layer) or within(layer))
    kinds = {"A": torch.ones(4, 2)}
    for name in names:
        assert key_mapping.stored_scale(LORA_TYPE, kinds, key_mapping.settings_of(header, name), name) == 0.5
    assert len(asked) <= 2 * len(names)


def test_a_training_adapter_of_another_scale_is_another_one(tmp_path: Path) -> None:
    """Its scale may be in the header alone, and what a run was trained with must not change at a resume."""
    tensors, digests = of("diffusers", tmp_path), []
    for alpha in (3, 300):
        save_file(tensors, tmp_path / "file.safetensors", {METADATA: json.dumps({"r": 3, "lora_alpha": alpha})})
        digests.append(TrainingAdapter.read(str(tmp_path / "file.safetensors")).digest())
    save_file(tensors, tmp_path / "file.safetensors", {METADATA: json.dumps({"lora_alpha": 300, "r": 3})})
    digests.append(TrainingAdapter.read(str(tmp_path / "file.safetensors")).digest())
    assert digests[0] != digests[1] == digests[2]


def test_each_family_has_a_tiny_network() -> None:
    """By the names of whose layers files are told apart."""
    families = {name: registry.family_of(name).name for name in registry.PRESETS}
    assert {family for name, family in families.items() if "tiny" in name} == {*families.values()}


def test_lengths_that_are_not_those_of_the_rows(tmp_path: Path) -> None:
    dora = LoraConfig(rank=3, targets=["to_q"], dora=True)
    written(tmp_path / "dora.safetensors", "wan-tiny", dora, "diffusers")
    state = load_file(tmp_path / "dora.safetensors")
    key = next(key for key in state if "magnitude" in key)
    save_file({**state, key: state[key][:-1].contiguous()}, tmp_path / "bad.safetensors")
    with refused("lora-unreadable", "lora.weights", says="do not belong together"):
        begun("wan-tiny", tmp_path / "bad.safetensors", dora)
