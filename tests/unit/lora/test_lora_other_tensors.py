"""A tensor of another kind hides no update: `info` tells of it, and the other tools keep it, add it, or leave it out by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lora_files import SHAPES, lora, random, updates_of
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
    assert (found.others, found.types) == ({"DoRAs by columns": 3}, {})
    assert "are those of columns" in found.result.notes[0]
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


def test_whole_numbers_are_neither_differences_nor_weights(tmp_path: Path) -> None:
    """They are codes, whose scales are not known; numbers of places in a text encoder are none."""
    base, path, out = tmp_path / "base.safetensors", tmp_path / "a.safetensors", tmp_path / "out"
    weights = {f"{layer}.weight": random(*shape, seed=1) for layer, shape in SHAPES.items()}
    weights |= {"blocks.0.self_attn.q.bias": random(12, seed=3), "position_ids": torch.arange(7)[None]}
    save_file(weights, base)
    with_others(path, {f"{LAYER}.diff_b": torch.ones(12, dtype=torch.int8)})
    result = apply.apply(ApplyLorasRequest(base=base, files=[str(path)], output=out))
    assert "left out: differences of biases" in result.notes[0]
    assert torch.equal(load_file(out / "base.safetensors")["blocks.0.self_attn.q.bias"], random(12, seed=3))
    merge.merge(MergeLorasRequest(files=[str(path)], output=tmp_path / "c.safetensors"))
    assert f"{LAYER}.diff_b" not in load_file(tmp_path / "c.safetensors")
    save_file({name: value.int() for name, value in weights.items()}, base)
    with refused("weights-quantised", "base", says="whole numbers"):
        apply.apply(ApplyLorasRequest(base=base, files=[str(path)], output=out, overwrite=True))


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
