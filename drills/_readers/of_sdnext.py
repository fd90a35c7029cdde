"""SD.Next's own loaders; its folder is on the path, and the rest of its program, which they do not need to read a file, is not."""

import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from cases import Case, UnknownNetworkError, bare, enter, read_all
from safetensors.torch import load_file
from torch import Tensor

# Its names of the models that it reads files for by itself, and the layers that these have there; others are left to diffusers.
_MODELS = {
    "ChromaTransformer2DModel": ("chroma", "diffusers"),
    "CosmosTransformer3DModel": ("anima", "diffusers"),
    "ErnieImageTransformer2DModel": ("ernieimage", "diffusers"),
    "Flux2Transformer2DModel": ("f2", "diffusers"),
    "FluxTransformer2DModel": ("f1", "diffusers"),
    "Krea2Transformer2DModel": ("krea2", "release"),
    "SD3Transformer2DModel": ("sd3", "diffusers"),
    "UNet2DConditionModel": ("sdxl", "diffusers"),
    "ZImageTransformer2DModel": ("zimage", "diffusers"),
}
# Those whose tables of names, or of joined rows, are for the published sizes alone.
_OF_ONE_SIZE = {("f1", "kohya"), ("sd3", "kohya"), ("sdxl", "kohya"), ("chroma", "comfyui"), ("chroma", "kohya")}
_SETTINGS = {"extra_networks_default_multiplier": 1.0, "lora_fuse_native": True, "lora_fuse_diffusers": True}


def _module(name: str, **members: Any) -> Any:
    module = ModuleType(f"modules.{name}")
    vars(module).update(members)
    sys.modules[f"modules.{name}"] = module
    return module


shared = _module(
    "shared", opts=SimpleNamespace(**_SETTINGS), cmd_opts=SimpleNamespace(lora_dir=os.devnull), sd_loaded=True
)
_module("logger", log=logging.getLogger("sdnext"))
_module(
    "devices", cpu=torch.device("cpu"), device=torch.device("cpu"), dtype=torch.float32, inference_context=nullcontext
)
_module("sd_models", read_state_dict=lambda file, **_: load_file(file))
_module("sd_models_utils", state_dict_cache=SimpleNamespace(enable=lambda: None, disable=lambda: None))
_module("sd_checkpoint", read_metadata_from_safetensors=lambda _: {})
_module("hashes", sha256_from_cache=lambda *_, **__: None)
for unused in ("errors", "sd_models_compile", "files_cache"):
    _module(unused)

from modules.lora import lora_load, network  # noqa: E402

# Without what stands in these packages beside the loaders.
for folder in (Path(lora_load.__file__).parents[2] / "pipelines").iterdir():
    enter(f"pipelines.{folder.name}", folder)


def read(case: Case) -> tuple[dict[str, Tensor], list[str]]:
    """Add what its loader finds in a file to the weights."""
    kind, names = _MODELS.get(case.about["network"], ("", ""))
    if not kind:
        raise UnknownNetworkError("it leaves this one to diffusers")
    if (kind, case.about["convention"]) in _OF_ONE_SIZE:
        raise UnknownNetworkError("it knows the names of the published network only")
    weights = case.linear(names)
    case.compare_with(weights, case.linear(names, "wanted-"))
    module = bare(weights)
    shared.sd_model_type, shared.sd_model = kind, SimpleNamespace(**{case.about["part"]: module})
    name = case.folder.name
    found = lora_load.load_safetensors(name, network.NetworkOnDisk(name, str(case.file)))
    places = {f"lora_{case.about['part']}_{key.replace('.', '_')}": key for key, _ in module.named_modules()}
    merged = dict(weights)
    for key, layer in ({} if found is None else found.modules).items():
        target = f"{places[key]}.weight"
        update, _ = layer.calc_updown(merged[target])
        merged[target] = merged[target] + update
    return merged, []


read_all(read)
