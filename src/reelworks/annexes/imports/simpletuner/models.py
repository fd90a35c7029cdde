"""Models of SimpleTuner: the presets that its families and flavours mean, and the multiples of its bucket sizes."""

from __future__ import annotations

from typing import Any, NamedTuple

from reelworks.annexes.imports import trainer
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.models import registry


class Flavour(NamedTuple):
    """A preset, and weights in place of the published ones, with what else the flavour means here."""

    preset: str
    weights: str | None = None
    experts: str | None = None
    training_adapter: str | None = None


_SCHNELL_ADAPTER = "ostris/FLUX.1-schnell-training-adapter"
_Z_IMAGE_ADAPTER = "ostris/zimage_turbo_training_adapter/zimage_turbo_training_adapter_v"
_HUNYUAN = "hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-"
# By family; the first flavour is the default.
FLAVOURS: dict[str, dict[str, Flavour]] = {
    "chroma": {
        "base": Flavour("chroma1-base"),
        "hd": Flavour("chroma1-hd"),
        "flash": Flavour("chroma1-hd", "lodestones/Chroma1-Flash"),
    },
    "flux": {
        "krea": Flavour("flux-dev", "black-forest-labs/FLUX.1-Krea-dev"),
        "dev": Flavour("flux-dev"),
        "schnell": Flavour("flux-schnell", training_adapter=_SCHNELL_ADAPTER),
        "kontext": Flavour("flux-kontext"),
        "fluxbooru": Flavour("flux-dev", "terminusresearch/fluxbooru-v0.3"),
    },
    "flux2": {
        "klein-9b": Flavour("flux2-klein-base-9b"),
        "klein-4b": Flavour("flux2-klein-base-4b"),
        "dev": Flavour("flux2-dev"),
    },
    "hunyuanvideo": {
        "t2v-480p": Flavour("hunyuan-video-1.5"),
        **{
            name: Flavour("hunyuan-video-1.5-i2v" if name.startswith("i2v") else "hunyuan-video-1.5", _HUNYUAN + place)
            for name, place in (
                ("t2v-720p", "720p_t2v"),
                ("t2v-480p-distilled", "480p_t2v_distilled"),
                ("i2v-720p", "720p_i2v"),
                ("i2v-480p-distilled", "480p_i2v_distilled"),
                ("i2v-720p-distilled", "720p_i2v_distilled"),
            )
        },
        "i2v-480p": Flavour("hunyuan-video-1.5-i2v"),
    },
    "krea2": {"raw": Flavour("krea2-raw"), "turbo": Flavour("krea2-turbo")},
    "ltxvideo": {"0.9.5": Flavour("ltx-video-2b", "Lightricks/LTX-Video-0.9.5"), "0.9.0": Flavour("ltx-video-2b")},
    "ltxvideo2": {
        "dev": Flavour("ltx-2"),
        "dev-fp4": Flavour("ltx-2"),
        "dev-fp8": Flavour("ltx-2"),
        "2.3-dev": Flavour("ltx-2.3"),
        "2.3-distilled": Flavour("ltx-2.3", "dg845/LTX-2.3-Distilled-Diffusers"),
        "2.5-dev": Flavour("ltx-2.5"),
        "2.5-distilled": Flavour("ltx-2.5-distilled"),
    },
    "minimaxh3": dict.fromkeys(
        ("fl2va", "ref2va", "convrot-int8", "convrot-int4", "nvfp4", "fp8-e4m3fn"), Flavour("minimax-h3")
    ),
    "qwen_image": {
        "v2.0": Flavour("qwen-image-2512"),
        "v1.0": Flavour("qwen-image"),
        "edit-v1": Flavour("qwen-image-edit"),
        "edit-v2": Flavour("qwen-image-edit-2509"),
        "edit-v2+": Flavour("qwen-image-edit-2509"),
        "edit-v3": Flavour("qwen-image-edit-2511"),
    },
    "sd3": {"medium": Flavour("sd3.5-medium"), "large": Flavour("sd3.5-large")},
    "sdxl": {"base-1.0": Flavour("sdxl"), "base-0.9": Flavour("sdxl", "stabilityai/stable-diffusion-xl-base-0.9")},
    "wan": {
        "t2v-480p-1.3b-2.1": Flavour("wan-2.1-1.3b"),
        "t2v-480p-14b-2.1": Flavour("wan-2.1-14b"),
        "i2v-14b-2.1": Flavour("wan-2.1-i2v-14b"),
        "i2v-14b-2.1-720p": Flavour("wan-2.1-i2v-14b", "Wan-AI/Wan2.1-I2V-14B-720P-Diffusers"),
        "i2v-14b-2.2-high": Flavour("wan-2.2-i2v-14b", experts="high"),
        "i2v-14b-2.2-low": Flavour("wan-2.2-i2v-14b", experts="low"),
        "animegen-t2v-high": Flavour("wan-2.2-14b", experts="high"),
        "animegen-t2v-low": Flavour("wan-2.2-14b", experts="low"),
        "flf2v-14b-2.1": Flavour("wan-2.1-flf2v-14b"),
        "vace-1.3b-2.1": Flavour("wan-2.1-vace-1.3b"),
        "vace-14b-2.1": Flavour("wan-2.1-vace-14b"),
        "ti2v-5b-2.2": Flavour("wan-2.2-5b"),
    },
    "z_image": {
        "turbo-ostris-v2": Flavour("z-image-turbo", training_adapter=f"{_Z_IMAGE_ADAPTER}2.safetensors"),
        "base": Flavour("z-image"),
        "turbo": Flavour("z-image-turbo", training_adapter=f"{_Z_IMAGE_ADAPTER}1.safetensors"),
        "ostris-de-turbo": Flavour("z-image-turbo", "ostris/Z-Image-De-Turbo"),
    },
}
_SPELLINGS = {"qwen-image": "qwen_image", "z-image": "z_image", "ltxvideo-2": "ltxvideo2", "minimax-h3": "minimaxh3"}
_EIGHTS = ("wan", "ltxvideo", "ltxvideo2", "longcat_video")  # families whose clips have 8 n + 1 frames there


def family(settings: FormerSettings) -> str:
    """Return the name of the family."""
    name = settings.get("model_family")
    name = name.strip().lower() if isinstance(name, str) else ""
    return _SPELLINGS.get(name, name)


def flavour(settings: FormerSettings) -> str:
    """Return the flavour of the config; the family's default if it has none."""
    name = settings.get("model_flavour")
    known = FLAVOURS.get(family(settings), {})
    return name.strip().lower() if isinstance(name, str) and name.strip() else next(iter(known), "")


def bucket_multiple(settings: FormerSettings) -> int:
    """Return the number that divides the sides of all its buckets."""
    if family(settings) == "wan":
        return 64 if "5b" in flavour(settings) else 32
    if family(settings) == "flux2":
        return 16
    value = settings.get("aspect_bucket_alignment", 64)
    return (
        value
        if isinstance(value, int) and 0 < value <= 4096 and family(settings) not in ("sdxl", "sd3", "flux")
        else 64
    )


def frames_there(settings: FormerSettings, frames: int) -> int:
    """Return the number of frames to which it shortens a clip before anything else."""
    return max((frames - 1) // 8 * 8 + 1, 1) if family(settings) in _EIGHTS else frames


def choose(draft: ImportDraft) -> None:
    """Put the model into the draft; raises `UserError`, one line, for a model that is not there."""
    settings = draft.settings
    name, path = family(settings), _path(settings)
    published = registry.find(path) if name in FLAVOURS else None  # of a path to a model of ours, that is meant
    chosen = FLAVOURS.get(name, {}).get(flavour(settings))
    known = {} if chosen is None else {name: chosen.preset}
    draft.begin("model_flavour" if name in FLAVOURS and "model_flavour" in settings.values else "model_family")
    unknown = f"{name}-{flavour(settings)}" if name in FLAVOURS else name
    preset = trainer.find_model(draft, draft.key, [published or "", name if known else unknown], known)
    same = chosen is not None and preset == chosen.preset
    if _has_sound(settings) and f"{preset}-sound" in registry.PRESETS:
        preset = f"{preset}-sound"
    own = chosen.weights if chosen is not None and same else None
    trainer.choose_model(draft, preset, own if not path else None if published else path)
    if chosen is None or not same:
        return
    if chosen.experts is not None:
        draft.set("model.experts", chosen.experts)
    adapted = settings.get("model_type") == "lora" and settings.get("disable_assistant_lora") is not True
    if chosen.training_adapter is not None and adapted:
        draft.set("lora.training_adapter", chosen.training_adapter)


def _path(settings: FormerSettings) -> str:
    names: list[Any] = [settings.get(f"pretrained_{part}model_name_or_path") for part in ("transformer_", "unet_", "")]
    found = next((name for name in names if isinstance(name, str) and name.strip().lower() not in ("", "none")), "")
    return found.strip()


def _has_sound(settings: FormerSettings) -> bool:
    return any(key.startswith("data.") and ".audio." in key for key in settings.values)
