"""Files of Hunyuan's networks as Tencent and ComfyUI have them, which diffusers does not read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_families
import torch
from safetensors.torch import save_file
from torch import Tensor

# Names of Tencent's files by patterns of those of diffusers, as its scripts/convert_hunyuan_image_to_diffusers.py and
# convert_hunyuan_video1_5_to_diffusers.py have them; with queries, keys and values joined, as the published files have them.
TENCENT = {
    r"^context_embedder_2\.norm": "byt5_in.layernorm",
    r"^context_embedder_2\.linear_": "byt5_in.fc",
    r"^x_embedder": "img_in",
    r"^context_embedder\.proj_in": "txt_in.input_embedder",
    r"^context_embedder\.time_text_embed\.timestep_embedder\.linear_1": "txt_in.t_embedder.mlp.0",
    r"^context_embedder\.time_text_embed\.timestep_embedder\.linear_2": "txt_in.t_embedder.mlp.2",
    r"^context_embedder\.time_text_embed\.text_embedder": "txt_in.c_embedder",
    r"^context_embedder\.token_refiner\.refiner_blocks": "txt_in.individual_token_refiner.blocks",
    r"^time_(guidance_)?embed\.timestep_embedder\.linear_1": "time_in.mlp.0",
    r"^time_(guidance_)?embed\.timestep_embedder\.linear_2": "time_in.mlp.2",
    r"^image_embedder\.norm_in": "vision_in.proj.0",
    r"^image_embedder\.linear_1": "vision_in.proj.1",
    r"^image_embedder\.linear_2": "vision_in.proj.3",
    r"^image_embedder\.norm_out": "vision_in.proj.4",
    r"^cond_type_embed$": "cond_type_embedding",
    r"^norm_out\.linear": "final_layer.adaLN_modulation.1",
    r"^proj_out": "final_layer.linear",
    r"^single_transformer_blocks\.": "single_blocks.",
    r"^transformer_blocks\.": "double_blocks.",
    r"^(double.*)norm1\.linear": r"\1img_mod.linear",
    r"^(double.*)norm1_context\.linear": r"\1txt_mod.linear",
    r"^(double.*)attn\.norm_([qk])": r"\1img_attn_\2_norm",
    r"^(double.*)attn\.norm_added_([qk])": r"\1txt_attn_\2_norm",
    r"^(double.*)attn\.to_out\.0": r"\1img_attn_proj",
    r"^(double.*)attn\.to_add_out": r"\1txt_attn_proj",
    r"^(double.*)attn\.to_([qkv])": r"\1img_attn_qkv@\2",
    r"^(double.*)attn\.add_([qkv])_proj": r"\1txt_attn_qkv@\2",
    r"^(double.*)ff\.net\.0\.proj": r"\1img_mlp.fc1",
    r"^(double.*)ff\.net\.2": r"\1img_mlp.fc2",
    r"^(double.*)ff_context\.net\.0\.proj": r"\1txt_mlp.fc1",
    r"^(double.*)ff_context\.net\.2": r"\1txt_mlp.fc2",
    r"^(single.*)norm\.linear": r"\1modulation.linear",
    r"^(single.*)attn\.norm_([qk])": r"\1\2_norm",
    r"^(single.*)attn\.to_([qkv])": r"\1linear1@\2",
    r"^(single.*)proj_mlp": r"\1linear1@w",
    r"^(single.*)proj_out": r"\1linear2",
    r"^(txt.*)attn\.to_([qkv])": r"\1self_attn_qkv@\2",
    r"^(txt.*)attn\.to_out\.0": r"\1self_attn_proj",
    r"^(txt.*)ff\.net\.0\.proj": r"\1mlp.fc1",
    r"^(txt.*)ff\.net\.2": r"\1mlp.fc2",
    r"^(txt.*)norm_out\.linear": r"\1adaLN_modulation.1",
}
# Replacements in these by ComfyUI (comfy/supported_models.py).
COMFYUI = {
    r"(t_embedder|_in)\.mlp\.0": r"\1.in_layer",
    r"(t_embedder|_in)\.mlp\.2": r"\1.out_layer",
    r"c_embedder\.linear_1": "c_embedder.in_layer",
    r"c_embedder\.linear_2": "c_embedder.out_layer",
    r"_mod\.linear": "_mod.lin",
    r"modulation\.linear": "modulation.lin",
    r"attn_(qkv|proj)": r"attn.\1",
    r"mlp\.fc1": "mlp.0",
    r"mlp\.fc2": "mlp.2",
    r"attn_q_norm\.weight": "attn.norm.query_norm.scale",
    r"attn_k_norm\.weight": "attn.norm.key_norm.scale",
    r"\.q_norm\.weight": ".norm.query_norm.scale",
    r"\.k_norm\.weight": ".norm.key_norm.scale",
}


def released(state: dict[str, Tensor], *, comfyui: bool) -> dict[str, Tensor]:
    """Tensors of a network in the names of a file; parts of a layer, which are marked by `@`, become one."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        layer, _, kind = name.rpartition(".")
        for own, there in TENCENT.items():
            layer = re.sub(own, there, layer)
        layer, _, part = layer.partition("@")
        swapped = layer == "final_layer.adaLN_modulation.1"
        parts.setdefault(f"{layer}.{kind}", {})[part] = torch.cat(value.chunk(2)[::-1]) if swapped else value
    made = {}
    for name, values in parts.items():
        for own, there in COMFYUI.items() if comfyui else ():
            name = re.sub(own, there, name)
        made["model.diffusion_model." * comfyui + name] = torch.cat(
            [values[part] for part in sorted(values, key="qkvw".find)]
        )
    return made


@pytest.mark.parametrize("comfyui", [False, True])
@pytest.mark.parametrize("name", ["hunyuan-image-2.1-tiny", "hunyuan-video-1.5-tiny"])
def test_a_single_file_is_loaded(tmp_path: Path, name: str, comfyui: bool) -> None:
    given = tiny_families.network(name, seed=3).state_dict()
    tensors = released(given, comfyui=comfyui)
    assert len(tensors) < len(given)
    path = tmp_path / "release.safetensors"
    save_file({key: value.contiguous() for key, value in tensors.items()}, path)
    found = tiny_families.network(name, weights=str(path)).state_dict()
    assert found.keys() == given.keys()
    assert all(torch.equal(found[key], value) for key, value in given.items())
