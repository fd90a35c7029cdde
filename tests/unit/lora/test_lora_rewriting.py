"""Merged, resized and converted files hold what dense algebra says, and tell how far they are from it."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import lora_files
import pytest
import torch
from adapters import adapted
from lora_files import SHAPES, header_of, loha, lokr, lora, random, updates_of
from peft.utils.other import get_pattern_key
from refused import refused
from safetensors.torch import load_file, save_file
from torch import Tensor

from reelworks.annexes.lora import convert, info, merge, output, resize
from reelworks.annexes.lora.request import (
    ConvertLoraRequest,
    LoraInfoRequest,
    MergeLorasRequest,
    ResizeLoraRequest,
)
from reelworks.annexes.lora.results import LoraResult
from reelworks.core import files
from reelworks.models.adapters import inject
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.key_mapping import METADATA
from reelworks.models.export.lora import LoraFile

BF16 = torch.bfloat16


def require_told(result: LoraResult, wanted: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    """The errors of a result, by layer and in all, are those of the file."""
    errors, norms = [], []
    for layer in result.layers:
        exact, written = wanted[layer.layer], found[layer.layer]
        errors.append(float((exact - written).norm()))
        norms.append(float(exact.norm()))
        assert layer.norm is not None
        assert layer.relative_error is not None
        assert math.isclose(layer.norm, norms[-1], rel_tol=1e-4)
        assert math.isclose(layer.relative_error, errors[-1] / norms[-1], rel_tol=1e-2, abs_tol=2e-6)
    assert len(result.layers) == len(found)
    assert result.relative_error is not None
    assert math.isclose(result.relative_error, math.hypot(*errors) / math.hypot(*norms), rel_tol=1e-2, abs_tol=2e-6)


def prefixed(updates: dict[str, Tensor], prefix: str = "diffusion_model.") -> dict[str, Tensor]:
    return {prefix + layer: value for layer, value in updates.items()}


# Resize


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_a_lower_rank_is_the_nearest_and_its_error_that_of_the_dense_decomposition(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    """With an alpha that is not the rank, and rounding to the dtype of the file in the error."""
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    wanted = lora(
        source,
        ranks=6,
        alpha=4.5,
        dtype=dtype,
        header={"ss_network_dim": "6", "sshs_model_hash": "ab", "ss_network_module": "x"},
    )
    result = resize.resize(ResizeLoraRequest(file=source, output=target, rank=2))
    found = updates_of(target)
    require_told(result, prefixed(wanted), found)
    for layer, update in wanted.items():
        best = torch.linalg.svdvals(update)[2:].norm() / update.norm()
        error = (found[f"diffusion_model.{layer}"] - update).norm() / update.norm()
        assert best * 0.999 <= error <= best * 1.001 + (0 if dtype is torch.float32 else 0.01)
    assert {value.dtype for value in load_file(target).values()} == {dtype}
    header = header_of(target)
    assert (header["ss_network_dim"], header["ss_network_alpha"], header["ss_network_module"]) == ("2", "2", "x")
    assert "sshs_model_hash" not in header
    assert "resized to rank 2" in header["ss_training_comment"]


@pytest.mark.parametrize("keep", [0.5, 0.9, 0.999, 1.0])
def test_a_share_gives_each_layer_a_rank_of_its_own(tmp_path: Path, keep: float) -> None:
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    wanted = lora(source, ranks={layer: 3 + i for i, layer in enumerate(SHAPES)})
    result = resize.resize(ResizeLoraRequest(file=source, output=target, keep=keep))
    require_told(result, prefixed(wanted), updates_of(target))
    for layer in result.layers:
        squares = torch.linalg.svdvals(wanted[layer.layer.removeprefix("diffusion_model.")]).square()
        assert layer.rank is not None
        assert squares[: layer.rank].sum() >= keep * squares.sum() * (1 - 1e-6)
        assert layer.rank == 1 or keep == 1 or squares[: layer.rank - 1].sum() < keep * squares.sum()


def test_where_nothing_is_left_out_the_told_error_is_that_of_rounding(tmp_path: Path) -> None:
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    wanted = lora(source, ranks=6)
    result = resize.resize(ResizeLoraRequest(file=source, output=target, keep=1.0, dtype="bfloat16"))
    require_told(result, prefixed(wanted), updates_of(target))
    assert result.relative_error is not None
    assert 1e-4 < result.relative_error < 1e-2


def test_layers_of_a_low_rank_stay_as_they_are(tmp_path: Path) -> None:
    """To the last bit, beside one that is cut; zeros, as of a layer that was never trained, are no error."""
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    lora(source, ranks={layer: 2 + 2 * i for i, layer in enumerate(SHAPES)})
    tensors = load_file(source)
    tensors["diffusion_model.blocks.1.cross_attn.o.lora_B.weight"].zero_()
    save_file(tensors, source)
    result = resize.resize(ResizeLoraRequest(file=source, output=target, rank=4))
    assert sorted(layer.rank or 0 for layer in result.layers) == [2, 4, 4]
    assert [layer.relative_error for layer in result.layers] == [0, 0, 0]
    after = load_file(target)
    assert all(torch.equal(after[key], tensors[key]) for key in tensors if "cross_attn" not in key)
    with refused("rank-not-higher", "rank", says="the highest is 4"):
        resize.resize(ResizeLoraRequest(file=target, output=tmp_path / "c.safetensors", rank=4))


def test_peft_gives_each_layer_its_own_rank_where_one_name_is_the_end_of_another(tmp_path: Path) -> None:
    """It takes the first name of the settings that a layer's name ends with."""
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    wanted = {"proj": 3, "blocks.0.proj": 2, "blocks.0.attn.proj": 1, "out": 3}
    lora(source, dict.fromkeys(wanted, (8, 6)), ranks={**wanted, "out": 4}, prefix="transformer.")
    resize.resize(ResizeLoraRequest(file=source, output=target, rank=3))
    ranks = json.loads(header_of(target)[METADATA])["transformer.rank_pattern"]
    assert {layer: ranks[get_pattern_key(ranks, layer)] for layer in wanted} == wanted


@pytest.mark.parametrize("kind", [loha, lokr])
def test_a_loha_or_lokr_becomes_a_lora(tmp_path: Path, kind: Any) -> None:
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    wanted = kind(source)
    result = resize.resize(ResizeLoraRequest(file=source, output=target, rank=4))
    found = updates_of(target)
    require_told(result, prefixed(wanted), found)
    for layer, update in wanted.items():
        best = float(torch.linalg.svdvals(update)[4:].norm())
        assert math.isclose(
            float((found[f"diffusion_model.{layer}"] - update).norm()), best, rel_tol=1e-3, abs_tol=1e-4
        )
    assert header_of(target)["ss_network_module"] == "networks.lora"
    assert "ss_network_args" not in header_of(target)


def test_what_a_program_has_set_in_torch_changes_no_number(tmp_path: Path) -> None:
    """As a notebook that works under autocast."""
    loha(tmp_path / "a.safetensors")

    def told() -> tuple[bytes, LoraResult, LoraResult]:
        target = tmp_path / "b.safetensors"
        resized = resize.resize(
            ResizeLoraRequest(file=tmp_path / "a.safetensors", output=target, rank=2, overwrite=True)
        )
        return target.read_bytes(), resized, info.info(LoraInfoRequest(file=tmp_path / "a.safetensors")).result

    usual = told()
    with torch.autocast("cpu", dtype=BF16), torch.inference_mode(), torch.device("meta"):
        assert told() == usual


def test_a_resized_convolution_keeps_its_kernel(tmp_path: Path) -> None:
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    A, B = random(4, 5, 3, 3, seed=0), random(7, 4, 1, 1, seed=1)
    save_file({"lora_unet_x.lora_down.weight": A, "lora_unet_x.lora_up.weight": B}, source)
    result = resize.resize(ResizeLoraRequest(file=source, output=target, rank=2))
    tensors = load_file(target)
    assert tensors["lora_unet_x.lora_down.weight"].shape == (2, 5, 3, 3)
    assert tensors["lora_unet_x.lora_up.weight"].shape == (7, 2, 1, 1)
    require_told(result, {"lora_unet_x": B.double().flatten(1) @ A.double().flatten(1)}, updates_of(target))


@pytest.mark.parametrize(
    ("prefix", "matrices", "convention"),
    [
        ("diffusion_model.", ("lora_down", "lora_up"), "comfyui"),
        ("transformer.", ("lora_A", "lora_B"), "diffusers"),
        ("unet.", ("lora.down", "lora.up"), "diffusers"),
        ("base_model.model.", ("lora_A", "lora_B"), "diffusers"),
        ("lora_unet_", ("lora_down", "lora_up"), "kohya"),
        ("lycoris_", ("lora_down", "lora_up"), "kohya"),
        ("", ("lora_A.default", "lora_B.default"), None),
    ],
)
def test_files_of_other_programs_are_read_and_keep_their_names(
    tmp_path: Path, prefix: str, matrices: tuple[str, str], convention: str | None
) -> None:
    """But for peft's own, which become those of diffusers, and for the two matrices, which have today's names."""
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    wanted = lora(source, prefix=prefix, matrices=matrices)
    result = resize.resize(ResizeLoraRequest(file=source, output=target, rank=2))
    assert result.convention == convention
    there = "transformer." if prefix.startswith("base") else prefix
    named = {there + (layer.replace(".", "_") if there.endswith("_") else layer): wanted[layer] for layer in wanted}
    require_told(result, named, updates_of(target))
    assert (METADATA in header_of(target)) == (convention == "diffusers")


@pytest.mark.parametrize(
    ("settings", "scales"),
    [
        ({"r": 4, "lora_alpha": 6}, (1.5, 1.5)),
        ({"r": 4, "lora_alpha": 6, "use_rslora": True}, (3, 3)),
        ({"r": 4, "lora_alpha": 6, "alpha_pattern": {"blocks.0.ffn.0": 1}}, (1.5, 0.25)),
        ({"r": 4, "lora_alpha": 6, "alpha_pattern": {"^blocks.0.ffn.0": 1, "ffn": 9}}, (1.5, 0.25)),
        ({"r": 4, "lora_alpha": 6, "alpha_pattern": {"^ffn.0": 9, "^q": 9}}, (1.5, 1.5)),  # of no layer
        ({"r": 4, "lora_alpha": 6, "alpha_pattern": {"0.ffn.0": 1, "attn.q": 1}}, (1.5, 0.25)),  # of whole words
        ({"r": 4, "lora_alpha": 6, "alpha_pattern": {"q": 1}}, (0.25, 1.5)),
        ({"r": 4}, (1, 1)),
    ],
)
@pytest.mark.parametrize("where", ["header", "file"])
def test_scales_in_the_settings_of_peft_count(
    tmp_path: Path, settings: dict[str, Any], scales: tuple[float, float], where: str
) -> None:
    """In the header, as diffusers writes it, or in peft's own file beside it; of all layers, or of some."""
    source, target = tmp_path / "adapter_model.safetensors", tmp_path / "b.safetensors"
    if where == "file":
        wanted = lora(source, prefix="base_model.model.")
        (tmp_path / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    else:
        named = {f"transformer.{key}": value for key, value in settings.items()}
        wanted = lora(source, prefix="transformer.", header={METADATA: json.dumps(named)})
    merge.merge(MergeLorasRequest(files=[str(source)], output=target))
    found = updates_of(target)
    for layer, scale in zip(("blocks.0.self_attn.q", "blocks.0.ffn.0"), scales, strict=True):
        torch.testing.assert_close(found[f"transformer.{layer}"], scale * wanted[layer], rtol=1e-5, atol=1e-6)
    told = json.loads(header_of(target)[METADATA])
    assert (
        told["transformer.lora_alpha"],
        told.get("transformer.use_rslora"),
        told.get("transformer.alpha_pattern"),
    ) == (4, None, None)


def test_peft_s_file_without_its_settings_is_told_to_have_no_scale(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a renamed one; it holds no alpha, and other programs' files without one have the scale 1."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}), encoding="utf-8")
    told = []
    for name, prefix in (("adapter_model", "base_model.model."), ("b", "transformer."), ("c", "base_model.model.")):
        source = tmp_path / f"{name}.safetensors"
        lora(source, prefix=prefix)
        caplog.clear()
        resize.resize(ResizeLoraRequest(file=source, output=tmp_path / "out.safetensors", rank=1, overwrite=True))
        told.append(
            [record.getMessage() for record in caplog.records if "alpha / rank is taken as 1" in record.getMessage()]
        )
    assert [len(warnings) for warnings in told] == [0, 0, 1]
    assert told[2][0].startswith("c.safetensors has peft's names and no scale, which is in its adapter_config.json")


def test_a_joined_layer_holds_the_widest_of_its_parts(tmp_path: Path) -> None:
    """Query, key and value may have been stored in other types; nothing is rounded to that of the first."""
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    tensors = {}
    for part, dtype in (("q", BF16), ("k", torch.float32), ("v", torch.float32)):
        stem = f"transformer.transformer_blocks.0.attn.to_{part}.lora"
        sides = {"A": random(2, 32, seed=ord(part)), "B": random(32, 2, seed=ord(part) + 1)}
        tensors |= {f"{stem}_{side}.weight": value.to(dtype) for side, value in sides.items()}
    save_file(tensors, source)
    convert.convert(ConvertLoraRequest(file=source, to="comfyui", output=target, model="flux-tiny"))
    parts, (joined,) = updates_of(source), updates_of(target).values()
    wanted = torch.cat([parts[f"transformer.transformer_blocks.0.attn.to_{part}"] for part in "qkv"])
    torch.testing.assert_close(joined, wanted, rtol=0, atol=1e-6)


# Merge


def test_a_sum_is_exact_and_has_the_layers_of_all(tmp_path: Path) -> None:
    """Ranks add up, weights may be negative, and alphas and ranks differ; in float32 nothing is lost."""
    one, two, target = (tmp_path / f"{name}.safetensors" for name in "abc")
    first, *others = SHAPES
    told = [{"ss_sd_model_name": "base", "ss_epoch": epoch} for epoch in "35"]
    a = lora(one, {layer: SHAPES[layer] for layer in (first, others[0])}, ranks=3, alpha=2.0, header=told[0])
    b = lora(two, {layer: SHAPES[layer] for layer in (first, others[1])}, ranks=4, seed=50, header=told[1])
    result = merge.merge(MergeLorasRequest(files=[f"{one}=0.7", f"{two}=-0.5"], output=target))
    wanted = {layer: 0.7 * a.get(layer, 0) - 0.5 * b.get(layer, 0) for layer in SHAPES}
    found = updates_of(target)
    require_told(result, prefixed(wanted), found)
    assert {layer.layer.removeprefix("diffusion_model."): layer.rank for layer in result.layers} == {
        first: 7, others[0]: 3, others[1]: 4,
    }  # fmt: skip
    assert result.relative_error == 0
    assert all(torch.allclose(found[f"diffusion_model.{layer}"], wanted[layer], atol=1e-5) for layer in SHAPES)
    header = header_of(target)
    assert header["modelspec.merged_from"] == "a.safetensors, b.safetensors"
    assert (header.get("ss_sd_model_name"), header.get("ss_epoch")) == ("base", None), "what both say"


@pytest.mark.parametrize("weight", [1e6, 1e-6])
def test_a_sum_in_float16_is_not_bound_to_the_range_of_one_factor(tmp_path: Path, weight: float) -> None:
    one, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    wanted = {layer: weight * value for layer, value in lora(one, dtype=torch.float16).items()}
    result = merge.merge(MergeLorasRequest(files=[f"{one}={weight:f}"], output=target))
    require_told(result, prefixed(wanted), updates_of(target))
    assert {value.dtype for value in load_file(target).values()} == {torch.float16}
    assert result.relative_error is not None
    assert result.relative_error < 1e-3


def test_a_sum_of_a_lower_rank_is_the_nearest(tmp_path: Path) -> None:
    """LoHa and LoKr take part, and the dtype of the result holds those of all files."""
    one, two, three, target = (tmp_path / f"{name}.safetensors" for name in "abcd")
    a, b, c = lora(one, ranks=3, dtype=BF16), loha(two), lokr(three)
    result = merge.merge(MergeLorasRequest(files=[f"{one}=2", str(two), f"{three}=0.5"], output=target, rank=5))
    wanted = {layer: 2 * a[layer] + b[layer] + 0.5 * c[layer] for layer in SHAPES}
    require_told(result, prefixed(wanted), updates_of(target))
    for layer in result.layers:
        update = wanted[layer.layer.removeprefix("diffusion_model.")]
        best = float(torch.linalg.svdvals(update)[5:].norm() / update.norm())
        assert layer.relative_error is not None
        assert math.isclose(layer.relative_error, best, rel_tol=1e-2, abs_tol=1e-5)
    assert {value.dtype for value in load_file(target).values()} == {torch.float32}


def test_what_has_no_sum_is_refused_with_a_way_out(tmp_path: Path) -> None:
    one, two = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    lora(one)
    lokr(two, rank=None)
    asked: dict[str, Any] = {"files": [str(one), str(two)], "output": tmp_path / "c.safetensors"}
    with refused("adapter-without-sum", "files", says="as large as the weight") as caught:
        merge.merge(MergeLorasRequest(**asked))
    assert "reelworks lora resize" in caught.value.remedy
    tensors = load_file(one)
    save_file(tensors | {"diffusion_model.blocks.0.ffn.0.dora_scale": torch.ones(20, 1)}, two)
    for tool in (merge.merge, lambda _: resize.resize(ResizeLoraRequest(file=two, output=asked["output"], rank=1))):
        with refused("adapter-without-answer", says=r"b\.safetensors.*a DoRA gives the rows"):
            tool(MergeLorasRequest(**asked))
    assert not asked["output"].exists()


def test_files_of_several_networks_are_not_added(tmp_path: Path) -> None:
    """Told by a shape, or, where no layer is in both, by all known networks; another base of one network is a note."""
    one, two, target = (tmp_path / f"{name}.safetensors" for name in "abc")
    lora(one, header={"modelspec.architecture": "one/lora"})
    lora(two, {layer: (rows, columns + 1) for layer, (rows, columns) in SHAPES.items()})
    asked = MergeLorasRequest(files=[str(one), str(two)], output=target)
    with refused("lora-does-not-fit", "files", says=r"b\.safetensors.*of another network.*20, 12.*20, 13"):
        merge.merge(asked)
    lora(two, seed=9, header={"modelspec.architecture": "two/lora"})
    assert ["was trained on another base" in note for note in merge.merge(asked).notes] == [True]
    lora(two, {f"strange.{layer}": shape for layer, shape in SHAPES.items()})
    with refused("lora-does-not-fit", "files", says="no layer of it is in another file, and no known network"):
        merge.merge(replace(asked, output=tmp_path / "d.safetensors"))


@pytest.mark.parametrize("text", ["x=0", "x=nan", "x=inf"])
def test_a_weight_that_adds_nothing_is_refused(tmp_path: Path, text: str) -> None:
    with refused("merge-weight-invalid", "files"):
        MergeLorasRequest(files=[text], output=tmp_path / "a.safetensors")


def test_a_name_may_have_an_equals_sign(tmp_path: Path) -> None:
    path = tmp_path / "lr=0.1"
    lora(path)
    (weighted, other) = MergeLorasRequest(files=[str(path), f"{path}=0.5"], output="a.safetensors").weighted
    assert (weighted, other) == ((str(path), 1.0), (str(path), 0.5))


# Convert


def exported(path: Path, name: str, settings: LoraConfig, format: Any) -> Path:
    """Write a random adapter of a tiny network as an export does."""
    denoiser = adapted(name, settings)
    file = LoraFile(format, settings.adapter, name, denoiser.config.network.part).content(
        inject.weights(denoiser.module)
    )
    save_file({key: value.contiguous() for key, value in file.tensors.items()}, path, file.header)
    return path


SETTINGS = {
    "lora": LoraConfig(rank=3, alpha=2.3, targets="blocks"),
    "loha": LoraConfig(type="loha", rank=2, alpha=2.3),
    "lokr": LoraConfig(type="lokr", rank=2, alpha=2.3),
}
PAIRS = [(a, b) for a in ("diffusers", "comfyui", "kohya") for b in ("diffusers", "comfyui", "kohya") if a != b]


def require_as_exported(tmp_path: Path, name: str, kind: str, formats: tuple[str, str]) -> None:
    """A converted file is the one that an export writes, to the last bit."""
    source = exported(tmp_path / "a.safetensors", name, SETTINGS[kind], formats[0])
    wanted = exported(tmp_path / "b.safetensors", name, SETTINGS[kind], formats[1])
    target = tmp_path / "c.safetensors"
    result = convert.convert(ConvertLoraRequest(file=source, output=target, to=formats[1], model=name))
    found, expected = load_file(target), load_file(wanted)
    assert found.keys() == expected.keys()
    assert not [key for key, value in expected.items() if not torch.equal(found[key], value)]
    headers = [
        {
            key: json.loads(value) if key == METADATA else value
            for key, value in header_of(path).items()
            if key != "format"
        }
        for path in (target, wanted)
    ]
    for header in headers:
        # What fits the shapes may differ from what was asked for.
        header.get(METADATA, {}).pop("transformer.decompose_factor", None)
        header.pop("ss_network_dim")
        header.pop("ss_network_alpha")
    assert headers[0] == headers[1]
    assert result.relative_error == 0


@pytest.mark.parametrize("formats", PAIRS, ids=" to ".join)
def test_a_converted_file_is_the_one_that_an_export_writes(tmp_path: Path, formats: tuple[str, str]) -> None:
    """Layers that the release joins are joined, and taken apart again."""
    require_as_exported(tmp_path, "flux-tiny", "lora", formats)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("name", ["flux-tiny", "wan-tiny", "sdxl-tiny", "z-image-tiny", "sd3-tiny", "flux2-tiny"])
@pytest.mark.parametrize("formats", PAIRS, ids=" to ".join)
def test_a_converted_file_of_any_network_is_the_one_that_an_export_writes(
    tmp_path: Path, formats: tuple[str, str], name: str, kind: str
) -> None:
    if kind == "lokr" and name != "wan-tiny":
        pytest.skip("a Kronecker product has no parts")
    require_as_exported(tmp_path, name, kind, formats)


def test_text_encoders_are_converted_or_told(tmp_path: Path) -> None:
    """CLIP's layers have a name in all conventions; those of others are left out of diffusers' files, and told."""
    source = exported(tmp_path / "a.safetensors", "sdxl-tiny", LoraConfig(rank=2, targets=["to_q"]), "kohya")
    pair = {
        "lora_down.weight": random(2, 6, seed=0),
        "lora_up.weight": random(6, 2, seed=1),
        "alpha": torch.tensor(2.0),
    }
    clip, t5 = (
        "lora_te2_text_model_encoder_layers_11_self_attn_q_proj",
        "lora_te3_encoder_block_0_layer_0_SelfAttention_q",
    )
    tensors = load_file(source) | {f"{stem}.{end}": value.clone() for stem in (clip, t5) for end, value in pair.items()}
    save_file(tensors, source)
    there, back = tmp_path / "b.safetensors", tmp_path / "c.safetensors"
    told = convert.convert(ConvertLoraRequest(file=source, output=there, to="diffusers", model="sdxl-tiny")).notes
    assert told == ["left out: 1 layer of text encoders, for which programs that read this convention have no names"]
    stem = "text_encoder_2.text_model.encoder.layers.11.self_attn.q_proj"
    assert torch.equal(load_file(there)[f"{stem}.lora_A.weight"], pair["lora_down.weight"])
    assert json.loads(header_of(there)[METADATA])["text_encoder_2.r"] == 2
    convert.convert(ConvertLoraRequest(file=there, output=back, to="kohya", model="sdxl-tiny"))
    after = load_file(back)
    assert after.keys() == {key for key in tensors if not key.startswith(t5)}
    assert all(torch.equal(after[key], tensors[key]) for key in after)


def test_convolutions_of_sdxl_are_converted(tmp_path: Path) -> None:
    """There and back, with their kernels, beside a linear layer."""
    source, there, back = (tmp_path / f"{name}.safetensors" for name in "abc")
    names = {
        "lora_unet_input_blocks_1_0_in_layers_2": "unet.down_blocks.0.resnets.0.conv1",
        "lora_unet_input_blocks_1_0_emb_layers_1": "unet.down_blocks.0.resnets.0.time_emb_proj",
    }
    tensors: dict[str, Tensor] = {}
    for number, stem in enumerate(names):
        kernel, ones = ((3, 3), (1, 1)) if number == 0 else ((), ())
        tensors |= {
            f"{stem}.lora_down.weight": random(2, 4, *kernel, seed=number),
            f"{stem}.lora_up.weight": random(5, 2, *ones, seed=9 + number),
            f"{stem}.alpha": torch.tensor(2.0),
        }
    save_file(tensors, source)
    convert.convert(ConvertLoraRequest(file=source, output=there, to="diffusers", model="sdxl-tiny"))
    assert {key: value.shape for key, value in load_file(there).items()} == {
        f"{names[stem]}.lora_{'A' if side == 'down' else 'B'}.weight": tensors[f"{stem}.lora_{side}.weight"].shape
        for stem in names
        for side in ("down", "up")
    }
    convert.convert(ConvertLoraRequest(file=there, output=back, to="kohya", model="sdxl-tiny"))
    after = load_file(back)
    assert after.keys() == tensors.keys()
    assert all(torch.equal(after[key], value) for key, value in tensors.items())


def test_a_lora_made_of_a_loha_gets_the_kernels_of_its_network(tmp_path: Path) -> None:
    """LyCORIS stores factors without them, which programs that build the layers cannot load, and ComfyUI can."""
    source, flat, there, released = (tmp_path / f"{name}.safetensors" for name in "abcd")
    layer = "down_blocks.0.resnets.0.conv1"
    sides = {"w1_a": (5, 2), "w1_b": (2, 36), "w2_a": (5, 2), "w2_b": (2, 36)}
    parts = {f"hada_{part}": random(*shape, seed=number) for number, (part, shape) in enumerate(sides.items())}
    save_file({f"unet.{layer}.{part}": value for part, value in parts.items()}, source)
    resize.resize(ResizeLoraRequest(file=source, output=flat, keep=1))

    def read_by(path: Path) -> set[str]:
        return {*info.info(LoraInfoRequest(file=path, model="sdxl-tiny")).readers}

    assert read_by(flat) == {"Forge", "Forge Neo", "ComfyUI"}
    convert.convert(ConvertLoraRequest(file=flat, output=there, to="diffusers", model="sdxl-tiny"))
    assert {"diffusers", "peft (inject_adapter_in_model)", "ComfyUI"} <= read_by(there)
    tensors = load_file(there)
    assert tensors[f"unet.{layer}.lora_A.weight"].shape[1:] == (4, 3, 3)
    convert.convert(ConvertLoraRequest(file=flat, output=released, to="kohya", model="sdxl-tiny"))
    assert [value.shape[1:] for key, value in load_file(released).items() if "lora_down" in key] == [(4, 3, 3)]
    w1, w2 = (parts[f"hada_w{i}_a"].double() @ parts[f"hada_w{i}_b"].double() for i in (1, 2))
    torch.testing.assert_close(updates_of(there)[f"unet.{layer}"], w1 * w2, rtol=1e-4, atol=1e-5)


def test_layers_of_several_ranks_have_their_scales_in_diffusers_too(tmp_path: Path) -> None:
    """peft's settings say so layer by layer, and it reads them back as they are meant."""
    source = exported(tmp_path / "a.safetensors", "wan-tiny", LoraConfig(rank=4, alpha=1.5), "kohya")
    small, there, back = (tmp_path / f"{name}.safetensors" for name in "bcd")
    resize.resize(ResizeLoraRequest(file=source, output=small, keep=0.7))
    convert.convert(ConvertLoraRequest(file=small, output=there, to="diffusers", model="wan-tiny"))
    settings = json.loads(header_of(there)[METADATA])
    ranks = {stem.removeprefix("transformer."): len(value) for stem, value in _down_matrices(there).items()}
    assert len({*ranks.values()}) > 1
    assert settings["transformer.rank_pattern"] == settings["transformer.alpha_pattern"] == ranks
    convert.convert(ConvertLoraRequest(file=there, output=back, to="kohya", model="wan-tiny"))
    assert {key: value.tolist() for key, value in updates_of(back).items()} == {
        key: value.tolist() for key, value in updates_of(small).items()
    }


def _down_matrices(path: Path) -> dict[str, Tensor]:
    return {key.removesuffix(".lora_A.weight"): value for key, value in load_file(path).items() if "lora_A" in key}


def test_what_a_convention_cannot_hold_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "b.safetensors"
    source = exported(tmp_path / "a.safetensors", "wan-tiny", LoraConfig(rank=2, dora=True), "diffusers")
    with refused("dora-not-writable", "to"):
        convert.convert(ConvertLoraRequest(file=source, output=target, to="kohya", model="wan-tiny"))
    source = exported(tmp_path / "a.safetensors", "wan-tiny", LoraConfig(type="oft", block_size=4), "diffusers")
    with refused("adapter-not-writable", "to"):
        convert.convert(ConvertLoraRequest(file=source, output=target, to="comfyui", model="wan-tiny"))
    lora(source, {"double_blocks.0.img_attn.qkv": (96, 32)}, ranks=2)
    tensors = {
        f"diffusion_model.double_blocks.0.img_attn.qkv.lokr_w{i}": random(*shape, seed=i)
        for i, shape in ((1, (3, 4)), (2, (32, 8)))
    }
    save_file(tensors, source)
    with refused("adapter-not-writable", "file", says="several layers in diffusers"):
        convert.convert(ConvertLoraRequest(file=source, output=target, to="diffusers", model="flux-tiny"))
    convert.convert(ConvertLoraRequest(file=source, output=target, to="kohya", model="flux-tiny"))
    assert {key.partition(".")[0] for key in load_file(target)} == {"lora_unet_double_blocks_0_img_attn_qkv"}


def test_files_of_several_conventions_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is converted to the names of the first, however long it takes and whoever sweeps the folder."""
    finish = output.NewAdapterFile.finish

    def finish_late(*args: Any) -> LoraResult:
        (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
        for path in (folder, *folder.iterdir()):
            os.utime(path, (0, 0))
        files.sweep(tmp_path / "of another.safetensors")
        return finish(*args)

    monkeypatch.setattr(output.NewAdapterFile, "finish", finish_late)
    settings = LoraConfig(rank=2, alpha=2.3)
    one = exported(tmp_path / "a.safetensors", "flux-tiny", settings, "kohya")
    two = exported(tmp_path / "b.safetensors", "flux-tiny", settings, "diffusers")
    target = tmp_path / "c.safetensors"
    merge.merge(MergeLorasRequest(files=[str(one), f"{two}=-0.75"], output=target, model="flux-tiny"))
    for stem, update in updates_of(target).items():
        torch.testing.assert_close(update, 0.25 * lora_files.updates_of(one)[stem], rtol=1e-4, atol=1e-5)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.parametrize("to", ["diffusers", "comfyui"])
def test_a_converted_lora_is_not_bound_to_the_range_of_one_factor_of_float16(tmp_path: Path, to: Any) -> None:
    """As it is, or joined; one whose numbers fit stays as it is, to the last bit."""
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    tensors = {}
    for number, part in enumerate("qkv"):
        stem = f"transformer.transformer_blocks.0.attn.to_{part}.lora"
        tensors[f"{stem}_A.weight"] = random(2, 32, seed=number) * 1e-6
        tensors[f"{stem}_B.weight"] = random(32, 2, seed=number + 9) * 1e6
    asked: dict[str, Any] = {"file": source, "output": target, "to": to, "model": "flux-tiny", "dtype": "float16"}
    save_file(tensors, source)
    result = convert.convert(ConvertLoraRequest(**asked))
    assert {value.dtype for name, value in load_file(target).items() if "alpha" not in name} == {torch.float16}
    assert result.relative_error is not None
    assert 0 < result.relative_error < 1e-3
    before, after = (sum(float(v.norm()) ** 2 for v in updates_of(file).values()) for file in (source, target))
    assert after == pytest.approx(before, rel=1e-3)
    save_file({name: random(*value.shape, seed=3).half() for name, value in tensors.items()}, source)
    assert convert.convert(ConvertLoraRequest(**asked, overwrite=True)).relative_error == 0


@pytest.mark.parametrize("name", ["a.safetensors", "a.safetensors.index.json"])
def test_a_file_or_the_parts_of_one_are_replaced_only_if_asked_for(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}", encoding="utf-8")
    with refused("output-file-invalid", "output", says="exists already"):
        output.require_target(tmp_path / "a.safetensors", overwrite=False)
    output.require_target(tmp_path / "a.safetensors", overwrite=True)
