"""DiffSynth's loaders, which its pipelines choose by their model, on networks with its own names of layers."""

from typing import Any

from cases import Case, UnknownNetworkError, bare, let_be_imported, read_all
from safetensors.torch import load_file
from torch import Tensor

let_be_imported("torchvision")

from diffsynth.utils.lora.flux import FluxLoRALoader  # noqa: E402
from diffsynth.utils.lora.general import GeneralLoRALoader  # noqa: E402
from diffsynth.utils.lora.krea2 import Krea2LoRALoader  # noqa: E402
from diffsynth.utils.lora.minimax_h3 import MiniMaxH3LoRALoader  # noqa: E402
from diffsynth.utils.state_dict_converters import (  # noqa: E402
    flux3_dit,
    flux_dit,
    krea2_dit,
)

# Of each network: the names that DiffSynth converts weights from, its own conversion if it has one, and its loader.
_NETWORKS: dict[str, tuple[str, Any, Any]] = {
    "Flux2Transformer2DModel": ("diffusers", None, GeneralLoRALoader),
    "Flux3Transformer2DModel": ("diffusers", flux3_dit.Flux3DiTFromDiffusers, GeneralLoRALoader),
    "FluxTransformer2DModel": ("release", flux_dit.FluxDiTStateDictConverter, FluxLoRALoader),
    "Krea2Transformer2DModel": ("release", krea2_dit.Krea2DiTStateDictConverter, Krea2LoRALoader),
    "LTX2VideoTransformer3DModel": ("release", None, GeneralLoRALoader),
    "MiniMaxH3Transformer3DModel": ("release", None, MiniMaxH3LoRALoader),
    "QwenImageTransformer2DModel": ("diffusers", None, GeneralLoRALoader),
    "QwenImage21Transformer2DModel": ("diffusers", None, GeneralLoRALoader),
    "UNet2DConditionModel": ("diffusers", None, GeneralLoRALoader),
    "WanTransformer3DModel": ("release", None, GeneralLoRALoader),
    "WanVACETransformer3DModel": ("release", None, GeneralLoRALoader),
    "ZImageTransformer2DModel": ("diffusers", None, GeneralLoRALoader),
}


def read(case: Case) -> tuple[dict[str, Tensor], list[str]]:
    """Fuse a file into the layers of the network as DiffSynth names them."""
    if case.about["network"] not in _NETWORKS:
        raise UnknownNetworkError(f"it has no {case.about['network']}")
    names, convert, kind = _NETWORKS[case.about["network"]]
    loader, stored = kind(), load_file(case.file)
    own = [convert(weights) if convert else weights for weights in (case.linear(names), case.linear(names, "wanted-"))]
    base, wanted = ({name: value for name, value in one.items() if value.ndim == 2} for one in own)
    case.compare_with(base, wanted)
    module = bare(base)
    converted = loader.convert_state_dict(stored)
    layers = {key.partition(".lora_")[0] for key in converted}
    loader.fuse_lora_to_base_model(module, converted)
    lost = sorted(layers - {name for name, _ in module.named_modules()})
    return module.state_dict(), lost if layers else sorted(stored)


read_all(read)
