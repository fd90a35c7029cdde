"""A refused adapter file is taken with the lines that its error names, whoever wrote it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from refused import refused
from safetensors.torch import load_file, save_file
from torch import nn

from reelworks.annexes.lora import convert, resize
from reelworks.annexes.lora.request import ConvertLoraRequest, ResizeLoraRequest
from reelworks.core.errors import UserError
from reelworks.models.adapters import files, fit, inject, key_mapping, release_layers
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.training_adapter import TrainingAdapter
from reelworks.models.export.lora import LoraFile
from reelworks.testing import contract

# What a recipe has that begins with the file.
RECIPE = LoraConfig(rank=5, alpha=2.0)


def written(path: Path, name: str, settings: LoraConfig, format: Any) -> dict[str, torch.Tensor]:
    """Write an adapter of random numbers and return its tensors by their names in the network."""
    denoiser = contract.build(name)
    inject.inject(denoiser, settings, seed=0)
    state = {key: torch.randn_like(value) for key, value in inject.weights(denoiser.module).items()}
    file = LoraFile(format, settings.adapter, name, denoiser.config.network.part).content(state)
    # SimpleTuner writes no header.
    save_file({key: value.contiguous() for key, value in file.tensors.items()}, path)
    return state


def begun(name: str, path: Path, settings: LoraConfig) -> dict[str, torch.Tensor]:
    denoiser = contract.build(name)
    inject.inject(denoiser, settings, seed=1)
    files.load_into(denoiser.module, settings.model_copy(update={"weights": str(path)}), denoiser.config)
    return inject.weights(denoiser.module)


FLUX = ["to_q", "transformer_blocks.0.attn.to_v", "to_out.0", "proj_mlp"]


@pytest.mark.parametrize(
    ("name", "format", "settings"),
    [
        ("flux-tiny", "diffusers", LoraConfig(rank=5, targets=FLUX)),
        ("flux-tiny", "comfyui", LoraConfig(rank=3, targets=["to_q", "to_v", "proj_out"])),
        ("flux-tiny", "kohya", LoraConfig(rank=2, targets=["to_q", "to_k", "to_v"])),
        ("wan-i2v-tiny", "kohya", LoraConfig(rank=5, targets=["add_k_proj", "ffn.net.2"])),
        ("sdxl-tiny", "kohya", LoraConfig(rank=4, targets=["attn2.to_q", "proj_in"])),
        ("z-image-tiny", "diffusers", LoraConfig(rank=3, targets="blocks", dora=True)),
        ("flux-tiny", "comfyui", LoraConfig(type="loha", rank=2, targets=["to_q", "to_k", "to_v"])),
        ("wan-tiny", "comfyui", LoraConfig(type="lokr", rank=2, targets=["to_q"])),
        ("wan-tiny", "diffusers", LoraConfig(type="lokr", rank=99, decompose_factor=2, targets="blocks")),
        ("wan-tiny", "kohya", LoraConfig(type="lokr", rank=1, decompose_both=True, decompose_factor=4)),
        ("wan-tiny", "diffusers", LoraConfig(type="oft", block_size=4)),
    ],
    ids=lambda value: value if isinstance(value, str) else value.type,
)
@pytest.mark.quick_cases(4)
def test_the_lines_of_a_refusal_are_those_that_the_file_needs(
    tmp_path: Path, name: str, format: str, settings: LoraConfig
) -> None:
    """Pasted into the recipe, they let it begin with the file."""
    path = tmp_path / "of-another-program.safetensors"
    state = written(path, name, settings, format)
    with pytest.raises(UserError, match=r"set in \[lora\], as the file was trained:") as caught:
        begun(name, path, RECIPE)
    pasted = tomllib.loads("\n".join(caught.value.remedy.splitlines()[1:]))
    kept = {} if pasted.get("type") == "oft" else RECIPE.model_dump(include={"rank", "alpha"})
    found = begun(name, path, LoraConfig.model_validate(kept | pasted))
    assert found.keys() == state.keys()
    # The others are multiplied, since the alpha of the recipe is another one.
    multiplied = {"B", "hada_w1_a", "lokr_w1", "lokr_w1_a"}
    assert all(
        torch.equal(found[key], state[key]) for key, (_, kind) in inject.parts(state).items() if kind not in multiplied
    )


def test_targets_are_the_shortest_names_of_some_layers_and_no_others() -> None:
    """An ending where all layers of that ending are meant, else more of the name."""
    network = contract.build("flux-tiny").module
    layers = [name for name, child in network.named_modules() if isinstance(child, nn.Linear)]
    for asked in (["to_q"], ["to_out.0", "x_embedder"], ["transformer_blocks.0.attn.to_q"], layers):
        meant = {layer for layer in layers if any(inject.matches(name, layer) for name in asked)}
        endings = fit._endings(layers, meant)
        assert {layer for layer in layers if any(inject.matches(name, layer) for name in endings)} == meant
        assert len(endings) <= len(asked)


def test_training_begins_from_a_file_with_tensors_of_other_kinds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its updates are taken, and a warning names what is left out; but of an update of another form nothing is taken."""
    settings, path = LoraConfig(rank=3, targets=["to_q"]), tmp_path / "lora.safetensors"
    wanted = written(path, "wan-tiny", settings, "comfyui")
    tensors = load_file(path)
    layer = next(iter(tensors)).removesuffix(".lora_A.weight")
    text = "lora_te1_text_model_encoder_layers_0_self_attn_q_proj.lora_down.weight"
    others = (f"{layer}.diff_b", "diffusion_model.blocks.0.norm3.diff", "bundle_emb.x.string_to_param.*", text)
    save_file(tensors | {key: torch.ones(4, 8) for key in others}, path)
    found = begun("wan-tiny", path, settings)
    assert all(torch.equal(found[key], value) for key, value in wanted.items())
    (told,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert "embeddings of words × 1" in told
    assert "differences of biases (.diff_b) × 1" in told
    save_file(tensors | {f"{layer}.lora_E": torch.ones(3, 1)}, path)
    with refused("lora-does-not-fit", says="1 of its"):
        begun("wan-tiny", path, settings)


def test_a_file_of_several_ranks_is_taken_once_they_are_as_its_error_says(tmp_path: Path) -> None:
    path, same, tensors = tmp_path / "a.safetensors", tmp_path / "b.safetensors", dict[str, torch.Tensor]()
    for target, rank in (("to_q", 5), ("to_k", 3)):
        written(path, "flux-tiny", LoraConfig(rank=rank, targets=[target]), "diffusers")
        tensors |= load_file(path)
    save_file(tensors, path)
    settings = LoraConfig(rank=5, targets=["to_q", "to_k"])
    with refused("lora-settings-differ", "lora.rank", says="rank 3, 5, and all layers must have one") as caught:
        begun("flux-tiny", path, settings)
    (rank,) = re.findall(r"lower all ranks to (\d) with `reelworks lora resize`", caught.value.remedy)
    resize.resize(ResizeLoraRequest(file=path, output=same, rank=int(rank)))
    assert begun("flux-tiny", same, settings.model_copy(update={"rank": int(rank)}))


@pytest.mark.parametrize("name", ["flux-tiny", "chroma-tiny"])
def test_a_release_whose_rows_are_those_of_other_parts_is_another_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """FLUX.2 and FLUX.1 call a layer alike, and theirs has 9 and 7 units of rows; so may full weights, and the `lora` commands."""
    monkeypatch.setattr(fit, "closest_base", lambda shapes: "")  # which builds all networks
    path = tmp_path / "flux2.safetensors"
    written(path, "flux2-tiny", LoraConfig(rank=4), "comfyui")
    with refused("lora-does-not-fit", "lora.weights", says="single_blocks.0.linear1"):
        begun(name, path, LoraConfig(rank=4))
    denoiser = contract.build(name)
    with refused("training-adapter-does-not-fit", "lora.training_adapter", says="single_blocks.0.linear1"):
        TrainingAdapter.read(str(path)).attach(denoiser.module, denoiser.config)
    with refused("lora-does-not-fit", "file", says=f"{name} has "):
        convert.convert(ConvertLoraRequest(file=path, to="diffusers", output=tmp_path / "b.safetensors", model=name))
    tensors = {"single_blocks.0.linear1.weight": torch.zeros(288, 2)}
    own = [key for key in denoiser.module.state_dict() if "single_transformer_blocks.0" in key]
    assert release_layers.take_apart(tensors, own, denoiser.config).keys() == tensors.keys()


def test_a_file_without_tensors_is_said_to_have_none(tmp_path: Path) -> None:
    save_file({}, tmp_path / "lora.safetensors")
    with refused("weights-unreadable", "lora.weights", says="holds no tensors"):
        begun("wan-tiny", tmp_path / "lora.safetensors", RECIPE)


@pytest.mark.parametrize("others", ["transformer_2", "controlnet", "text_encoder"])
def test_settings_of_another_part_of_a_pipeline_are_none_of_the_network(tmp_path: Path, others: str) -> None:
    """As diffusers reads a header: by the name before each setting, wherever it stands."""
    path, settings = tmp_path / "lora.safetensors", LoraConfig(rank=3, targets=["to_q"])
    state = written(path, "wan-tiny", settings, "diffusers")
    parts = {"transformer": 6, others: 12}
    header = {
        f"{part}.{key}": value for part, alpha in parts.items() for key, value in (("r", 3), ("lora_alpha", alpha))
    }
    save_file(load_file(path), path, {key_mapping.METADATA: json.dumps(header)})
    found = begun("wan-tiny", path, settings)
    assert all(
        torch.equal(found[key], state[key] * (2 if kind == "B" else 1))
        for key, (_, kind) in inject.parts(state).items()
    )
