"""Models of diffusion-pipe: the presets that they are here, and how each treats shapes."""

from __future__ import annotations

import re
from typing import NamedTuple

from reelworks.annexes.imports.draft import FormerSettings


class DiffusionPipeModel(NamedTuple):
    """A `model.type`.

    Attributes:
        presets: Patterns of the names of its weights, each with the preset that they mean; the first that is found wins.
        weights: Keys of `[model]` with its weights, of which the first that is set is taken.
        fps: Frame rate to which clips are brought; None if it takes pictures only.
        frames: Step of frame counts, which are a multiple of it plus `first`.
        first: See `frames`.
        format: Convention of the LoRAs that it writes.
    """

    presets: tuple[tuple[str, str], ...]
    weights: tuple[str, ...] = ("diffusion_model",)
    fps: float | None = None
    frames: int = 4
    first: int = 1
    format: str = "comfyui"

    def align(self, frames: int) -> int:
        """Return the number of frames that are trained of a bucket's."""
        return max((frames - self.first) // self.frames * self.frames + self.first, 1)


_ANY = ""
_DIFFUSERS = ("transformer_path", "diffusers_path")
_WAN = (
    (r"(?i)skyreels", "SkyReels"),
    (r"(?i)vace.*1\.3b", "wan-2.1-vace-1.3b"),
    (r"(?i)vace", "wan-2.1-vace-14b"),
    (r"(?i)flf2v", "wan-2.1-flf2v-14b"),
    (r"(?i)(ti2v|2[._]2.*5b)", "wan-2.2-5b"),
    (r"(?i)2[._]2.*i2v", "wan-2.2-i2v-14b"),
    (r"(?i)2[._]2", "wan-2.2-14b"),
    (r"(?i)i2v", "wan-2.1-i2v-14b"),
    (r"(?i)1[._]3b", "wan-2.1-1.3b"),
    (r"(?i)14b", "wan-2.1-14b"),
)
MODELS = {
    "flux": DiffusionPipeModel(
        ((r"(?i)kontext", "flux-kontext"), (r"(?i)schnell", "flux-schnell"), (_ANY, "flux-dev")),
        _DIFFUSERS,
        format="diffusers",
    ),
    "sdxl": DiffusionPipeModel(((_ANY, "sdxl"),), ("checkpoint_path",), format="kohya"),
    "chroma": DiffusionPipeModel(((r"(?i)base", "chroma1-base"), (_ANY, "chroma1-hd")), ("transformer_path",)),
    "sd3": DiffusionPipeModel(
        ((r"(?i)large", "sd3.5-large"), (r"(?i)(?<![\d.])3-medium", "sd3-medium"), (_ANY, "sd3.5-medium")),
        _DIFFUSERS,
        format="diffusers",
    ),
    "qwen_image": DiffusionPipeModel(
        (
            (r"(?i)edit.?2511", "qwen-image-edit-2511"),
            (r"(?i)edit.?(2509|plus)", "qwen-image-edit-2509"),
            (r"(?i)edit", "qwen-image-edit"),
            (r"2512", "qwen-image-2512"),
            (_ANY, "qwen-image"),
        ),
        _DIFFUSERS,
    ),
    "z_image": DiffusionPipeModel(((r"(?i)turbo", "z-image-turbo"), (_ANY, "z-image"))),
    "flux2": DiffusionPipeModel(
        (
            (r"(?i)klein.*base.*9b", "flux2-klein-base-9b"),
            (r"(?i)klein.*base", "flux2-klein-base-4b"),
            (r"(?i)klein.*9b", "flux2-klein-9b"),
            (r"(?i)klein", "flux2-klein-4b"),
            (_ANY, "flux2-dev"),
        )
    ),
    "krea2": DiffusionPipeModel(((r"(?i)turbo", "krea2-turbo"), (_ANY, "krea2-raw"))),
    "wan": DiffusionPipeModel(_WAN, ("transformer_path",), fps=16.0),
    "ltx-video": DiffusionPipeModel(
        ((r"(?i)13b", "ltx-video-13b"), (_ANY, "ltx-video-2b")),
        ("single_file_path", "diffusers_path"),
        fps=25.0,
        frames=8,
    ),
    # Only version 2.3 is supported there.
    "ltx2": DiffusionPipeModel(((_ANY, "ltx-2.3"),), fps=24.0, frames=8),
    "hunyuan_video_15": DiffusionPipeModel(
        ((r"(?i)i2v", "hunyuan-video-1.5-i2v"), (_ANY, "hunyuan-video-1.5")), fps=24.0
    ),
    "minimax_h3": DiffusionPipeModel(((_ANY, "minimax-h3"),), fps=24.0, frames=17, first=0),
}
_TYPES = (*MODELS, "cosmos", "cosmos_predict2", "anima", "lumina_2", "hidream", "omnigen2", "hunyuan_image")
TYPES = frozenset((*_TYPES, "hunyuan-video", "auraflow", "ernie_image", "ideogram4"))
_PATHS = ("transformer_path", "diffusion_model", "single_file_path", "checkpoint_path", "ckpt_path", "diffusers_path")


def former_model(settings: FormerSettings) -> DiffusionPipeModel | None:
    """Return the model of some settings; None for one that is not here."""
    known = MODELS.get(str(settings.get("model.type")))
    if known is not None and "wan-2.2-5b" in preset_names(settings):
        return known._replace(fps=24.0)
    return known


def preset_names(settings: FormerSettings) -> list[str]:
    """Return the names of the model that some settings mean, the most exact one first."""
    kind = str(settings.get("model.type", ""))
    if kind not in MODELS:
        return [kind]
    paths = [_ends(path) for key in _PATHS if isinstance(path := settings.get(f"model.{key}"), str)]
    # Of the weights first: a folder beside them may be of a relative with the same encoders.
    names = [
        preset for path in paths for pattern, preset in MODELS[kind].presets if pattern and re.search(pattern, path)
    ]
    edits = any(name.endswith(".control_path") for name in settings.values)
    if edits and kind in ("flux", "qwen_image"):
        of_edits = [name for name in names if "kontext" in name or "edit" in name]
        names = of_edits or ["flux-kontext" if kind == "flux" else "qwen-image-edit"]
    return names[:1] + [preset for pattern, preset in MODELS[kind].presets if not pattern] or [kind]


def _ends(path: str) -> str:
    """Return the last two parts of a path, which are the names of a release and of a file or folder in it."""
    return "/".join(re.split(r"[/\\]", path.rstrip("/\\"))[-2:])
