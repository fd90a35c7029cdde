"""Models of sd-scripts, which the started script tells, and those that are not trained here."""

from __future__ import annotations

from reelworks.annexes.imports import tables
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.kohya.reading import not_here, not_told
from reelworks.annexes.imports.trainer import find_model
from reelworks.annexes.imports.values import ends_of, is_on
from reelworks.models import registry

_TABLE = tables.table("sd_scripts", "models")
_NOT_HERE: dict[str, str] = _TABLE["not_here"]
_FAMILIES: dict[str, str] = _TABLE["families"]


def is_training(name: str) -> bool:
    """Whether a script of this name, without `.py`, trains."""
    starts = (*_FAMILIES, *_NOT_HERE)
    return name.startswith(starts) and ("train" in name or name == "fine_tune") and not name.endswith("_caching")


def script_of(draft: ImportDraft) -> str:
    """Return the name of the script without `.py`, also as other settings tell it; "" if none does."""
    get = draft.settings.get
    if isinstance(get("script"), str):
        return str(get("script")).removesuffix(".py")
    if (script := _TABLE["scripts"].get(str(get("model_train_type")))) is not None:
        return str(script)
    module = str(get("network_module", ""))
    ending = "_train_network" if module or get("network_dim") is not None else "_train"
    for name in ("flux", "sd3", "lumina", "hunyuan_image", "anima"):
        if f"_{name}" in module:
            return f"{name}{ending}"
    for family, needed in _TABLE["arguments"].items():
        if all(map(get, needed)):
            return f"{family}{ending}"
    weights = registry.plain(str(get("pretrained_model_name_or_path", "")))
    if any(word in weights for word in ("sd15", "v15", "sdv1")):
        return ending.removeprefix("_") if ending == "_train_network" else "train_db"
    for word, family in _TABLE["words"].items():
        if word in weights:
            return f"{family}{ending}"
    if get("no_half_vae") or get("max_bucket_reso") in (2048, 1536):
        return f"sdxl{ending}"
    return ""


def find(draft: ImportDraft) -> tuple[str, str]:
    """Return the preset and the setting that tells it; raises `UserError` for a model that is not here, or not told."""
    script = script_of(draft)
    if draft.request.model is not None:
        return find_model(draft, "--model", []), "--model"
    key = "script" if draft.settings.get("script") else "network_module"
    name = next((known for known in sorted(_NOT_HERE, key=len, reverse=True) if script.startswith(known)), None)
    if name is not None:
        raise not_here(_NOT_HERE[name], key, script)
    family = next((family for start, family in _FAMILIES.items() if script.startswith(start)), None)
    if family is None:
        raise not_told(draft, "sdxl or flux")
    if family == "sd1.5" and is_on(draft.settings.get("v2", False)):
        raise not_here("Stable Diffusion 2", "v2", "true")
    return _preset(draft, family), key


def _preset(draft: ImportDraft, family: str) -> str:
    weights = registry.plain(ends_of(str(draft.settings.get("pretrained_model_name_or_path", ""))))
    kind = "chroma" if draft.settings.get("model_type") == "chroma" else family
    presets: dict[str, str] = _TABLE["presets"].get(kind, {"": family})
    return next(preset for word, preset in presets.items() if word in weights)
