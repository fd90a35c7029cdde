"""Models of musubi-tuner, which the started script and its task tell, and those that are not trained here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from reelworks.annexes.imports import tables
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.kohya.reading import not_here, not_told
from reelworks.annexes.imports.trainer import find_model
from reelworks.annexes.imports.values import ends_of, expert_of
from reelworks.models import registry

_TABLE = tables.table("musubi", "models")
_NOT_HERE: dict[str, str] = _TABLE["not_here"]
_ATTENTIONS = ("to_q", "to_k", "to_v", "to_out.0")
_JOINT = (*_ATTENTIONS, "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
# Layers of a LoRA in each network, without those of modulation; of Krea 2 all there are. Z-Image and Ideogram 4 have the same.
_FEED_FORWARD = [f"{name}.net.{layer}" for name in ("ff", "ff_context") for layer in ("0.proj", "2")]
_KONTEXT = [*_JOINT, *_FEED_FORWARD, "proj_mlp", "single_transformer_blocks.*.proj_out"]
_HUNYUAN = [f"transformer_blocks.*.attn.{name}" for name in _JOINT]
_HUNYUAN += [f"transformer_blocks.*.{name}" for name in (*_FEED_FORWARD, "norm1.linear", "norm1_context.linear")]
_LAYERS = [f"layers.*.attention.{name}" for name in _ATTENTIONS]
_LAYERS += [f"layers.*.feed_forward.w{number}" for number in (1, 2, 3)]
_KANDINSKY = ["to_query", "to_key", "to_value", "self_attention.out_layer", "cross_attention.out_layer"]
_KANDINSKY += ["feed_forward.in_layer", "feed_forward.out_layer"]
_KREA = [
    *_ATTENTIONS,
    *["to_gate", "ff.gate", "ff.up", "ff.down", "projector", "img_in", "txt_in.linear_1", "txt_in.linear_2"],
]
_KREA += ["time_embed.linear_1", "time_embed.linear_2", "time_mod_proj", "final_layer.linear"]


class Model(NamedTuple):
    """A model of a script.

    Attributes:
        preset: Returns its preset by the settings; None for one that is not there.
        videos_per_second: Frame rate to which videos are brought if their own is given.
        targets: Layers of a LoRA.
        sampling: Density of timesteps unless the settings have one.
        of_files: Layers of a LoRA to begin with, where they include some without effect, which are not trained here.
    """

    preset: Callable[[FormerSettings], str | None]
    videos_per_second: float | None = None
    targets: Any = "blocks"
    sampling: str = "sigma"
    of_files: Any = None


def _by(key: str, names: Mapping[str, str], default: str) -> Callable[[FormerSettings], str | None]:
    return lambda settings: names.get(str(settings.get(key) or default))


def _qwen(settings: FormerSettings) -> str | None:
    if settings.get("model_version") is None:
        if settings.get("edit_plus"):
            return "qwen-image-edit-2509"
        if settings.get("edit"):
            return "qwen-image-edit"
    preset = _TABLE["qwen"].get(str(settings.get("model_version") or "original"))
    return "qwen-image-2512" if preset == "qwen-image" and "2512" in _weights(settings) else preset


def _by_weights(word: str, preset: str, otherwise: str) -> Callable[[FormerSettings], str | None]:
    return lambda settings: preset if word in _weights(settings) else otherwise


def _weights(settings: FormerSettings) -> str:
    return registry.plain(ends_of(str(settings.get("dit", ""))))


# By the beginning of the script's name.
MODELS: dict[str, Model] = {
    "wan_train": Model(_by("task", _TABLE["wan_tasks"], "t2v-14B"), 16.0),
    "hv_1_5_train": Model(
        _by("task", {"t2v": "hunyuan-video-1.5", "i2v": "hunyuan-video-1.5-i2v"}, "t2v"), 24.0, of_files=_HUNYUAN
    ),
    "flux_kontext_train": Model(lambda _: "flux-kontext", targets=_KONTEXT),
    "flux_2_train": Model(_by("model_version", _TABLE["flux_2"], "dev")),
    "qwen_image_train": Model(
        _qwen, targets=[*_JOINT, "img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2"]
    ),
    "zimage_train": Model(_by_weights("turbo", "z-image-turbo", "z-image"), targets=_LAYERS),
    "kandinsky5_train": Model(_by("task", _TABLE["kandinsky5_tasks"], ""), 24.0, targets=_KANDINSKY),
    "krea2_train": Model(_by_weights("turbo", "krea2-turbo", "krea2-raw"), targets=_KREA),
    "ideogram4_train": Model(lambda _: "ideogram-4", targets=_LAYERS, sampling="ideogram4_shift"),
}


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
        if str(settings.get("task")) in _TABLE[f"{start}_tasks"]:
            return f"{start}_train", "task"
    if str(settings.get("model_version")) in _TABLE["qwen"] or settings.get("edit") or settings.get("edit_plus"):
        return "qwen_image_train", "model_version"
    if str(settings.get("model_version")) in _TABLE["flux_2"]:
        return "flux_2_train", "model_version"
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
        name = "task" if start in ("wan_train", "hv_1_5_train", "kandinsky5_train") else "model_version"
        raise not_here(f"{start.removesuffix('_train')} {draft.settings.get(name)}", name, draft.settings.get(name))
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
    start = next((start for word, start in family.items() if preset.startswith(word)), None)
    return MODELS[start] if start is not None else Model(lambda _: preset)
