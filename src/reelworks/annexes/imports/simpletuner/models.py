"""Models of SimpleTuner: the presets that its families and flavours mean, and the multiples of its bucket sizes."""

from __future__ import annotations

from typing import Any, NamedTuple

from reelworks.annexes.imports import tables, trainer
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.models import registry


class Flavour(NamedTuple):
    """A preset, and weights in place of the published ones, with what else the flavour means here."""

    preset: str
    weights: str | None = None
    experts: str | None = None
    training_adapter: str | None = None
    shift: float | None = None  # of timesteps, in place of the trainer's default; of Wan whatever the config says


DEFAULT_SHIFT = 3.0
# By family; the first flavour is the default.
FLAVOURS = {
    family: {name: Flavour(**flavour) for name, flavour in flavours.items()}
    for family, flavours in tables.table("simpletuner", "models").items()
}
_SPELLINGS = {"qwen-image": "qwen_image", "z-image": "z_image", "ltxvideo-2": "ltxvideo2", "minimax-h3": "minimaxh3"}
# Families whose clips have 8 n + 1 frames there.
_EIGHTS = ("wan", "ltxvideo", "ltxvideo2", "longcat_video", "sanavideo")


def family(settings: FormerSettings) -> str:
    """Return the name of the family."""
    name = settings.get("model_family")
    name = name.strip().lower() if isinstance(name, str) else ""
    return _SPELLINGS.get(name, name)


def flavour(settings: FormerSettings) -> str:
    """Return the flavour of the config; the family's default if it has none."""
    name = settings.get("model_flavour")
    known = FLAVOURS.get(family(settings), {})
    # "1.5" was read as a number.
    named = str(name).strip().lower() if isinstance(name, str) or str(name) in known else ""
    return named or next(iter(known), "")


def shift_of(settings: FormerSettings, value: Any) -> float | None:
    """Return the shift of timesteps that a flavour has in place of a config's, if it has one."""
    chosen = FLAVOURS.get(family(settings), {}).get(flavour(settings))
    is_own = family(settings) == "wan" or value in (None, DEFAULT_SHIFT)
    return chosen.shift if chosen is not None and is_own else None


def bucket_multiple(settings: FormerSettings) -> int:
    """Return the number that divides the sides of all its buckets."""
    if family(settings) == "wan":
        return 64 if "5b" in flavour(settings) else 32
    if family(settings) == "flux2":
        return 16
    value = settings.get("aspect_bucket_alignment", 64)
    is_taken = isinstance(value, int) and 0 < value <= 4096 and family(settings) not in ("sdxl", "sd3", "flux")
    return int(value) if is_taken else 64


def frames_there(settings: FormerSettings, frames: int) -> int:
    """Return the number of frames to which it shortens a clip before anything else."""
    return max((frames - 1) // 8 * 8 + 1, 1) if family(settings) in _EIGHTS else frames


def longest_there(settings: FormerSettings, frames: int) -> int:
    """Return the number of frames of the longest file that it shortens to at most this many."""
    return (frames - 1) // 8 * 8 + 8 if family(settings) in _EIGHTS else frames


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
    has_sound = any(key.startswith("data.") and ".audio." in key for key in settings.values)
    if has_sound and f"{preset}-sound" in registry.PRESETS:
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
