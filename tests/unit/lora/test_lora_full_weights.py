"""Updates added to full weights give what training merges, and what is extracted from two sets of weights lies between them."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import peft
import places
import pytest
import torch
from adapters import adapted
from lora_files import header_of, loha, lora, random, updates_of
from refused import refused
from safetensors.torch import load_file, save_file
from test_lora_rewriting import exported
from torch import Tensor, nn

from reelworks.annexes.lora import apply, convert, extract, merge
from reelworks.annexes.lora.request import ApplyLorasRequest, ConvertLoraRequest, ExtractLoraRequest, MergeLorasRequest
from reelworks.core import files, storage
from reelworks.data.checkpoint import save as commit
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run.folder import RunFolder
from reelworks.models import factory, registry
from reelworks.models.adapters import inject, release_layers
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.key_mapping import METADATA
from reelworks.models.config import ModelConfig
from reelworks.models.storage import weights as weight_files
from reelworks.testing import contract

BF16 = torch.bfloat16


def base_of(name: str, folder: Path, *, released: bool = False, dtype: torch.dtype = torch.float32) -> Path:
    """Write a tiny network's weights, in diffusers' layout or as one file in the names of its release."""
    state = {key: value.to(dtype).contiguous() for key, value in contract.build(name).module.state_dict().items()}
    folder.mkdir()
    if released:
        save_file(in_release(name, state), folder / "model.safetensors")
        return folder / "model.safetensors"
    save_file(state, folder / "diffusion_pytorch_model.safetensors")
    (folder / "config.json").write_text('{"_class_name": "Tiny"}', encoding="utf-8")
    return folder


def in_release(name: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights with the names of a release, whose layers join several; without biases."""
    rows: dict[str, list[tuple[int, Tensor]]] = {}
    for key, value in state.items():
        if not key.endswith(".bias"):
            layer = key.removesuffix(".weight")
            place = release_layers.place(registry.PRESETS[name].config, layer)
            there = release_layers.swap_halves(value) if place.swapped else value
            rows.setdefault(place.layer + key.removeprefix(layer), []).append((place.part, there))
    return {
        f"model.diffusion_model.{key}": torch.cat([value for _, value in sorted(parts, key=lambda part: part[0])])
        for key, parts in rows.items()
    }


KINDS = {
    "lora": LoraConfig(rank=3, alpha=2.3, targets="blocks"),
    "dora": LoraConfig(rank=3, alpha=2.3, dora=True),
    "lokr": LoraConfig(type="lokr", rank=2, alpha=2.3),
    "loha": LoraConfig(type="loha", rank=2, alpha=2.3),
    "oft": LoraConfig(type="oft", block_size=4),
}


def require_merged(tmp_path: Path, name: str, kind: str, format: str, released: bool) -> None:
    """Applied to its base in any layout, a file gives the weights that training merges."""
    base = base_of(name, tmp_path / "base", released=released)
    file = exported(tmp_path / "a.safetensors", name, KINDS[kind], format)
    out = tmp_path / "out"
    result = apply.apply(ApplyLorasRequest(base=base, files=[str(file)], output=out, model=name))
    merged = inject.merge(adapted(name, KINDS[kind]).module)
    wanted = in_release(name, merged) if released else merged
    found = weight_files.read(str(out))
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, msg=lambda text, key=key: f"{key}: {text}")
    assert result.relative_error == pytest.approx(0, abs=1e-6)  # in float32
    base_weights = weight_files.read(str(base))
    for layer in result.layers:
        assert layer.norm == pytest.approx(float((wanted[layer.layer] - base_weights[layer.layer]).norm()), rel=1e-3)
    assert len(result.layers) >= 3


@pytest.mark.parametrize(
    ("kind", "format", "released"),
    [
        ("lora", "kohya", False),
        ("lora", "diffusers", True),
        ("dora", "diffusers", True),
        ("oft", "diffusers", True),
        ("loha", "comfyui", False),
        ("lokr", "comfyui", True),
    ],
)
def test_an_applied_file_gives_what_training_merges(tmp_path: Path, kind: str, format: str, released: bool) -> None:
    """Of FLUX, whose release joins layers and swaps the halves of the last one: rows find each other either way."""
    require_merged(tmp_path, "flux-tiny", kind, format, released)


@pytest.mark.slow
@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("format", ["diffusers", "comfyui", "kohya"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["flux-tiny", "wan-tiny", "sdxl-tiny", "z-image-tiny", "flux2-tiny"])
def test_a_file_of_any_kind_gives_what_training_merges(
    tmp_path: Path, name: str, kind: str, format: str, released: bool
) -> None:
    try:
        KINDS[kind].require_writable(format, "to", registry.PRESETS[name].config.network)
    except ValueError:
        pytest.skip("no file of this convention holds it")
    require_merged(tmp_path, name, kind, format, released)


def test_the_last_norm_of_a_release_has_swapped_halves(tmp_path: Path) -> None:
    KINDS["norm"] = LoraConfig(rank=2, targets=["norm_out.linear", "proj_out"])
    try:
        for number, (format, released) in enumerate((("kohya", False), ("diffusers", True))):
            (tmp_path / str(number)).mkdir()
            require_merged(tmp_path / str(number), "flux-tiny", "norm", format, released)
    finally:
        del KINDS["norm"]


def test_strengths_and_several_files_add_up_in_shards_of_the_base_s_dtype(tmp_path: Path) -> None:
    """In bfloat16: the error is what rounding takes from the updates; what is no weight of a layer is copied."""
    one, two = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    a, b = lora(one, alpha=3.0), loha(two)
    base = {f"{layer}.weight": random(*update.shape, seed=9).to(BF16) for layer, update in a.items()}
    others = {"norm.weight": torch.ones(3), "steps": torch.arange(4), "flag": torch.tensor([True])}
    save_file(base | others, tmp_path / "base.safetensors")
    request = ApplyLorasRequest(
        base=tmp_path / "base.safetensors",
        files=[f"{one}=0.01", f"{two}=-0.02"],
        output=tmp_path / "out",
        shard_size="300B",
    )
    result = apply.apply(request)
    found = weight_files.read(str(tmp_path / "out"))
    errors, norms = [], []
    for layer in a:
        update, stored = 0.01 * a[layer] - 0.02 * b[layer], base[f"{layer}.weight"].double()
        assert torch.equal(found[f"{layer}.weight"], (stored + update).float().to(BF16))
        errors.append(float((found[f"{layer}.weight"].double() - stored - update).norm()))
        norms.append(float(update.norm()))
    assert all(torch.equal(found[key], value) and found[key].dtype == value.dtype for key, value in others.items())
    assert result.relative_error is not None
    assert math.isclose(result.relative_error, math.hypot(*errors) / math.hypot(*norms), rel_tol=1e-3)
    assert result.relative_error > 0.01
    index = json.loads((tmp_path / "out" / "base.safetensors.index.json").read_text(encoding="utf-8"))
    assert index["weight_map"].keys() == found.keys()
    assert len({*index["weight_map"].values()}) > 1
    assert {path.name for path in tmp_path.iterdir()} == {"a.safetensors", "b.safetensors", "base.safetensors", "out"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("kind", ["lora", "loha", "diff"])
def test_the_error_is_that_of_the_written_numbers(tmp_path: Path, dtype: torch.dtype, kind: str) -> None:
    """Of an update that is a small part of the weights, by float64, in which a base of float64 keeps it."""
    file = tmp_path / "a.safetensors"
    updates = (loha if kind == "loha" else lora)(file)
    if kind == "diff":
        updates = {layer: value.float() for layer, value in updates.items()}
        more = {f"diffusion_model.{layer}.diff": value for layer, value in updates.items()}
        save_file(more | {f"diffusion_model.x.lora_{side}.weight": torch.ones(1, 1) for side in "AB"}, file)
        updates |= {"x": torch.ones(1, 1)}
    base = {layer: random(*value.shape, seed=7).double().to(dtype) / 3 for layer, value in updates.items()}
    save_file({f"{layer}.weight": value for layer, value in base.items()}, tmp_path / "base.safetensors")
    told = apply.apply(
        ApplyLorasRequest(base=tmp_path / "base.safetensors", files=[f"{file}=1e-4"], output=tmp_path / "out")
    )
    found = load_file(tmp_path / "out" / "base.safetensors")
    errors = {
        layer: float((found[f"{layer}.weight"].double() - base[layer] - 1e-4 * v).norm())
        for layer, v in updates.items()
    }
    true = math.hypot(*errors.values()) / math.hypot(*(1e-4 * float(value.norm()) for value in updates.values()))
    assert told.relative_error == pytest.approx(true, rel=1e-2, abs=1e-7)
    assert true < 1e-6 if dtype == torch.float64 else true > 2e-5


def test_a_scale_is_as_exact_as_the_base(tmp_path: Path) -> None:
    """A third is none of the numbers of float32."""
    file, base = tmp_path / "a.safetensors", tmp_path / "base.safetensors"
    updates = lora(file, ranks=3, alpha=1.0)
    save_file({f"{layer}.weight": torch.zeros_like(value) for layer, value in updates.items()}, base)
    apply.apply(ApplyLorasRequest(base=base, files=[str(file)], output=tmp_path / "out"))
    found = load_file(tmp_path / "out" / "base.safetensors")
    for layer, update in updates.items():
        torch.testing.assert_close(found[f"{layer}.weight"], update, rtol=1e-12, atol=1e-14)


def test_a_result_is_replaced_as_a_whole_if_asked_for_and_nothing_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.safetensors"
    update = lora(file)
    base = {f"{layer}.weight": torch.zeros(value.shape) for layer, value in update.items()}
    save_file(base, tmp_path / "base.safetensors")
    out = tmp_path / "out"
    asked: dict[str, Any] = {"base": tmp_path / "base.safetensors", "files": [str(file)], "output": out}
    apply.apply(ApplyLorasRequest(**asked, shard_size="300B"))
    with refused("output-file-invalid", "output", says="exists already"):
        apply.apply(ApplyLorasRequest(**asked))

    before = sorted(path.name for path in out.iterdir())
    part = r"\.base\.safetensors\..*\.tmp"
    for fails, of in (("write", part), ("rename", part), ("rename", "out"), ("rename", r"\.out\..*\.tmp")):

        def full(call: str, path: Path, fails: str = fails, of: str = of) -> None:
            if call == fails and re.fullmatch(of, path.name):
                raise OSError(28, "No space left on device")

        with storage.guarded(full), refused("file-unwritable", "output", says="No space left"):
            apply.apply(ApplyLorasRequest(**asked, overwrite=True))
        assert sorted(path.name for path in out.iterdir()) == before
        assert {path.name for path in tmp_path.iterdir()} == {"a.safetensors", "base.safetensors", "out"}
    left = files.temporary_name(tmp_path / "of a killed one")
    left.mkdir()
    os.utime(left, (0, 0))
    apply.apply(ApplyLorasRequest(**asked, overwrite=True))
    assert [path.name for path in out.iterdir()] == ["base.safetensors"]
    assert not left.exists()
    places.link(tmp_path / "link", out)
    ages = (out / "base.safetensors").stat().st_mtime_ns
    assert apply.apply(ApplyLorasRequest(**asked | {"output": tmp_path / "link"}, overwrite=True))
    assert (out / "base.safetensors").stat().st_mtime_ns > ages
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "link").unlink()
    for base_there in (out, out / "base.safetensors"):
        with refused("output-file-invalid", "output", says="it holds the base"):
            apply.apply(ApplyLorasRequest(**asked | {"base": base_there}, overwrite=True))
    (tmp_path / "here").mkdir()
    (out / "mine.txt").touch()
    with refused("output-file-invalid", "output", says="other files than those of a result: mine.txt"):
        apply.apply(ApplyLorasRequest(**asked, overwrite=True))
    monkeypatch.chdir(tmp_path / "here")
    for place, said in ((tmp_path, "other files"), (file, "to a folder"), (Path(), "to a folder")):
        with refused("output-file-invalid", "output", says=said):
            apply.apply(ApplyLorasRequest(**asked | {"output": place}, overwrite=True))
    assert {path.name for path in tmp_path.iterdir()} == {"a.safetensors", "base.safetensors", "out", "here"}


@pytest.mark.parametrize("name", ["mug.safetensors", "merged.safetensors", "config.json", "a.safetensors.index.json"])
def test_a_folder_of_other_files_is_never_replaced(tmp_path: Path, name: str) -> None:
    """Such as one with the LoRAs that are applied, or with one that `lora merge` wrote, with or without --overwrite."""
    folder = tmp_path / "loras"
    folder.mkdir()
    update = lora(tmp_path / "a.safetensors")
    save_file(
        {f"{layer}.weight": torch.zeros(value.shape) for layer, value in update.items()}, tmp_path / "base.safetensors"
    )
    (folder / name).write_bytes((tmp_path / "a.safetensors").read_bytes())
    if name == "merged.safetensors":
        both = [str(tmp_path / "a.safetensors")] * 2
        merge.merge(MergeLorasRequest(files=both, output=folder / name, overwrite=True))
    before = (folder / name).read_bytes()
    file = str(folder / name if name.endswith(".safetensors") else tmp_path / "a.safetensors")
    for overwrite in (False, True):
        with refused("output-file-invalid", "output", says=f"other files than those of a result: {name}"):
            asked: Any = {"base": tmp_path / "base.safetensors", "files": [file], "output": folder}
            apply.apply(ApplyLorasRequest(**asked, overwrite=overwrite))
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [(name, before)]


def test_a_file_of_another_network_is_not_applied(tmp_path: Path) -> None:
    """Nor one half of whose layers the base lacks, nor to weights in codes."""
    file, out = tmp_path / "a.safetensors", tmp_path / "out"
    update = lora(file)
    asked: dict[str, Any] = {
        "base": tmp_path / "base.safetensors",
        "files": [str(file)],
        "output": out,
        "model": "wan-tiny",
    }
    layers = list(update)
    base = {f"{layer}.weight": torch.zeros(value.shape) for layer, value in update.items()}
    cases = {
        r"1 of its 3 layers has no weight": {f"{layer}.weight": base[f"{layer}.weight"] for layer in layers[:2]},
        r"3 of its 3 layers have no weight": {f"other.{key}": value for key, value in base.items()},
        r"of another network: the update of \S+ has \[12, 8\], and \S+ needs \[12, 9\]": base
        | {f"{layers[0]}.weight": torch.zeros(12, 9)},
    }
    for says, state in cases.items():
        save_file(state, tmp_path / "base.safetensors")
        with refused("lora-does-not-fit", "files", says=says):
            apply.apply(ApplyLorasRequest(**asked))
    save_file(base | {f"{layers[0]}.weight": torch.full((12, 8), torch.nan)}, tmp_path / "base.safetensors")
    with refused("numbers-not-finite", "files"):
        apply.apply(ApplyLorasRequest(**asked))
    save_file(base | {f"{layers[0]}.weight": torch.zeros(12, 8).to(torch.float8_e4m3fn)}, tmp_path / "base.safetensors")
    with refused("weights-quantised", "base", says="1 of its 3 tensors"):
        apply.apply(ApplyLorasRequest(**asked))
    assert not out.exists()


def test_a_base_that_has_a_tensor_behind_two_prefixes_is_refused(tmp_path: Path) -> None:
    """Nobody can tell which of the two counts, neither in training nor here."""
    file, base = tmp_path / "a.safetensors", tmp_path / "base.safetensors"
    lora(file)
    state = {f"module.{name}": value for name, value in contract.build("wan-tiny").module.state_dict().items()}
    save_file(state | {"model.proj_out.bias": state["module.proj_out.bias"] + 1}, base)
    says = r"mod(ule|el)\.proj_out\.bias, mod(ule|el)\.proj_out\.bias"
    with refused("weights-unreadable", "base", says=says):
        apply.apply(ApplyLorasRequest(base=base, files=[str(file)], output=tmp_path / "out", model="wan-tiny"))
    with refused("weights-unreadable", "model.weights", says=says):
        factory.build_denoiser(
            ModelConfig(name="wan-tiny", weights=str(base)),
            autoencoder=contract.AUTOENCODER,
            text=contract.TEXT,
            device="cpu",
            seed=0,
        )


def test_a_dora_does_not_share_a_weight(tmp_path: Path) -> None:
    """The result would depend on the order of the files."""
    base = base_of("wan-tiny", tmp_path / "base")
    files = [
        str(exported(tmp_path / f"{kind}.safetensors", "wan-tiny", KINDS[kind], "diffusers"))
        for kind in ("dora", "lora")
    ]
    with refused("adapter-without-sum", "files", says="depend on the order"):
        apply.apply(ApplyLorasRequest(base=base, files=files, output=tmp_path / "out"))


def test_convolutions_and_odd_names_are_applied(tmp_path: Path) -> None:
    A, B, base = random(2, 5, 3, 3, seed=0), random(7, 2, 1, 1, seed=1), random(7, 5, 3, 3, seed=2)
    file = tmp_path / "ä=1 b.safetensors"
    save_file({"lora_unet_in_conv.lora_down.weight": A, "lora_unet_in_conv.lora_up.weight": B}, file)
    save_file({"in.conv.weight": base}, tmp_path / "base.safetensors")
    apply.apply(ApplyLorasRequest(base=tmp_path / "base.safetensors", files=[f"{file}=0.5"], output=tmp_path / "out"))
    found = load_file(tmp_path / "out" / "base.safetensors")["in.conv.weight"]
    torch.testing.assert_close(found, base + 0.5 * (B.flatten(1) @ A.flatten(1)).reshape(base.shape))


def test_a_dora_of_convolutions_has_the_rows_that_peft_merges(tmp_path: Path) -> None:
    """Whose magnitudes it stores as `[1, out, 1, 1]`, here of a square kernel; a converted file keeps these shapes."""
    torch.manual_seed(0)
    names = ("down_blocks.0.resnets.0.conv1", "down_blocks.0.resnets.0.time_emb_proj")
    module = nn.Module()
    nest(module, names[0], nn.Conv2d(4, 4, 3))
    nest(module, names[1], nn.Linear(4, 4))
    base = {name: value.clone() for name, value in module.state_dict().items()}
    save_file(base, tmp_path / "base.safetensors")
    settings = peft.LoraConfig(r=2, lora_alpha=2, use_dora=True, target_modules=[*names])
    adapted = peft.get_peft_model(module, settings)
    for name, value in adapted.named_parameters():
        if "lora_" in name:
            value.data.add_(torch.rand(value.shape), alpha=0.3)
    state = peft.get_peft_model_state_dict(adapted)
    tensors = {key.replace("base_model.model", "unet"): value.clone() for key, value in state.items()}
    told = {f"unet.{key}": getattr(settings, key) for key in ("r", "lora_alpha", "use_dora")}
    file, again, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors", tmp_path / "out"
    save_file(tensors, file, {METADATA: json.dumps(told)})
    apply.apply(ApplyLorasRequest(base=tmp_path / "base.safetensors", files=[str(file)], output=out))
    merged = adapted.merge_and_unload().state_dict()
    found = load_file(out / "base.safetensors")
    assert not any(torch.equal(found[f"{name}.weight"], base[f"{name}.weight"]) for name in names)
    for name in base:
        torch.testing.assert_close(found[name], merged[name])
    convert.convert(ConvertLoraRequest(file=file, output=again, to="diffusers", model="sdxl-tiny"))
    assert all(torch.equal(value, tensors[key]) for key, value in load_file(again).items())


def nest(module: nn.Module, name: str, child: nn.Module) -> None:
    """Add a module under a name with points."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    module.add_module(last, child)


# Extract


def tuned(state: dict[str, Tensor], updates: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value + updates.get(key, 0) for key, value in state.items()}


def test_a_difference_of_low_rank_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal layers are left out; differences of norms and biases are told with their part of the whole."""
    monkeypatch.setattr(extract, "_ROWS", 7)
    base = base_of("wan-tiny", tmp_path / "base")
    state = load_file(base / "diffusion_pytorch_model.safetensors")
    linear = [key for key in state if "attn" in key and state[key].ndim == 2][:3]
    updates = {
        key: random(state[key].shape[0], 2, seed=i) @ random(2, state[key].shape[1], seed=9)
        for i, key in enumerate(linear)
    }
    bias = next(key for key in state if key.endswith("to_q.bias"))
    updates[bias] = torch.full_like(state[bias], 0.5)
    (tmp_path / "tuned").mkdir()
    save_file(tuned(state, updates), tmp_path / "tuned" / "model.safetensors")
    target = tmp_path / "a.safetensors"
    asked: dict[str, Any] = {
        "base": base,
        "tuned": tmp_path / "tuned",
        "output": target,
        "dtype": "float32",
        "model": "wan-tiny",
    }
    found = extract.extract(ExtractLoraRequest(**asked, rank=2))
    stems = {f"transformer.{key.removesuffix('.weight')}": updates[key].double() for key in linear}
    assert updates_of(target).keys() == stems.keys()
    for stem, update in updates_of(target).items():
        torch.testing.assert_close(update, stems[stem], rtol=1e-3, atol=1e-4)
    assert found.result.relative_error is not None
    assert found.result.relative_error < 1e-5
    (other,) = found.not_held
    norms = [float(value.norm()) ** 2 for value in updates.values()]
    assert (other.kind, other.tensors) == ("norms and biases", 1)
    assert other.share is not None
    assert math.isclose(other.share, norms[-1] / sum(norms), rel_tol=1e-4)
    assert found.relative_error_in_all is not None
    assert math.isclose(found.relative_error_in_all, other.share**0.5, rel_tol=1e-3)
    assert found.equal > 10
    assert json.loads(header_of(target)[METADATA])["transformer.r"] == 2
    rougher = extract.extract(ExtractLoraRequest(**asked, rank=1, overwrite=True)).result
    for layer in rougher.layers:
        best = torch.linalg.svdvals(stems[layer.layer])
        assert layer.relative_error is not None
        assert math.isclose(layer.relative_error, float(best[1:].norm() / best.norm()), rel_tol=1e-3)


def test_what_is_extracted_gives_the_tuned_weights_when_applied(tmp_path: Path) -> None:
    """In the names of a release as one file, in bfloat16; the network is found by its weights."""
    base = base_of("flux-tiny", tmp_path / "base", released=True)
    state = load_file(base)
    key = "model.diffusion_model.double_blocks.0.img_attn.qkv.weight"
    changed = tuned(state, {key: random(*state[key].shape, seed=0)})
    save_file(changed, tmp_path / "tuned.safetensors")
    file, out = tmp_path / "a.safetensors", tmp_path / "out"
    found = extract.extract(
        ExtractLoraRequest(
            base=base, tuned=tmp_path / "tuned.safetensors", output=file, rank=99, model="flux-tiny", dtype="bfloat16"
        )
    )
    assert (found.result.convention, found.result.layers[0].rank) == ("comfyui", 32)
    apply.apply(ApplyLorasRequest(base=base, files=[str(file)], output=out))
    error = (load_file(out / "model.safetensors")[key] - changed[key]).norm() / (changed[key] - state[key]).norm()
    assert found.result.relative_error is not None
    assert math.isclose(float(error), found.result.relative_error, rel_tol=0.05)
    assert 0 < error < 0.01


def test_the_checkpoints_of_a_run_are_weights_too(tmp_path: Path) -> None:
    """Averaged, as everywhere; a run that trained a LoRA has none."""
    layer = "blocks.0.attn1.to_q"
    state = {f"{layer}.weight": random(6, 5, seed=0), "norm.weight": torch.ones(4)}
    save_file(state, tmp_path / "base.safetensors")
    run = RunFolder(tmp_path / "run")
    run.create()
    run.keep_recipe('[model]\nname = "tiny"\n')
    update = random(6, 1, seed=1) @ random(1, 5, seed=2)
    ema = {f"{layer}.weight": state[f"{layer}.weight"] + update}
    commit.save(CheckpointFolder(run.checkpoints_folder), 40, {"model": state, "ema": ema})
    target = tmp_path / "a.safetensors"
    asked: dict[str, Any] = {
        "base": tmp_path / "base.safetensors",
        "tuned": run.path,
        "output": target,
        "rank": 1,
        "dtype": "float32",
        "model": "wan-tiny",
    }
    extract.extract(ExtractLoraRequest(**asked))
    torch.testing.assert_close(updates_of(target)[f"transformer.{layer}"].float(), update, rtol=1e-4, atol=1e-5)
    commit.save(
        CheckpointFolder(run.checkpoints_folder), 50, {"model": {f"{layer}.lora_A.default.weight": torch.ones(1, 5)}}
    )
    with refused("not-full-weights", "tuned"):
        extract.extract(ExtractLoraRequest(**asked, overwrite=True))


def test_weights_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    """Half of the layers missing, others of another shape, NaN, no difference, and one that no LoRA holds."""
    layers = [f"blocks.{i}.attn1.to_{part}.weight" for i in (0, 1) for part in "qk"]
    base = {layer: random(4, 3, seed=i) for i, layer in enumerate(layers)} | {"norm.weight": torch.ones(4)}
    one, two, target = (tmp_path / f"{name}.safetensors" for name in "abc")
    save_file(base, one)
    asked = ExtractLoraRequest(base=one, tuned=two, output=target, rank=1, model="wan-tiny")
    cases = {
        ("weights-do-not-fit", r"2 weights are in one of them only, and 3 are in both"): {
            key: value for key, value in base.items() if "blocks.1" not in key
        },
        ("weights-do-not-fit", r"1 weight has other shapes, and 4 are in both"): base | {layers[0]: torch.zeros(4, 9)},
        ("weights-unreadable", r"to_q\.weight has infinities or NaN"): base
        | {layers[0]: torch.full((4, 3), torch.nan)},
        ("weights-equal", "are equal"): base,
        ("weights-equal", "norms and biases differ"): base | {"norm.weight": torch.zeros(4)},
    }
    for (code, says), state in cases.items():
        save_file(state, two)
        with refused(code, "tuned", says=says):
            extract.extract(asked)
    with refused("weights-do-not-fit", "model", says="none of the layers"):
        extract.extract(dataclasses.replace(asked, model="flux-tiny"))
    assert not target.exists()


@pytest.mark.slow
def test_a_network_that_is_not_known_has_the_names_of_its_weights(tmp_path: Path) -> None:
    base = {"a.b.weight": random(6, 5, seed=0), "model.c.weight": random(4, 5, seed=1)}
    save_file(base, tmp_path / "base.safetensors")
    save_file({key: value + 1 for key, value in base.items()}, tmp_path / "tuned.safetensors")
    file, out = tmp_path / "a.safetensors", tmp_path / "out"
    asked: dict[str, Any] = {"base": tmp_path / "base.safetensors", "tuned": tmp_path / "tuned.safetensors"}
    found = extract.extract(ExtractLoraRequest(**asked, output=file, rank=1, dtype="float32"))
    assert (found.model, [note[:11] for note in found.result.notes]) == (None, ["the network"])
    apply.apply(ApplyLorasRequest(base=asked["base"], files=[str(file)], output=out))
    for key, value in load_file(out / "base.safetensors").items():
        torch.testing.assert_close(value, base[key] + 1)
