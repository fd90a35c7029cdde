"""Translations of OneTrainer's settings of LoRAs and other adapters."""

from __future__ import annotations

import re
from typing import Any

from reelworks.annexes.imports import rules
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.onetrainer import layers, parts
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.models import registry

_FORMATS = {"DIFFUSERS_LORA": "diffusers", "COMFY_LORA": "comfyui", "ORIGINAL_LORA": "comfyui", "KOHYA_LORA": "kohya"}


def _decompose(value: Any, draft: ImportDraft) -> Outcome:
    remark = draft.set("lora.dora", True)
    if draft.settings.get("lora_decompose_output_axis") is True:
        return Fate.TAKEN, remark
    return Fate.NOT_POSSIBLE, f"there, magnitudes are those of columns, and here of rows: {remark}"


def _filter(value: Any, draft: ImportDraft) -> Outcome:
    preset = str(draft.settings.get("layer_filter_preset", "full"))
    patterns = parts.model_of(draft).filters.get(preset, ("",)) if value is None else str(value).split(",")
    if not parts.trains_adapter(draft):
        if all(pattern == "" for pattern in patterns):
            return Fate.DEFAULT, "all weights are trained"
        return Fate.NOT_POSSIBLE, "all weights are trained, and not some layers: train a LoRA, which has lora.targets"
    of_preset = value is None and any("(?" in each for each in patterns)
    regex = of_preset or draft.settings.get("layer_filter_regex") is True
    try:
        found = layers.targets(draft.get("model.name"), patterns, regex)
    except (LookupError, ValueError, re.error):
        return Fate.NOT_POSSIBLE, f"no linear layer matches; the nearest: {draft.set('lora.targets', 'blocks')}"
    remark = draft.set("lora.targets", found.names)
    if draft.get("model.name") in ("sdxl", "sd1.5") and patterns in (("",), [""]):
        return Fate.NOT_POSSIBLE, f"{remark}; convolutions have no update here"
    if found.by_number:
        return Fate.NOT_POSSIBLE, f"{remark}, in all blocks: to choose some, write complete names"
    others = f"it means {len(found.others)} other kinds of layers too: {found.others[0]}, …" if found.others else ""
    return rules.exact_or_nearest(remark, others)


def _format(value: Any, draft: ImportDraft) -> Outcome:
    known = registry.release_of(draft.get("model.name")).formats
    wanted = _FORMATS.get(str(value), "diffusers")
    if wanted in known:
        return Fate.TAKEN, draft.set("exports.formats", [wanted])
    return Fate.NOT_POSSIBLE, f"the nearest: {draft.set('exports.formats', [known[0]])}"
