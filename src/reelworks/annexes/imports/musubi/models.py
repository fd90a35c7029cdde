"""Models of musubi-tuner, which the started script and its task tell, and those that are not trained here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from reelworks.annexes.imports import tables
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.kohya.reading import not_here, not_told
from reelworks.annexes.imports.trainer import find_model
from reelworks.annexes.imports.values import ends_of, expert_of
from reelworks.models import registry

_TABLE = tables.table("musubi", "models")
_NOT_HERE: dict[str, str] = _TABLE["not_here"]


class Model(NamedTuple):
    """A model of a script.

    Attributes:
        presets: Presets by values of the setting `by`, of which `default` holds where it is not set.
        by: See `presets`; "" if there is one alone.
        default: See `presets`.
        switches: Values of the setting that switches stand for where it is not set.
        by_weights: Other presets in place of one, by words in the name of the weights.
        videos_per_second: Frame rate to which videos are brought if their own is given.
        targets: Layers of a LoRA, without those of modulation.
        sampling: Density of timesteps unless the settings have one.
        of_files: Layers of a LoRA to begin with, where they include some without effect, which are not trained here.
    """

    presets: Mapping[str, str] = {}
    by: str = ""
    default: str = ""
    switches: Mapping[str, str] = {}
    by_weights: Mapping[str, Mapping[str, str]] = {}
    videos_per_second: float | None = None
    targets: Any = "blocks"
    sampling: str = "sigma"
    of_files: Any = None

    def preset(self, settings: FormerSettings) -> str | None:
        """Return its preset by the settings; None for one that is not there."""
        given = settings.get(self.by)
        if given is None:
            given = next((value for switch, value in self.switches.items() if settings.get(switch)), None)
        preset = self.presets.get(str(given or self.default))
        others = self.by_weights.get(str(preset), {})
        return next((other for word, other in others.items() if word in _weights(settings)), preset)


def _weights(settings: FormerSettings) -> str:
    return registry.plain(ends_of(str(settings.get("dit", ""))))


MODELS: dict[str, Model] = {name: Model(**found) for name, found in _TABLE["models"].items()}


def is_training(name: str) -> bool:
    """Whether a script of this name, without `.py`, trains."""
    return name.startswith((*MODELS, *_NOT_HERE))


def script_of(settings: FormerSettings) -> tuple[str, str]:
    """Return the beginning of the script's name and the setting that tells it; "" if none does."""
    script = str(settings.get("script", "")).removesuffix(".py")
    starts = sorted((*MODELS, *_NOT_HERE), key=len, reverse=True)
    if (found := next((start for start in starts if script.startswith(start)), None)) is not None:
        return found, "script"
    module = str(settings.get("network_module", "")).rpartition(".")[2]
    if module in _TABLE["modules"]:
        return str(_TABLE["modules"][module]), "network_module"
    for start in ("wan", "kandinsky5"):
        if str(settings.get("task")) in MODELS[f"{start}_train"].presets:
            return f"{start}_train", "task"
    for start in ("qwen_image_train", "flux_2_train"):
        known = MODELS[start]
        if str(settings.get("model_version")) in known.presets or any(map(settings.get, known.switches)):
            return start, "model_version"
    words = ((start, word) for start, known in _TABLE["files"].items() for word in known)
    return next(((start, "dit") for start, word in words if word in _weights(settings)), ("", ""))


def sampling_of(settings: FormerSettings) -> str:
    """Return the density of timesteps of the settings, or that of their script."""
    start, _ = script_of(settings)
    return str(settings.get("timestep_sampling") or (MODELS[start].sampling if start in MODELS else "sigma"))


def find(draft: ImportDraft) -> tuple[str, str, Model]:
    """Return the preset, the setting that tells it, and the script's model; raises `UserError` for one that is not here."""
    start, key = script_of(draft.settings)
    model = MODELS.get(start)
    if draft.request.model is not None:
        return find_model(draft, "--model", []), "--model", model or _alike(draft)
    if model is None and start:
        raise not_here(_NOT_HERE[start], key, str(draft.settings.get(key)))
    if model is None:
        raise not_told(draft, "wan-2.1-14b")
    preset = model.preset(draft.settings)
    if preset is None:
        given = draft.settings.get(model.by)
        raise not_here(f"{start.removesuffix('_train')} {given}", model.by, given)
    return preset, key, model


PAIRS = ("wan-2.2-14b", "wan-2.2-i2v-14b", "wan-2.2-flf2v-14b")
_SWITCH = 900  # between the boundaries of the two tasks, 875 and 900, and the whole range


def experts_of(settings: FormerSettings) -> tuple[str, tuple[str, ...], str]:
    """Return which networks of a pair are trained, the settings that tell it, and why; without a setting, the file's name."""
    if settings.get("dit_high_noise"):
        return "both", ("dit_high_noise",), "each step trains one of them"
    bounds = {}
    for name, default in (("min_timestep", 0.0), ("max_timestep", 1000.0)):
        try:
            bounds[name] = float(settings.get(name) or default)
        except (TypeError, ValueError):
            bounds[name] = default
    given = tuple(name for name in bounds if settings.get(name) is not None)
    if bounds["min_timestep"] >= _SWITCH / 2:
        return "high", given, "at its own range of timesteps"
    if bounds["max_timestep"] <= _SWITCH:
        return "low", given, "at its own range of timesteps"
    return expert_of(str(settings.get("dit", ""))) or "low", (), "by the file's name"


def frame_rate_of(settings: FormerSettings) -> float | None:
    """Return the rate to which videos are brought whose own is given; that of Wan if no script tells the model."""
    start, _ = script_of(settings)
    return MODELS[start].videos_per_second if start in MODELS else 16.0


def _alike(draft: ImportDraft) -> Model:
    """Return the model of a script that trains the asked preset, or one without rules of its own."""
    preset = find_model(draft, "--model", [])
    family = {"wan": "wan_train", "hunyuan": "hv_1_5_train", "qwen": "qwen_image_train", "z-image": "zimage_train"}
    return next((MODELS[start] for word, start in family.items() if preset.startswith(word)), Model())
