"""Models of diffusion-pipe: the presets that they are here, and how each treats shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from reelworks.annexes.imports import tables, values
from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.values import ends_of, number


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

    presets: Sequence[Sequence[str]]
    weights: Sequence[str] = ("diffusion_model",)
    fps: float | None = None
    frames: int = 4
    first: int = 1
    format: str = "comfyui"

    def align(self, frames: int) -> int:
        """Return the number of frames that are trained of a bucket's."""
        return max((frames - self.first) // self.frames * self.frames + self.first, 1)


MODELS = {name: DiffusionPipeModel(**found) for name, found in tables.table("diffusion_pipe", "models").items()}
_TYPES = (*MODELS, "cosmos", "cosmos_predict2", "omnigen2")
TYPES = frozenset((*_TYPES, "hunyuan-video", "auraflow"))
_PATHS = ("transformer_path", "diffusion_model", "single_file_path", "checkpoint_path", "ckpt_path", "diffusers_path")


def former_model(settings: FormerSettings) -> DiffusionPipeModel | None:
    """Return the model of some settings; None for one that is not here."""
    known = MODELS.get(str(settings.get("model.type")))
    if known is not None and "wan-2.2-5b" in preset_names(settings):
        return known._replace(fps=24.0)
    return known


def expert_of(settings: FormerSettings) -> str:
    """Return which network of two is trained, by its bounds, or else by its name."""
    low, high = (number(settings.get(f"model.{key}", default)) for key, default in (("min_t", 0), ("max_t", 1)))
    if high < 1 or low > 0:
        return "low" if high < 1 else "high"
    named = (values.expert_of(str(settings.get(f"model.{key}", ""))) for key in ("transformer_path", "ckpt_path"))
    return next(filter(None, named), "high")


def preset_names(settings: FormerSettings) -> list[str]:
    """Return the names of the model that some settings mean, the most exact one first."""
    kind = str(settings.get("model.type", ""))
    if kind not in MODELS:
        return [kind]
    paths = [ends_of(path) for key in _PATHS if isinstance(path := settings.get(f"model.{key}"), str)]
    # Of the weights first: a folder beside them may be of a relative with the same encoders.
    names = [
        preset for path in paths for pattern, preset in MODELS[kind].presets if pattern and re.search(pattern, path)
    ]
    edits = any(name.endswith(".control_path") for name in settings.values)
    if edits and kind in ("flux", "qwen_image"):
        of_edits = [name for name in names if "kontext" in name or "edit" in name]
        names = of_edits or ["flux-kontext" if kind == "flux" else "qwen-image-edit"]
    return names[:1] + [preset for pattern, preset in MODELS[kind].presets if not pattern] or [kind]
