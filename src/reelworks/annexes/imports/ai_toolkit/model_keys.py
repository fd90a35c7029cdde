"""Translations of the settings of `network` and `model` to recipe keys."""

from __future__ import annotations

import re
from typing import Any

from reelworks.annexes.imports import rules
from reelworks.annexes.imports.ai_toolkit import models
from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome

_BITS = {"8": "float8", "4": "nf4", "3": "nf4", "2": "nf4", "5": "float8", "6": "float8", "7": "float8"}

_FULL_RANK = 100_000  # above any width, so that both factors of a LoKr are full


def _network(value: Any, draft: ImportDraft) -> Outcome:
    name = str(value).lower()
    remark = draft.set("lora.type", "lokr" if name == "lokr" else "lora")
    blocks = models.is_transformer(draft.settings) and draft.settings.get("network.transformer_only", True) is not False
    draft.set("lora.targets", "blocks", "all linear layers of the blocks")
    if name == "dora":
        draft.set("lora.dora", True)
    if name not in ("lora", "lokr", "dora", "locon", "lycoris"):
        return Fate.NOT_POSSIBLE, f"{remark} replaces it"
    if name in ("locon", "lycoris"):
        return Fate.NOT_POSSIBLE, f"{remark}: convolutions are not adapted"
    return rules.exact_or_nearest(remark, "" if blocks else "layers outside the blocks are not adapted")


def _rank(value: Any, draft: ImportDraft) -> Outcome:
    settings = draft.settings
    rank = settings.get("network.rank", settings.get("network.linear", 4))
    if draft.get("lora.type") == "lokr" and settings.get("network.lokr_full_rank", True) is not False:
        return Fate.TAKEN, f"{draft.set('lora.rank', _FULL_RANK)}: both factors are full matrices, which have no rank"
    return Fate.TAKEN, draft.set("lora.rank", rank)


def _alpha(value: Any, draft: ImportDraft) -> Outcome:
    settings = draft.settings
    if draft.get("lora.type") == "lokr" and settings.get("network.lokr_full_rank", True) is not False:
        return Fate.NO_MEANING, "a LoKr of two full factors has no scale"
    if models.is_transformer(settings):
        return Fate.NO_MEANING, "LoRAs of transformers have the scale 1 there, as here without lora.alpha"
    alpha = settings.get("network.linear_alpha", settings.get("network.alpha", 1.0))
    return Fate.TAKEN, draft.set("lora.alpha", float(alpha))


def _layers(value: Any, draft: ImportDraft) -> Outcome:
    names = [value] if isinstance(value, str) else [str(name) for name in value]
    if draft.key.endswith("ignore_if_contains") or any(name.endswith(".") for name in names):
        return Fate.NOT_POSSIBLE, 'parts of names are not compared: list layers in lora.targets; "blocks" until then'
    targets = [re.sub(r"^(?:transformer|diffusion_model|unet)\.", "", name) for name in names]
    return Fate.TAKEN, f"{draft.set('lora.targets', targets)}: complete names of layers, or their last parts"


def _quantised(value: Any, draft: ImportDraft) -> Outcome:
    kind = str(draft.settings.get("model.qtype", "qfloat8"))
    name, _, adapter = kind.partition("|")
    bits = re.search(r"\d+", name.replace("fp", "").replace("float", ""))
    base = _BITS.get(bits[0], "float8") if bits else "float8"
    if "int8" in name:
        base = "int8"
    remark = draft.set("lora.base", base)
    exact = base in ("float8", "int8") and not adapter and name in ("qfloat8", "float8", "qint8", "int8")
    without = ", without the adapter that recovers accuracy" if adapter else ""
    return rules.exact_or_nearest(remark, "" if exact else f"it replaces {name}{without}")


def _experts(value: Any, draft: ImportDraft) -> Outcome:
    high, low = (draft.settings.get(f"model.model_kwargs.train_{which}_noise", True) for which in ("high", "low"))
    if draft.get("model.experts") is None:
        return Fate.NO_MEANING, "the model has one network"
    return Fate.TAKEN, draft.set("model.experts", "both" if high and low else "high" if high else "low")


def _weights_named(value: Any, draft: ImportDraft) -> Outcome:
    weights = draft.get("model.weights")
    if str(value).startswith("ai-toolkit/"):
        return Fate.TAKEN, f'model.weights = "{weights}", of which it is a copy'
    return Fate.TAKEN, f'model.name = "{draft.get("model.name")}", model.weights = "{weights}"'


def has_network(settings: FormerSettings) -> bool:
    """Whether a LoRA is trained, and not all weights."""
    return any(key == "network" or key.startswith("network.") for key in settings.values)
