"""Models of OneTrainer: the presets that they are here, their parts, and how shapes and timesteps follow from them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reelworks.models import registry


class OneTrainerModel(NamedTuple):
    """A `model_type`.

    Attributes:
        presets: Patterns of the name of its weights, each with the preset that they mean; the first that is found wins.
        texts: Its text encoders, as parts of a config.
        part: The part that is trained.
        line: Shifts at 0 and their slope per token of 16 × 16 pixels, as logarithms, for dynamic shifting; None if it
            has none.
        filters: Layer filters by the names that the window gives them.
    """

    presets: tuple[tuple[str, str], ...]
    texts: tuple[str, ...] = ("text_encoder",)
    part: str = "transformer"
    line: tuple[float, float, float, float] | None = None
    filters: Mapping[str, Sequence[str]] = {}

    def shift(self, side: float) -> float | None:
        """Return the shift of timesteps for a square of this side in pixels (`calculate_timestep_shift`)."""
        if self.line is None:
            return None
        least, low, most, high = self.line
        return math.exp(low + (high - low) * ((side / 16) ** 2 - least) / (most - least))


_FLUX_LINE = (256, 0.5, 4096, 1.15)
_ATTENTION_MLP = {
    "attn-mlp": ("attn", "ff.net", "proj_mlp"),
    "attn-only": ("attn",),
    "blocks": ("transformer_block",),
    "full": ("",),
}
_TWO, _THREE = ("text_encoder", "text_encoder_2"), ("text_encoder", "text_encoder_2", "text_encoder_3")
_BLOCKS_ONLY = {"attn-only": ("attn",), "blocks": ("transformer_block",), "full": ("",)}
MODELS: Mapping[str, OneTrainerModel] = {
    "FLUX_DEV_1": OneTrainerModel(
        ((r"(?i)schnell", "flux-schnell"), (r"(?i)kontext", "flux-kontext"), ("", "flux-dev")),
        _TWO,
        line=_FLUX_LINE,
        filters=_ATTENTION_MLP,
    ),
    "FLUX_2": OneTrainerModel(
        (
            (r"(?i)klein.*base.*9b", "flux2-klein-base-9b"),
            (r"(?i)klein.*base", "flux2-klein-base-4b"),
            (r"(?i)klein.*9b", "flux2-klein-9b"),
            (r"(?i)klein", "flux2-klein-4b"),
            ("", "flux2-dev"),
        ),
        line=_FLUX_LINE,
        filters={"blocks": ("transformer_block",), "full": ("",)},
    ),
    "CHROMA_1": OneTrainerModel(((r"(?i)chroma1?-base", "chroma1-base"), ("", "chroma1-hd")), filters=_ATTENTION_MLP),
    "QWEN": OneTrainerModel(
        ((r"2512", "qwen-image-2512"), ("", "qwen-image")),
        line=(256, 0.5, 8192, 0.9),
        filters={**_BLOCKS_ONLY, "attn-mlp": ("attn", "img_mlp", "txt_mlp")},
    ),
    "KREA_2": OneTrainerModel(
        ((r"(?i)turbo", "krea2-turbo"), ("", "krea2-raw")),
        line=_FLUX_LINE,
        filters={**_BLOCKS_ONLY, "attn-mlp": ("attn", "ff"), "blocks": ("transformer_blocks",)},
    ),
    "Z_IMAGE": OneTrainerModel(
        ((r"(?i)(?<!de-)(?<!de)turbo", "z-image-turbo"), ("", "z-image")),
        line=_FLUX_LINE,
        filters={
            "attn-mlp": ("^(?=.*attention)(?!.*refiner).*", "^(?=.*feed_forward)(?!.*refiner).*"),
            "attn-only": ("^(?=.*attention)(?!.*refiner).*",),
            "blocks": ("layers",),
            "full": ("",),
        },
    ),
    "STABLE_DIFFUSION_3": OneTrainerModel((("", "sd3-medium"),), _THREE, filters=_BLOCKS_ONLY),
    "STABLE_DIFFUSION_35": OneTrainerModel(
        ((r"(?i)large", "sd3.5-large"), ("", "sd3.5-medium")), _THREE, filters=_BLOCKS_ONLY
    ),
    "STABLE_DIFFUSION_XL_10_BASE": OneTrainerModel(
        (("", "sdxl"),),
        _TWO,
        part="unet",
        filters={"attn-mlp": ("attentions",), "attn-only": ("attn",), "full": ("",)},
    ),
}
# Those that are not here, by the names under which people know them.
OTHERS = {
    **{f"STABLE_DIFFUSION_{kind}": "stable-diffusion-1.5" for kind in ("15", "15_INPAINTING")},
    **{f"STABLE_DIFFUSION_{kind}": "stable-diffusion-2" for kind in ("20", "20_BASE", "20_INPAINTING", "20_DEPTH")},
    **{f"STABLE_DIFFUSION_{kind}": "stable-diffusion-2" for kind in ("21", "21_BASE")},
    "STABLE_DIFFUSION_XL_10_BASE_INPAINTING": "sdxl-inpainting",
    "WUERSTCHEN_2": "wuerstchen-2",
    "STABLE_CASCADE_1": "stable-cascade",
    "PIXART_ALPHA": "pixart-alpha",
    "PIXART_SIGMA": "pixart-sigma",
    "FLUX_FILL_DEV_1": "flux-fill-dev",
    "ANIMA": "anima",
    "SANA": "sana",
    "HUNYUAN_VIDEO": "hunyuanvideo",
    "HI_DREAM_FULL": "hidream",
    "ERNIE": "ernie-image",
    "IDEOGRAM_4": "ideogram-4",
}


def names_of(model_type: str, *weights: str) -> list[str]:
    """Return names of the model, the most exact one first."""
    known = MODELS.get(model_type)
    if known is None:
        return [OTHERS.get(model_type, model_type)]
    presets = [preset for _, preset in known.presets]
    exact = [preset for name in weights if name and (preset := registry.find(name)) in presets]
    told = [preset for name in weights for pattern, preset in known.presets if pattern and re.search(pattern, name)]
    return [*exact, *told, presets[-1]]
