"""ComfyUI's mapping of names and its weight adapters; its folder is on the path."""

import logging
import sys
from types import SimpleNamespace
from typing import Any

arguments, sys.argv[1:] = sys.argv[1:], ["--cpu"]  # which ComfyUI reads when it is imported

import cases  # noqa: E402
import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()
cases.let_be_imported("torchvision")

import comfy.lora  # noqa: E402
import comfy.lora_convert  # noqa: E402
import comfy.model_base  # noqa: E402
from cases import Case, UnknownNetworkError, read_all  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch import Tensor  # noqa: E402

sys.argv[1:] = arguments
# ComfyUI's classes of the networks.
_CLASSES = {
    "ChromaTransformer2DModel": "Chroma",
    "CosmosTransformer3DModel": "Anima",
    "ErnieImageTransformer2DModel": "ErnieImage",
    "Flux2Transformer2DModel": "Flux2",
    "FluxTransformer2DModel": "Flux",
    "HiDreamImageTransformer2DModel": "HiDream",
    "HunyuanImageTransformer2DModel": "HunyuanImage21",
    "HunyuanVideo15Transformer3DModel": "HunyuanVideo15",
    "Ideogram4Transformer2DModel": "Ideogram4",
    "Kandinsky5Transformer3DModel": "Kandinsky5",
    "Krea2Transformer2DModel": "Krea2",
    "LongCatImageTransformer2DModel": "LongCatImage",
    "LTXVideoTransformer3DModel": "LTXV",
    "LTX2VideoTransformer3DModel": "LTXAV",
    "Lumina2Transformer2DModel": "Lumina2",
    "MiniMaxH3Transformer3DModel": "MiniMaxH3",
    "QwenImageTransformer2DModel": "QwenImage",
    "SD3Transformer2DModel": "SD3",
    "UNet2DConditionModel": "SDXL",
    "WanTransformer3DModel": "WAN21",
    "WanVACETransformer3DModel": "WAN21_Vace",
    "ZImageTransformer2DModel": "Lumina2",
}


def _settings(case: Case) -> dict[str, Any]:
    """Return the settings of a network that the mapping of names asks for."""
    config = case.config
    if case.about["network"] == "UNet2DConditionModel":
        return _unet(config)
    return {
        "depth": config.get("num_layers"),
        "depth_single_blocks": config.get("num_single_layers"),
        "hidden_size": _width(config),
        "layers": config.get("num_layers"),
        "n_layers": config.get("n_layers", config.get("num_layers")),
        "dim": config.get("dim", config.get("hidden_size")),
    }


def _width(config: dict[str, Any]) -> int:
    return int(config.get("attention_head_dim", 0) * config.get("num_attention_heads", 0))


def _unet(config: dict[str, Any]) -> dict[str, Any]:
    blocks = len(config["block_out_channels"])
    depths = config["transformer_layers_per_block"]
    depths = depths if isinstance(depths, list) else [depths] * blocks
    count = config["layers_per_block"]
    down = ["CrossAttn" in kind for kind in config["down_block_types"]]
    up = ["CrossAttn" in kind for kind in config["up_block_types"]]
    return {
        "num_res_blocks": [count] * blocks,
        "channel_mult": list(range(blocks)),
        "transformer_depth": [depth * has for depth, has in zip(depths, down, strict=True) for _ in range(count)],
        "transformer_depth_output": [
            depth * has for depth, has in zip(depths, reversed(up), strict=True) for _ in range(count + 1)
        ],
        "transformer_depth_middle": depths[-1],
    }


def read(case: Case) -> tuple[dict[str, Tensor], list[str]]:
    """Map the names of a file, and add it to the weights."""
    network = case.about["network"]
    kind = getattr(comfy.model_base, _CLASSES.get(network, ""), None)
    if network == "ZImageTransformer2DModel" and not hasattr(comfy.utils, "z_image_to_diffusers"):
        kind = None  # only its relative, Lumina 2
    if kind is None:
        raise UnknownNetworkError(f"it has no {network}")
    if network == "SD3Transformer2DModel" and case.config["num_layers"] * 64 != _width(case.config):
        raise UnknownNetworkError("it computes the width from the depth, which tiny networks do not keep to")
    weights = {f"diffusion_model.{name}": value for name, value in case.linear("release").items()}
    config = SimpleNamespace(unet_config=_settings(case))
    members = {"state_dict": lambda self: weights, "model_config": config, "__init__": lambda self: None}
    model: Any = object.__new__(type(kind.__name__, (kind,), members))
    names = comfy.lora.model_lora_keys_unet(model, {})
    untaken: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: untaken.append(record.getMessage().rpartition(" ")[2])  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        patches = comfy.lora.load_lora(comfy.lora_convert.convert_lora(load_file(case.file)), names)
    finally:
        logging.getLogger().removeHandler(handler)
    by_weight: dict[str, list[Any]] = {}
    for key, patch in patches.items():
        name, offset, function = (*((key,) if isinstance(key, str) else key), None, None)[:3]
        by_weight.setdefault(name, []).append((1.0, patch, 1.0, offset, function))
    for name, found in by_weight.items():
        weights[name] = comfy.lora.calculate_weight(found, weights[name].clone(), name)
    return {name.removeprefix("diffusion_model."): value for name, value in weights.items()}, untaken


read_all(read)
