"""A tensor of another kind hides no update: `info` tells of it, and the other tools keep it, add it, or leave it out by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_files import SHAPES, header_of, lora, random, updates_of
from refused import refused
from safetensors.torch import load, load_file, save_file
from torch import Tensor, nn

from reelworks.annexes.lora import apply, convert, info, merge, resize
from reelworks.annexes.lora.info import LoraInfo
from reelworks.annexes.lora.request import (
    ApplyLorasRequest,
    ConvertLoraRequest,
    LoraInfoRequest,
    MergeLorasRequest,
    ResizeLoraRequest,
)
from reelworks.models.adapters import release_layers
from reelworks.testing import contract

LAYER = "diffusion_model.blocks.0.self_attn.q"  # (12, 8), which has an update of rank 4
ALONE = "diffusion_model.blocks.7.x"
# Tensors and what they are; the first ones stand beside an update of the layer.
BESIDE: dict[str, tuple[str, tuple[int, ...]]] = {
    f"{LAYER}.diff_b": ("differences of biases (.diff_b)", (12,)),
    f"{LAYER}.lora_B.bias": ("biases of LoRAs", (12,)),
    f"{LAYER}.bias": ("whole weights and biases", (12,)),
    f"{LAYER}.base_layer.weight": ("whole weights and biases", (12, 8)),
    f"{LAYER}.reshape_weight": ("new shapes of weights (.reshape_weight)", (2,)),
    "bundle_emb.cat.string_to_param.*": ("embeddings of words", (2, 768)),
    "emb_params": ("embeddings of words", (2, 768)),
    "clip_g": ("embeddings of words", (2, 1280)),
    f"{ALONE}.diff": ("differences of weights (.diff)", (6,)),
    f"{ALONE}.w_norm": ("differences of norms (.w_norm)", (6,)),
    f"{ALONE}.norm.set_weight": ("replacements of weights (.set_weight)", (6,)),
    f"{ALONE}.norm.weight": ("whole weights and biases", (6,)),
    f"{ALONE}.alpha": ("alphas without an update", (1,)),
    f"{ALONE}.dora_scale": ("magnitudes of DoRAs", (6, 1)),
    f"{ALONE}.a1.weight": ("parts of GLoRAs", (4, 6)),
    f"{ALONE}.oft_blocks": ("parts of OFTs of another form", (2, 4, 4)),
    f"{ALONE}.ia3_l": ("parts of IA³", (6, 1)),
    f"{ALONE}.hra_u": ("tensors named hra_u", (6, 2)),
    "lora_controlnet": ("parts of a Control-LoRA", (0,)),
    "v_pred": ("tensors named v_pred", (0,)),
}


def told(path: Path) -> LoraInfo:
    return info.info(LoraInfoRequest(file=path, model="wan-tiny"))


def with_others(path: Path, others: dict[str, Tensor]) -> dict[str, Tensor]:
    updates = lora(path)
    save_file(load(path.read_bytes()) | others, path)
    return updates


@pytest.mark.parametrize("key", BESIDE)
def test_a_tensor_beside_updates_hides_none(tmp_path: Path, key: str) -> None:
    what, shape = BESIDE[key]
    path, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    value = random(*shape, seed=1)
    updates = with_others(path, {key: value})
    found = told(path)
    assert (found.others, found.types, found.result.notes) == ({what: 1}, {"lora": 3}, [])
    wanted = {f"diffusion_model.{layer}": update for layer, update in updates.items()}
    result = resize.resize(ResizeLoraRequest(file=path, output=target, keep=1.0))
    assert result.notes == [f"kept as stored: {what} × 1: {key}"]
    after = load_file(target)
    assert torch.equal(after[key], value)
    save_file({name: each for name, each in after.items() if name != key}, target)
    torch.testing.assert_close(updates_of(target), wanted, rtol=1e-4, atol=1e-4)
    result = merge.merge(MergeLorasRequest(files=[f"{path}=2"], output=target, overwrite=True))
    verb = "added" if key.endswith((".diff", ".diff_b", "_norm")) else "left out"
    assert result.notes == [f"{path}: {verb}: {what} × 1: {key}"]
    after = load_file(target)
    assert (key in after) == (verb == "added")
    assert verb != "added" or torch.equal(after.pop(key), 2 * value)
    save_file(after, target)
    torch.testing.assert_close(
        updates_of(target), {name: 2 * each for name, each in wanted.items()}, rtol=1e-4, atol=1e-4
    )


def test_all_kinds_together_are_counted_and_left_out_by_name(tmp_path: Path) -> None:
    path, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    with_others(path, {key: random(*shape, seed=1) for key, (_, shape) in BESIDE.items()})
    counts = {what: sum(each == what for each, _ in BESIDE.values()) for what, _ in BESIDE.values()}
    assert told(path).others == counts
    result = convert.convert(ConvertLoraRequest(file=path, output=target, to="kohya", model="wan-tiny"))
    assert len(result.notes) == len(counts)
    assert all(note.startswith(f"{path}: left out: ") for note in result.notes)
    assert {key.partition(".")[0] for key in load_file(target)} == {
        f"lora_unet_{layer.replace('.', '_')}" for layer in SHAPES
    }


# Tensors that make another update of the layer's, so that what is left of it is none.
SPOILING: dict[str, dict[str, tuple[int, ...]]] = {
    "a LoHa in three factors": {f"hada_{each}": (2, 2) for each in ("w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2")},
    "a LoKr in three factors": {f"lokr_{each}": (2, 2) for each in ("w1", "w2_a", "w2_b", "t2")},
    "a LoKr with magnitudes": {"lokr_w1": (2, 2), "lokr_w2": (3, 3), "dora_scale": (6, 1)},
    "an AdaLoRA": {"lora_A": (2, 6), "lora_B": (6, 2), "lora_E": (2, 1)},
    "two spellings": {f"lora_{each}.weight": (2, 2) for each in ("A", "B", "down", "up")},
    "a LoRA and a LoKr": {"lora_A.weight": (2, 6), "lora_B.weight": (6, 2), "lokr_w1": (2, 2), "lokr_w2": (3, 3)},
}


@pytest.mark.parametrize("kind", SPOILING)
def test_an_update_of_another_form_is_left_out_whole(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    others = {f"{ALONE}.{end}": random(*shape, seed=2) for end, shape in SPOILING[kind].items()}
    with_others(path, others | {f"{ALONE}.alpha": torch.tensor(1.0)})
    found = told(path)
    assert (found.types, sum(found.others.values())) == ({"lora": 3}, len(others) + 1)
    result = merge.merge(MergeLorasRequest(files=[str(path)], output=target))
    assert all("left out" in note for note in result.notes)
    assert not any(key.startswith(ALONE) for key in load_file(target))
    save_file(others, path)
    assert sum(told(path).others.values()) == len(others)
    with refused("not-a-lora", "files", says="no update that is read here: .*parts of ") as caught:
        merge.merge(MergeLorasRequest(files=[str(path)], output=target, overwrite=True))
    assert "download" not in caught.value.remedy


def test_a_file_of_other_tensors_alone_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({key: random(*shape, seed=1) for key, (_, shape) in BESIDE.items() if LAYER not in key}, path)
    found = told(path)
    assert (found.types, found.readers, found.models) == ({}, {}, [])
    assert sum(found.others.values()) == len(load_file(path))
    save_file({}, path)
    assert told(path).result.notes == ["it holds no tensors"]


@pytest.mark.parametrize("rows", [12, 8])
def test_a_dora_by_columns_is_sound_and_said_to_be_so(tmp_path: Path, rows: int) -> None:
    """Also of a square weight, which has as many columns as rows."""
    path, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    lora(path, {"blocks.0.self_attn.q": (rows, 8)})
    save_file(load(path.read_bytes()) | {f"{LAYER}.dora_scale": torch.ones(1, 8)}, path)
    found = told(path)
    assert (found.others, found.types, found.result.notes) == ({"DoRAs by columns": 3}, {}, [])
    with refused("lora-unreadable", "files", says="magnitudes of this DoRA are those of columns") as caught:
        merge.merge(MergeLorasRequest(files=[str(path)], output=target))
    assert "download" not in caught.value.remedy


def test_differences_are_added_to_full_weights_and_to_each_other(tmp_path: Path) -> None:
    """Of norms, biases and weights, each times the strength; those without a place in the base are left out."""
    base, one, two, out = (
        tmp_path / "base.safetensors",
        tmp_path / "a.safetensors",
        tmp_path / "b.safetensors",
        tmp_path / "out",
    )
    weights = {f"{layer}.weight": random(*shape, seed=1) for layer, shape in SHAPES.items()}
    weights |= {"blocks.0.self_attn.q.bias": random(12, seed=3), "blocks.0.norm3.weight": random(6, seed=4)}
    save_file({**weights, "blocks.0.free.weight": random(5, 4, seed=5)}, base)
    others = {f"{LAYER}.diff_b": random(12, seed=6), "diffusion_model.blocks.0.norm3.diff": random(6, seed=7)}
    others["diffusion_model.blocks.0.free.diff"] = random(5, 4, seed=8)
    lost = {"diffusion_model.blocks.99.norm3.diff": random(6, seed=9)}
    updates = with_others(one, others | lost)
    result = apply.apply(ApplyLorasRequest(base=base, files=[f"{one}=0.5"], output=out))
    assert result.notes == [f"{one}: left out: differences of weights (.diff) × 1: {next(iter(lost))}"]
    after = load_file(out / "base.safetensors")
    for layer, update in updates.items():
        torch.testing.assert_close(after[f"{layer}.weight"], weights[f"{layer}.weight"] + 0.5 * update.float())
    for key, name in zip(others, ("self_attn.q.bias", "norm3.weight", "free.weight"), strict=True):
        torch.testing.assert_close(after[f"blocks.0.{name}"], load_file(base)[f"blocks.0.{name}"] + 0.5 * others[key])
    with_others(two, {f"{LAYER}.diff_b": random(12, seed=10)})
    merge.merge(MergeLorasRequest(files=[f"{one}=2", f"{two}=-1"], output=tmp_path / "c.safetensors"))
    merged = load_file(tmp_path / "c.safetensors")
    torch.testing.assert_close(merged[f"{LAYER}.diff_b"], 2 * others[f"{LAYER}.diff_b"] - random(12, seed=10))
    assert {*others, *lost} <= merged.keys()


# Text encoders

CLIP = {f"text_model.encoder.layers.{i}.self_attn.{name}": (8, 8) for i in range(2) for name in ("q_proj", "v_proj")}
Names = dict[str, tuple[str, str, str]]
OF_NETWORK: Names = {
    "kohya": ("lora_unet_", "lora_down", "lora_up"),
    "comfyui": ("diffusion_model.", "lora_A", "lora_B"),
    "diffusers": ("unet.", "lora_A", "lora_B"),
    "none": ("", "lora_A", "lora_B"),
}
OF_TEXTS: Names = {
    "kohya": ("lora_te1_", "lora_down", "lora_up"),
    "diffusers": ("text_encoder.", "lora_A", "lora_B"),
}
UNET = {"diffusers": "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q"}
UNET["none"] = UNET["diffusers"]
UNET |= dict.fromkeys(("kohya", "comfyui"), "input_blocks.3.1.transformer_blocks.0.attn1.to_q")


@pytest.mark.parametrize("texts", OF_TEXTS)
@pytest.mark.parametrize("network", OF_NETWORK)
@pytest.mark.parametrize("order", [1, -1])
def test_a_lora_of_text_encoders_is_merged_with_one_of_the_network(
    tmp_path: Path, network: str, texts: str, order: int
) -> None:
    """Into one file that has both, in names that the first one's readers know."""
    one, two, target = (tmp_path / f"{name}.safetensors" for name in "abc")
    prefix, *matrices = OF_NETWORK[network]
    of_network: Any = lora(one, {UNET[network]: (32, 32)}, prefix=prefix, matrices=tuple(matrices))
    prefix, *matrices = OF_TEXTS[texts]
    of_texts: Any = lora(two, CLIP, prefix=prefix, matrices=tuple(matrices), seed=40)
    asked = MergeLorasRequest(files=[str(one), f"{two}=0.5"][::order], output=target, model="sdxl-tiny")
    merge.merge(asked)
    found = {key.replace(".", "_"): value for key, value in updates_of(target).items()}
    assert len(found) == len(of_network) + len(of_texts)
    for layer, update in of_texts.items():
        (stem,) = [key for key in found if key.endswith(layer.replace(".", "_"))]
        torch.testing.assert_close(found[stem], 0.5 * update, rtol=1e-5, atol=1e-5)
    (stem,) = [key for key in found if "to_q" in key]
    torch.testing.assert_close(found[stem], next(iter(of_network.values())), rtol=1e-5, atol=1e-5)


def test_diffusers_loads_a_merged_file_into_both(tmp_path: Path) -> None:
    """With its own code, into a tiny CLIP and a tiny UNet."""
    import diffusers
    from transformers import CLIPTextConfig, CLIPTextModel

    from reelworks.testing import contract

    one, two, target = (tmp_path / f"{name}.safetensors" for name in "abc")
    lora(one, {UNET["diffusers"]: (32, 32)}, prefix="unet.")
    of_texts = lora(two, CLIP, prefix="lora_te1_", matrices=("lora_down", "lora_up"), alpha=4.0, seed=40)
    merge.merge(MergeLorasRequest(files=[str(one), str(two)], output=target, model="sdxl-tiny"))
    config = CLIPTextConfig(
        hidden_size=8, intermediate_size=16, num_attention_heads=2, num_hidden_layers=2, vocab_size=99
    )
    encoder, unet = CLIPTextModel(config), contract.build("sdxl-tiny").module
    pipeline = diffusers.StableDiffusionXLPipeline
    state, alphas = pipeline.lora_state_dict(load_file(target), unet_config=unet.config)
    pipeline.load_lora_into_unet(state, network_alphas=alphas, unet=unet)
    pipeline.load_lora_into_text_encoder(state, network_alphas=alphas, text_encoder=encoder, prefix="text_encoder")
    changed = {
        name.removesuffix(".lora_A.default_0.weight"): child
        for name, child in encoder.named_parameters()
        if "lora_A" in name
    }
    assert len(changed) == len(of_texts)
    assert sum("lora_A" in name for name, _ in unet.named_parameters()) == 1
    assert json.loads(header_of(target)["lora_adapter_metadata"])["text_encoder.r"] == 4


def test_a_distilled_lora_is_added_to_a_base_of_diffusers(tmp_path: Path) -> None:
    """In the release's names, with differences of the biases of its layers and of others; norms have no place there."""
    denoiser = contract.build("wan-tiny")
    base, path, out = tmp_path / "base.safetensors", tmp_path / "a.safetensors", tmp_path / "out"
    wanted = {name: value.detach().clone() for name, value in denoiser.module.state_dict().items()}
    save_file(wanted, base)
    tensors: dict[str, Tensor] = {}
    for number, (name, layer) in enumerate(denoiser.module.named_modules()):
        if isinstance(layer, nn.Linear) and name.startswith("blocks"):
            stem = f"diffusion_model.{release_layers.place(denoiser.config, name).layer}"
            A, B = random(2, layer.in_features, seed=number), random(layer.out_features, 2, seed=number + 999)
            bias = tensors[f"{stem}.diff_b"] = random(layer.out_features, seed=number)
            tensors |= {f"{stem}.lora_down.weight": A, f"{stem}.lora_up.weight": B}
            wanted |= {
                f"{name}.weight": wanted[f"{name}.weight"] + B @ A,
                f"{name}.bias": wanted[f"{name}.bias"] + bias,
            }
    patch, head = tensors["diffusion_model.patch_embedding.diff"], tensors["diffusion_model.head.head.diff_b"] = (
        random(*wanted["patch_embedding.weight"].shape, seed=1),
        random(*wanted["proj_out.bias"].shape, seed=2),
    )
    wanted |= {"patch_embedding.weight": wanted["patch_embedding.weight"] + patch}
    wanted |= {"proj_out.bias": wanted["proj_out.bias"] + head}
    norm = "diffusion_model.blocks.0.norm3.diff"
    save_file(tensors | {norm: torch.ones_like(wanted["blocks.0.norm2.weight"])}, path)
    result = apply.apply(ApplyLorasRequest(base=base, files=[str(path)], output=out, model="wan-tiny"))
    assert [note.rpartition(": ")[2] for note in result.notes] == [norm]
    torch.testing.assert_close(load_file(out / "base.safetensors"), wanted, rtol=1e-5, atol=1e-5)
