"""Layers of text encoders keep what they mean in all conventions, and are added to the encoder that they are of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers_readers import merged
from lora_files import lora, random, updates_of
from refused import refused
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from reelworks.annexes.lora import apply, convert, info, merge, resize
from reelworks.annexes.lora.request import (
    ApplyLorasRequest,
    ConvertLoraRequest,
    LoraInfoRequest,
    MergeLorasRequest,
    ResizeLoraRequest,
)
from reelworks.models.adapters import files, text_encoders
from reelworks.models.adapters.adapter_types.adapter_type import Adapter
from reelworks.models.adapters.key_mapping import METADATA
from reelworks.testing import contract

DOWN_UP = ("lora_down", "lora_up")
CLIP_Q, T5_Q = "text_model.encoder.layers.0.self_attn.q_proj", "encoder.block.0.layer.0.SelfAttention.q"
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


# Names of one layer each, for CLIP-L, CLIP-G and T5.
SPELLINGS = {
    "CLIP-L": [
        "lora_te_text_model_encoder_layers_0_mlp_fc1",
        "lora_te1_text_model_encoder_layers_0_mlp_fc1",
        "text_encoder.text_model.encoder.layers.0.mlp.fc1",
        "text_encoder.encoder.layers.0.mlp.fc1",
        "text_encoders.clip_l.transformer.text_model.encoder.layers.0.mlp.fc1",
    ],
    "CLIP-G": [
        "lora_te2_text_model_encoder_layers_0_mlp_fc1",
        "text_encoder_2.text_model.encoder.layers.0.mlp.fc1",
        "text_encoders.clip_g.transformer.text_model.encoder.layers.0.mlp.fc1",
    ],
    "T5": [
        "lora_te2_encoder_block_0_layer_0_SelfAttention_q",
        "lora_te3_encoder_block_0_layer_0_SelfAttention_q",
        "text_encoder_2.encoder.block.0.layer.0.SelfAttention.q",
        "text_encoder_3.encoder.block.0.layer.0.SelfAttention.q",
        "text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q",
    ],
}


def test_each_name_is_written_as_the_convention_has_it() -> None:
    """Also what transformers 5 leaves out of CLIP's, and not for a T5 of other models."""
    for stem in SPELLINGS["CLIP-L"][2:]:
        assert text_encoders.in_kohya(stem) == SPELLINGS["CLIP-L"][1]
        assert text_encoders.in_diffusers(stem) == SPELLINGS["CLIP-L"][2]
    assert {text_encoders.in_kohya(stem, is_only=False) for stem in SPELLINGS["T5"]} == {SPELLINGS["T5"][1]}
    assert text_encoders.in_kohya("text_encoders.umt5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q") is None


@pytest.mark.parametrize("encoder", SPELLINGS)
def test_all_names_of_a_layer_mean_one(tmp_path: Path, encoder: str) -> None:
    """Files that spell it otherwise have one sum of it, and a file that has it twice is refused."""
    first, *others = SPELLINGS[encoder]
    one, two, both, target = (tmp_path / f"{name}.safetensors" for name in "abcd")
    update = lora(one, {first: (6, 4)}, prefix="", matrices=DOWN_UP)[first]
    for other in others:
        more = lora(two, {other: (6, 4)}, prefix="", seed=5)[other]
        merge.merge(MergeLorasRequest(files=[str(one), f"{two}=2"], output=target, overwrite=True))
        (found,) = updates_of(target).values()
        torch.testing.assert_close(found, update + 2 * more)
        save_file(load_file(one) | load_file(two), both)
        with refused("lora-unreadable", "file", says="several updates of one layer"):
            resize.resize(ResizeLoraRequest(file=both, output=tmp_path / "e.safetensors", rank=1))


@pytest.mark.parametrize(("name", "kohya"), [("sd1.5-tiny", "lora_te_"), ("sdxl-tiny", "lora_te1_")])
def test_kohya_s_scripts_number_the_encoder_of_a_model_that_has_another(tmp_path: Path, name: str, kohya: str) -> None:
    """In exports and converted files, which they read whole; those of SD 1 have no number, and diffusers' names in the UNet."""
    layer, unet = f"text_encoder.{CLIP_Q}", "mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
    pairs = {each: {"A": random(2, 8, seed=0), "B": random(8, 2, seed=1)} for each in (layer, f"unet.{unet}")}
    source, target, back = (tmp_path / f"{each}.safetensors" for each in "abc")
    save_file(
        {f"{each}.lora_{side}.weight": v.clone() for each, kinds in pairs.items() for side, v in kinds.items()}, source
    )
    convert.convert(ConvertLoraRequest(file=source, output=target, to="kohya", model=name))
    state = {f"{each}.lora_{side}.default.weight": v for each, kinds in pairs.items() for side, v in kinds.items()}
    own = files.to_file(state, "kohya", adapter=Adapter(rank=2, alpha=2.0), part="unet", model=name).tensors
    assert own.keys() == load_file(target).keys()
    assert f"{kohya}text_model_encoder_layers_0_self_attn_q_proj.lora_down.weight" in own
    assert info.info(LoraInfoRequest(file=target, model=name)).readers["sd-scripts"] == 2
    other = {"lora_te_": "lora_te1_", "lora_te1_": "lora_te_"}[kohya]
    save_file({key.replace(kohya, other): value for key, value in load_file(target).items()}, back)
    assert info.info(LoraInfoRequest(file=back, model=name)).readers["sd-scripts"] == 1
    convert.convert(ConvertLoraRequest(file=target, output=back, to="diffusers", model=name, overwrite=True))
    assert load_file(back).keys() == load_file(source).keys()


def encoder() -> CLIPTextModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    return CLIPTextModel(CLIPTextConfig(vocab_size=20, bos_token_id=1, eos_token_id=2, **sizes))


@pytest.mark.parametrize("ranks", [(4, 4), (4, 2)])
@pytest.mark.parametrize("verb", ["merge", "convert", "resize"])
def test_diffusers_loads_a_written_file_into_both(tmp_path: Path, verb: str, ranks: tuple[int, int]) -> None:
    """By its path, with the settings in its header, into a CLIP and a UNet of random weights; of one rank, and of several."""
    one, two, target = (tmp_path / f"{name}.safetensors" for name in "abc")
    network = lora(one, {UNET["diffusers"]: (32, 32)}, prefix="unet.")
    by_layer = dict(zip(CLIP, ranks * 2, strict=True))
    of_texts = lora(two, CLIP, prefix="lora_te1_", matrices=DOWN_UP, ranks=by_layer, alpha=3.0, seed=40)
    if verb == "merge":
        merge.merge(MergeLorasRequest(files=[str(one), str(two)], output=target, model="sdxl-tiny"))
    else:
        released = {
            f"lora_unet_{UNET['kohya'].replace('.', '_')}.lora_{new}.weight": old
            for new, old in (("down", "A"), ("up", "B"))
        }
        tensors = {new: load_file(one)[f"unet.{UNET['diffusers']}.lora_{old}.weight"] for new, old in released.items()}
        save_file(tensors | load_file(two), one)
        there = target if verb == "convert" else two
        convert.convert(ConvertLoraRequest(file=one, output=there, to="diffusers", model="sdxl-tiny", overwrite=True))
        if verb == "resize":
            resize.resize(ResizeLoraRequest(file=two, output=target, keep=1))
    text, unet = encoder(), contract.build("sdxl-tiny").module
    empty = dict.fromkeys(("vae", "text_encoder_2", "tokenizer", "tokenizer_2", "scheduler"))
    kind: Any = diffusers.StableDiffusionXLPipeline
    kind(unet=unet, text_encoder=text, **empty).load_lora_weights(str(target))
    for module, base, updates in (
        (text, encoder(), of_texts),
        (unet, contract.build("sdxl-tiny").module, network),
    ):
        found, before = merged(module), base.state_dict()
        updates = {
            name if f"{name}.weight" in before else name.removeprefix("text_model."): v for name, v in updates.items()
        }
        for name in (name for name, value in before.items() if value.ndim == 2):
            update = updates.get(name.removesuffix(".weight"), torch.zeros(()))
            torch.testing.assert_close(found[name].double(), before[name].double() + update, rtol=0, atol=1e-5)


def test_peft_s_settings_of_an_encoder_name_its_layers(tmp_path: Path) -> None:
    """As peft reads a key: the end of a name, or behind "^" all of it."""
    layer, other = "text_model.encoder.layers.0.mlp.fc1", "text_model.encoder.layers.1.mlp.fc1"
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    for key in (f"^{layer}", layer, "0.mlp.fc1"):
        settings = {"text_encoder.r": 2, "text_encoder.lora_alpha": 2, "text_encoder.alpha_pattern": {key: 8}}
        wanted = lora(
            source,
            {layer: (6, 4), other: (6, 4)},
            ranks=2,
            prefix="text_encoder.",
            header={METADATA: json.dumps(settings)},
        )
        convert.convert(ConvertLoraRequest(file=source, output=target, to="kohya", overwrite=True))
        found = updates_of(target)
        torch.testing.assert_close(found[f"lora_te1_{layer.replace('.', '_')}"], 4 * wanted[layer])
        torch.testing.assert_close(found[f"lora_te1_{other.replace('.', '_')}"], wanted[other])


@pytest.mark.parametrize("part", ["text_encoder_2", "text_encoder_3"])
def test_peft_s_settings_of_a_t5_are_those_of_its_folder(tmp_path: Path, part: str) -> None:
    """Which depends on the model, and is no name of it in other files."""
    source, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    header = {METADATA: json.dumps({f"{part}.r": 2, f"{part}.lora_alpha": 8})}
    wanted = lora(source, {T5_Q: (8, 8)}, ranks=2, prefix=f"{part}.", header=header)
    convert.convert(ConvertLoraRequest(file=source, output=target, to="kohya"))
    torch.testing.assert_close(updates_of(target), {f"lora_te3_{T5_Q.replace('.', '_')}": 4 * wanted[T5_Q]})


# Full weights


def pipeline_of(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Write a pipeline of FLUX, whose second encoder is a T5, and return its weights by folder."""
    T5_sizes = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    modules = {"text_encoder": encoder(), "text_encoder_2": T5EncoderModel(T5Config(vocab_size=20, **T5_sizes))}
    weights = {
        part: {key: v.contiguous() for key, v in module.state_dict().items()} for part, module in modules.items()
    }
    weights["text_encoder_2"].pop("encoder.embed_tokens.weight", None)  # which is another name of the first
    weights["transformer"] = {"x.weight": torch.zeros(8, 8)}
    for part, state in weights.items():
        (folder / part).mkdir(parents=True)
        save_file(state, folder / part / "model.safetensors")
    (folder / "model_index.json").write_text("{}", encoding="utf-8")
    return weights


OF_FLUX = {
    "kohya": (f"lora_te1_{CLIP_Q.replace('.', '_')}", f"lora_te3_{T5_Q.replace('.', '_')}"),
    "OneTrainer": (f"lora_te1_{CLIP_Q.replace('.', '_')}", f"lora_te2_{T5_Q.replace('.', '_')}"),
    "diffusers": (f"text_encoder.{CLIP_Q}", f"text_encoder_2.{T5_Q}"),
    "ComfyUI": (f"text_encoders.clip_l.transformer.{CLIP_Q}", f"text_encoders.t5xxl.transformer.{T5_Q}"),
}


@pytest.mark.parametrize("names", OF_FLUX)
def test_each_layer_goes_to_the_encoder_that_it_is_of(tmp_path: Path, names: str) -> None:
    """A call tells which --part takes what it leaves out, and adds nothing in vain."""
    clip, t5 = OF_FLUX[names]
    before, file, out = pipeline_of(tmp_path / "pipe"), tmp_path / "a.safetensors", tmp_path / "out"
    updates = lora(file, {clip: (8, 8), t5: (8, 8), "x": (8, 8)}, prefix="", matrices=DOWN_UP)

    def added(part: str | None) -> tuple[dict[str, Tensor], list[str]]:
        asked = ApplyLorasRequest(base=tmp_path / "pipe", files=[str(file)], output=out, part=part, overwrite=True)
        notes = apply.apply(asked).notes
        (path,) = out.glob("*.safetensors")
        own = before[part or "transformer"]
        return {
            key: value - own[key] for key, value in load_file(path).items() if not torch.equal(value, own[key])
        }, notes

    of_clip, of_t5 = "1 layer of text_encoder (--part text_encoder)", "1 layer of t5xxl (--part text_encoder_2)"
    of_network = "1 layer of the network (without --part)"
    for part, stem, left in (
        (None, "x", (of_t5, of_clip)),
        ("text_encoder", clip, (of_t5, of_network)),
        ("text_encoder_2", t5, (of_clip, of_network)),
    ):
        changed, notes = added(part)
        ((name, found),) = changed.items()
        assert name.removesuffix(".weight").replace(".", "_").removeprefix("text_model_") in stem.replace(".", "_")
        torch.testing.assert_close(found.double(), updates[stem], rtol=1e-4, atol=1e-5)
        assert notes == [f"{file}: left out: {' and '.join(left)}"]
    lora(file, {"x": (8, 8)}, prefix="")
    with refused(
        "lora-does-not-fit", "files", says=r"nothing would be added to text_encoder_2: .*the network \(without part\)"
    ):
        added("text_encoder_2")


def test_the_text_encoder_of_a_single_file_is_a_part_of_it(tmp_path: Path) -> None:
    """As checkpoints of SD 1, SDXL and ComfyUI name it beside their network."""
    base, file, out = tmp_path / "base.safetensors", tmp_path / "a.safetensors", tmp_path / "out"
    layer = f"lora_te1_{CLIP_Q.replace('.', '_')}"
    update = lora(file, {"lora_unet_x": (8, 8), layer: (8, 8)}, prefix="", matrices=DOWN_UP)[layer]
    for prefix in (
        "cond_stage_model.transformer.",
        "conditioner.embedders.0.transformer.",
        "text_encoders.clip_l.transformer.",
    ):
        state = {
            "model.diffusion_model.x.weight": random(8, 8, seed=3),
            f"{prefix}{CLIP_Q}.weight": random(8, 8, seed=4),
        }
        save_file(state, base)
        asked: Any = {"base": base, "files": [str(file)], "output": out, "overwrite": True}
        assert apply.apply(ApplyLorasRequest(**asked)).notes == [
            f"{file}: left out: 1 layer of text_encoder (--part text_encoder)"
        ]
        apply.apply(ApplyLorasRequest(**asked, part="text_encoder"))
        found = load_file(out / "base.safetensors")
        for name, value in state.items():
            torch.testing.assert_close(
                found[name].double(), value.double() + (update if CLIP_Q in name else 0), rtol=1e-5, atol=1e-5
            )
