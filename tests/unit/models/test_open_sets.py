"""An adapter type and a convention of LoRA files that a program adds work as those of the package do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from reelworks.data.run.folder import RunFolder
from reelworks.models.adapters import conventions, files, inject
from reelworks.models.adapters.adapter_types import registry
from reelworks.models.adapters.adapter_types.adapter_type import AdapterType
from reelworks.models.adapters.config import AdapterName, LoraConfig
from reelworks.models.adapters.conventions import LoraFormat
from reelworks.models.export import exports_folder
from reelworks.models.export.config import ExportsConfig
from reelworks.models.export.lora import LoraFile
from reelworks.testing import contract

NAME = "wan-tiny"


class IA3(AdapterType):
    """Each output of a layer is multiplied by a number (arXiv 2205.05638)."""

    name = "ia3"
    settings = ()
    tensors: ClassVar = {"l": "ia3_l"}
    random = ()
    tiny: ClassVar = {}
    dependence = "an IA3 multiplies what the base gives"

    def peft_config(self, peft: Any, config: LoraConfig, target_modules: str) -> Any:
        return peft.IA3Config(target_modules=target_modules, feedforward_modules=[])

    def split_layer(self, kinds: dict[str, Any], targets: list[Any], config: LoraConfig) -> dict[str, dict[str, Any]]:
        return {target.layer: kinds for target in targets[:1] if target.place.heights == (1,)}

    def peft_settings(self, adapter: Any, layers: Mapping[str, Any]) -> dict[str, Any]:
        return {"peft_type": "IA3", "target_modules": sorted(layers)}

    def released_tensors(self, layers: Mapping[str, Any], convention: Any, rank: int, family: Any) -> dict[str, Any]:
        return {f"{convention.stem(layer)}.ia3_l": kinds["l"] for layer, kinds in layers.items()}

    def candidates(self, shapes: Mapping[str, torch.Size], config: LoraConfig) -> Iterator[dict[str, Any]]:
        if "l" in shapes:
            yield {"type": self.name}

    def depends_on_weight(self, kinds: Collection[str]) -> bool:
        return True

    def delta(self, kinds: Mapping[str, Any], rows: slice = slice(None)) -> Any:
        raise self.no_answer()

    def factors(self, kinds: Mapping[str, Any]) -> Any:
        raise self.no_answer()

    def applied(self, weight: Any, kinds: Mapping[str, Any], strength: float, rows: slice) -> Any:
        return weight * (1 + strength * (kinds["l"][rows] - 1))


class Dashes(conventions.Convention):
    """The layers of the release, with names that no other convention has."""

    name = "dashes"
    usage = "for a program of ours"
    how_to_use = "for ours, open {file}"
    prefixes = ("net-",)
    matrices = ("down-", "up-")
    needs_alpha = True

    def stem(self, layer: str) -> str:
        return super().stem(layer.replace(".", "_"))


@pytest.fixture
def ia3() -> Iterator[LoraConfig]:
    registry.register(IA3())
    yield LoraConfig(type="ia3")
    del registry.TYPES["ia3"]


@pytest.fixture
def dashes() -> Iterator[str]:
    conventions.register(Dashes())
    yield "dashes"
    del conventions.CONVENTIONS["dashes"]


def trained(settings: LoraConfig) -> Any:
    """A tiny network whose adapter has learnt one clip a little."""
    denoiser, inputs = contract.build(NAME), contract.example(contract.shapes(NAME)[-1], NAME, batch=1)
    inject.inject(denoiser, settings, seed=0)
    target = torch.randn(inputs.latent.shape, generator=torch.Generator().manual_seed(2))
    optimizer = torch.optim.AdamW([p for p in denoiser.module.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for _ in range(20):
        loss = (denoiser.predict(inputs) - target).square().mean()
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    assert losses[-1] < 0.95 * losses[0]
    return denoiser


def test_a_type_from_outside_is_trained_written_and_read(tmp_path: Path, ia3: LoraConfig) -> None:
    """It keeps the contract of adapters too, on a base in four bits as well."""
    contract.check_lora(NAME, type="ia3")
    contract.check_lora(NAME, "blocks", type="ia3")
    contract.check_bases(NAME, type="ia3")
    denoiser = trained(ia3)
    state = inject.weights(denoiser.module)
    for format in ("diffusers", "kohya"):
        ia3.require_writable(format, "exports.formats")
        file = LoraFile(format, ia3.adapter, NAME, "transformer").content(state)
        path = tmp_path / f"{format}.safetensors"
        save_file(file.tensors, path, file.header)
        found = files.read(str(path), "lora.weights", dict(denoiser.module.named_parameters()), ia3, denoiser.config)
        assert found.keys() == state.keys()
        assert all(torch.equal(found[key], value) for key, value in state.items())


def test_settings_that_a_type_from_outside_does_not_read_are_refused(ia3: LoraConfig) -> None:
    with pytest.raises(ValidationError, match=r'lora.type = "ia3" has no such setting'):
        LoraConfig(type="ia3", rank=3)


def test_a_convention_from_outside_is_written_and_read(tmp_path: Path, dashes: str) -> None:
    """A recipe may name it, a run says how to use its files, and another run begins with one."""
    assert ExportsConfig(formats=["diffusers", dashes]).formats[1] == dashes  # type: ignore[list-item]
    path = exports_folder.path_of(RunFolder(tmp_path), 3, "ema", dashes)
    assert exports_folder.how_to_use([path], LoraConfig(), "transformer") == [f"{path}: for ours, open {path}"]
    settings = LoraConfig(rank=2)
    denoiser = trained(settings)
    state = inject.weights(denoiser.module)
    file = LoraFile(dashes, settings.adapter, NAME, "transformer").content(state)
    save_file(file.tensors, tmp_path / "lora.safetensors", file.header)
    assert file.header["modelspec.usage_hint"] == "for a program of ours"
    ends = ("down-.weight", "up-.weight", "alpha")
    assert {f"net-blocks_0_self_attn_q.{end}" for end in ends} <= load_file(tmp_path / "lora.safetensors").keys()
    own = dict(denoiser.module.named_parameters())
    found = files.read(str(tmp_path / "lora.safetensors"), "lora.weights", own, settings, denoiser.config)
    assert all(torch.equal(found[key], value) for key, value in state.items())


def test_names_in_schemas_are_those_of_the_registries() -> None:
    """The others are told what may stand there."""
    assert list(registry.TYPES) == list(get_args(get_args(AdapterName)[0]))
    assert list(conventions.CONVENTIONS) == list(get_args(LoraFormat))
    for make in (lambda: LoraConfig(type="ia3"), lambda: ExportsConfig(formats=["dashes"])):
        with pytest.raises(ValidationError, match="Input should be '"):
            make()
