"""Wan2GP's mapping of names, and the loader of mmgp that it gives the file to; its folder is on the path."""

import importlib
import sys
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any

import torch

# Its networks ask for the GPU and its kind when they are imported.
torch.cuda.get_device_capability = lambda *_: (8, 0)
torch.cuda.current_device = lambda: 0

import diffusers.loaders  # noqa: E402, F401
import transformers  # noqa: E402
from cases import Case, UnknownNetworkError, bare, enter, let_be_imported, read_all  # noqa: E402
from torch import Tensor  # noqa: E402

for needed in ("AutoImageProcessor", "CLIPVisionModel", "PreTrainedModel", "T5EncoderModel", "UMT5EncoderModel"):
    getattr(transformers, needed)
_OTHERS = "cv2 ftfy imageio librosa matplotlib onnxruntime rembg smplfitter soundfile torchaudio torchvision"
let_be_imported(*_OTHERS.split())

import models  # noqa: E402
from mmgp import offload  # noqa: E402

# Of the program itself, which the networks ask whether a model begins with a picture.
sys.modules["wgp"] = ModuleType("wgp")
vars(sys.modules["wgp"])["test_class_i2v"] = lambda _: False
for folder in Path(models.__path__[0]).iterdir():
    enter(f"models.{folder.name}", folder)

# Of each network: Wan2GP's class, and whether it has the names of the release or of diffusers.
_NETWORKS = {
    "ChromaTransformer2DModel": ("models.flux.model.Flux", "release"),
    "Flux2Transformer2DModel": ("models.flux.model.Flux", "release"),
    "FluxTransformer2DModel": ("models.flux.model.Flux", "release"),
    "Krea2Transformer2DModel": ("models.krea2.krea2_mmdit.SingleStreamDiT", "release"),
    "MiniMaxH3Transformer3DModel": ("models.minimax_h3.transformer.MiniMaxH3Model", "release"),
    "QwenImageTransformer2DModel": ("models.qwen.transformer_qwenimage.QwenImageTransformer2DModel", "diffusers"),
    "WanTransformer3DModel": ("models.wan.modules.model.WanModel", "release"),
    "WanVACETransformer3DModel": ("models.wan.modules.model.WanModel", "release"),
    "ZImageTransformer2DModel": ("models.z_image.z_image_transformer2d.ZImageTransformer2DModel", "diffusers"),
}


def _joined_rows(weights: dict[str, Tensor], kind: str) -> dict[str, Any] | None:
    """Return its table of the rows of layers that it takes apart, which FLUX and its kin have."""
    if not kind.startswith("models.flux."):
        return None
    layers = importlib.import_module("models.flux.modules.layers")
    joined = next(weight for name, weight in weights.items() if name.endswith("linear1.weight"))
    rows, width = joined.shape
    found: dict[str, Any] = layers.get_linear_split_map(width, single_linear1_mlp_ratio=(rows - 3 * width) / width)
    return found


def read(case: Case) -> tuple[dict[str, Tensor], list[str]]:
    """Load a file into the layers of the network as Wan2GP names them, and add what the loader keeps of each."""
    kind, names = _NETWORKS.get(case.about["network"], ("", ""))
    if not kind:
        raise UnknownNetworkError("its names of this network are others than those here")
    weights, wanted = case.linear(names), case.linear(names, "wanted-")
    rows = _joined_rows(weights, kind)
    module, trained = bare(weights), bare(wanted)
    if rows:
        for one in (module, trained):
            offload.split_linear_modules(one, rows)
    case.compare_with(module.state_dict(), trained.state_dict())
    place, _, name = kind.rpartition(".")
    convert = MethodType(getattr(importlib.import_module(place), name).preprocess_loras, module)
    linear = {key: layer for key, layer in module.named_modules() if isinstance(layer, torch.nn.Linear)}
    loader: Any = module
    loader.use_adaln_curves = False  # of MiniMax-H3
    loader._loras_model_data = {layer: {} for layer in linear.values()}
    loader._loras_model_shortcuts = {}
    offload.load_loras_into_model(
        module,
        [str(case.file)],
        preprocess_sd=lambda state: convert("minimax_h3_fl2va", state),
        split_linear_modules_map=rows,
    )
    if loader._loras_errors:
        raise ValueError(loader._loras_errors[0][1])
    merged = dict(module.state_dict())
    for key, layer in linear.items():
        for first, second, _, magnitude, scale, about in loader._loras_model_data[layer].values():
            assert magnitude is None
            # Tensors that several layers have in common are named after the first that has them.
            first, second = (_shared(loader, linear, each) for each in (first, second))
            is_kronecker = about.get("type") == "lokr"
            merged[f"{key}.weight"] += scale * (torch.kron(first, second) if is_kronecker else second @ first)
    return merged, []


def _shared(loader: Any, linear: dict[str, torch.nn.Linear], found: Any) -> Tensor:
    if isinstance(found, str):
        owner, _, slot = found.rpartition("#")
        (kept,) = loader._loras_model_data[linear[owner]].values()
        found = kept[int(slot)]
    result: Tensor = found
    return result


read_all(read)
