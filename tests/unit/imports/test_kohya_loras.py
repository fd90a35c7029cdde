"""LoRA files with the names of sd-scripts and musubi-tuner go on in a recipe that `import` wrote.

Names are those that the trainers' modules have: `lora_unet_`, and the layer's name in the model's first release, or in diffusers
for Qwen-Image and Z-Image, with underscores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from reelworks.annexes.imports import importer
from reelworks.annexes.imports.request import ImportRequest
from reelworks.models.adapters import files, inject, release_layers
from reelworks.models.adapters.config import LoraConfig
from reelworks.testing import contract
from reelworks.training.recipe import recipe_file

RANK, ALPHA = 2, 1.0
# By tiny preset: how the trainer is started, and its modules, as patterns of names with their sizes, n blocks each.
_WAN = ["self_attn_q", "self_attn_k", "self_attn_v", "self_attn_o", "cross_attn_q", "cross_attn_k", "cross_attn_v"]
_WAN += ["cross_attn_o", "ffn_0", "ffn_2"]
_QWEN = [f"attn_{name}" for name in ("to_q", "to_k", "to_v", "to_out_0", "add_q_proj", "add_k_proj", "add_v_proj")]
_QWEN += ["attn_to_add_out"] + [f"{side}_mlp_net_{layer}" for side in ("img", "txt") for layer in ("0_proj", "2")]
_DOUBLE = [f"{side}_{name}" for side in ("img", "txt") for name in ("attn_qkv", "attn_proj", "mlp_0", "mlp_2")]
_MODULATION = ["img_mod_lin", "txt_mod_lin"]
_Z = [f"attention_{name}" for name in ("to_q", "to_k", "to_v", "to_out_0")] + [f"feed_forward_w{n}" for n in (1, 2, 3)]
_IDEOGRAM = ["attention_qkv", "attention_o", *(f"feed_forward_w{n}" for n in (1, 2, 3))]
_LUMINA = ["attention_qkv", "attention_out", *(f"feed_forward_w{n}" for n in (1, 2, 3)), "adaLN_modulation_1"]
_KREA = [f"attn_{name}" for name in ("wq", "wk", "wv", "wo", "gate")] + [
    f"mlp_{name}" for name in ("gate", "up", "down")
]
_SDXL = [f"transformer_blocks_0_attn{n}_{name}" for n in (1, 2) for name in ("to_q", "to_k", "to_v", "to_out_0")]
_SDXL += ["transformer_blocks_0_ff_net_0_proj", "transformer_blocks_0_ff_net_2", "proj_in", "proj_out"]
_HUNYUAN = [f"{side}_attn_{name}" for side in ("img", "txt") for name in ("q", "k", "v", "proj")]
_HUNYUAN += [f"{side}_{name}" for side in ("img", "txt") for name in ("mlp_fc1", "mlp_fc2", "mod_linear")]
_HUNYUAN_IMAGE = ["attn_qkv", "attn_proj", "mlp_fc1", "mlp_fc2", "mod_linear"]
_ANIMA = [f"{kind}_attn_{name}" for kind in ("self", "cross") for name in ("q_proj", "k_proj", "v_proj", "output_proj")]
_KANDINSKY = [f"(self|cross)_attention_{name}" for name in ("to_query", "to_key", "to_value", "out_layer")]
_KANDINSKY += ["feed_forward_in_layer", "feed_forward_out_layer"]
CASES: dict[str, tuple[str, Mapping[str, list[str]]]] = {
    "anima-tiny": (
        "anima_train_network.py --network_module networks.lora_anima",
        {"blocks": [*_ANIMA, "mlp_layer1", "mlp_layer2"]},
    ),
    "wan-tiny": ("wan_train_network.py --task t2v-1.3B", {"blocks": _WAN}),
    "flux-tiny": (
        "flux_train_network.py --network_module networks.lora_flux",
        {"double_blocks": [*_DOUBLE, *_MODULATION], "single_blocks": ["linear1", "linear2", "modulation_lin"]},
    ),
    "flux-kontext-tiny": (
        "flux_kontext_train_network.py",
        {"double_blocks": _DOUBLE, "single_blocks": ["linear1", "linear2"]},
    ),
    "flux2-tiny": (
        "flux_2_train_network.py --model_version dev",
        {"double_blocks": _DOUBLE, "single_blocks": ["linear1", "linear2"]},
    ),
    "qwen-image-tiny": ("qwen_image_train_network.py", {"transformer_blocks": _QWEN}),
    "z-image-tiny": ("zimage_train_network.py", {"layers": _Z}),
    "hunyuan-video-1.5-tiny": ("hv_1_5_train_network.py --task t2v", {"double_blocks": _HUNYUAN}),
    "hunyuan-image-2.1-tiny": (
        "hunyuan_image_train_network.py --network_module networks.lora_hunyuan_image",
        {
            "double_blocks": [f"{side}_{name}" for side in ("img", "txt") for name in _HUNYUAN_IMAGE],
            "single_blocks": ["linear1", "linear2", "modulation_linear"],
        },
    ),
    "kandinsky5-tiny": (
        "kandinsky5_train_network.py --task k5-lite-t2v-5s-sd",
        {"text_transformer_blocks": _KANDINSKY, "visual_transformer_blocks": _KANDINSKY},
    ),
    "ideogram-4-tiny": ("ideogram4_train_network.py", {"layers": _IDEOGRAM}),
    "krea2-tiny": (
        "krea2_train_network.py",
        {
            "blocks": _KREA,
            "txtfusion_layerwise_blocks": _KREA,
            "txtfusion_refiner_blocks": _KREA,
            "": ["txtfusion_projector", "first", "last_linear", "tmlp_0", "tmlp_2", "txtmlp_1", "txtmlp_3", "tproj_1"],
        },
    ),
    "lumina-image-2.0-tiny": (
        "lumina_train_network.py --network_module networks.lora_lumina",
        {
            **dict.fromkeys(("layers", "noise_refiner", "context_refiner"), _LUMINA),
            "": ["final_layer_linear", "final_layer_adaLN_modulation_1"],
        },
    ),
    "sdxl-tiny": (
        "sdxl_train_network.py --network_module networks.lora",
        dict.fromkeys(("input_blocks", "middle_block", "output_blocks"), _SDXL),
    ),
}


def imported(folder: Path, command: str, preset: str) -> LoraConfig:
    command = (
        f"python {command} --network_dim {RANK} --network_alpha {ALPHA} --network_weights {folder / 'a.safetensors'}"
    )
    made = importer.convert(
        ImportRequest(command=command, model=preset, output=folder / "recipe.toml", force=True, clips=False)
    )
    lora = recipe_file.load(Path(made.recipe)).lora
    assert lora is not None
    return lora


def modules_of(network: nn.Module, family: Any) -> dict[str, tuple[int, int]]:
    """Rows and columns of each layer, by its name in the release with underscores; those of joined layers are added up."""
    sizes: dict[str, tuple[int, int]] = {}
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Linear):
            for spelling in {key.replace(".", "_") for key in release_layers.homes([name], family)}:
                rows, _ = sizes.get(spelling, (0, 0))
                sizes[spelling] = (rows + layer.out_features, layer.in_features)
    return sizes


QUICK = ("wan-tiny", "flux-kontext-tiny", "hunyuan-video-1.5-tiny")


@pytest.mark.parametrize(
    "preset", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_a_lora_goes_on_with_the_layers_of_its_trainer(tmp_path: Path, preset: str) -> None:
    command, wanted = CASES[preset]
    denoiser = contract.build(preset)
    tensors: dict[str, Tensor] = {}
    for name, (rows, columns) in modules_of(denoiser.module, denoiser.config).items():
        for begin, endings in wanted.items():
            pattern = rf"{begin}_\d+_(\d_)?({'|'.join(endings)})" if begin else "|".join(endings)
            if re.fullmatch(pattern, name):
                tensors[f"lora_unet_{name}.lora_down.weight"] = torch.randn(RANK, columns)
                tensors[f"lora_unet_{name}.lora_up.weight"] = torch.randn(rows, RANK)
                tensors[f"lora_unet_{name}.alpha"] = torch.tensor(ALPHA)
    save_file(tensors, tmp_path / "a.safetensors", {"ss_network_module": "networks.lora", "ss_network_dim": str(RANK)})
    config = imported(tmp_path, command, preset)
    inject.inject(denoiser, config, seed=0)
    files.load_into(denoiser.module, config, denoiser.config)
    stored = {value.abs().sum().item() for key, value in tensors.items() if "lora_down" in key}
    loaded = {value.abs().sum().item() for key, value in inject.weights(denoiser.module).items() if "lora_A" in key}
    assert loaded == stored


def test_a_star_is_one_part_of_a_name() -> None:
    assert inject.matches("layers.*.attention.to_q", "layers.3.attention.to_q")
    assert not inject.matches("layers.*.attention.to_q", "context_refiner.3.attention.to_q")
    assert inject.matches("to_q", "layers.3.attention.to_q")
    assert not inject.matches("layers.*.to_q", "layers.3.attention.to_q")
    assert not inject.matches("a.b.c", "b.c")
