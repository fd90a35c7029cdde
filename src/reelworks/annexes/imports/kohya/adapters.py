"""Rules of the trained network: LoRA of the trainers' own modules, and LyCORIS."""

from __future__ import annotations

import math
from typing import Any

from reelworks.annexes.imports import rules, tables
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.kohya import lycoris, reading
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.annexes.imports.values import is_on, number_of, whole_of
from reelworks.core.errors import UserError
from reelworks.models import registry
from reelworks.models.adapters.config import LoraConfig

# Algorithms of LyCORIS and modules of the trainers, and the types here; others have LoRA as the nearest.
_ALGORITHMS: dict[str, str] = tables.table("kohya", "names")["adapters"]


def trains_adapter(draft: ImportDraft, script: str) -> bool:
    """Whether a network is trained beside the model: by a script for it, or by a setting that only they have."""
    if script:
        return "network" in script
    if not reading.has_arguments(draft.settings):
        return True
    return any(draft.settings.get(key) is not None for key in ("network_module", "network_dim", "network_alpha"))


def type_of(draft: ImportDraft) -> str:
    """Return the type of the adapter in the trainer's own word."""
    module = str(draft.settings.get("network_module") or "networks.lora")
    if module.startswith("lycoris"):
        return str(draft.settings.get("network_args.algo") or "lora").lower()
    name = module.rpartition(".")[2]
    return "lora" if name.startswith("lora") and name != "lora_fa" else name


def begin(draft: ImportDraft, targets: Any, why: str) -> Outcome:
    """Set the type and the layers of the adapter, which `lora.rank` and others depend on."""
    draft.begin("network_module")
    theirs = type_of(draft)
    ours = _ALGORITHMS.get(theirs)
    remark = draft.set("lora.type", ours or "lora")
    found = lycoris.adapted(draft) if lycoris.is_used(draft) else None
    if found is not None:
        targets, why = found.targets, f'preset "{lycoris.preset_of(draft)}" of LyCORIS'
    draft.set("lora.targets", targets, why)
    if ours is None:
        return Fate.NOT_POSSIBLE, f"{theirs} is not there; {remark} replaces it"
    if found is not None and found.missing and "network_args.preset" not in draft.settings.values:
        return Fate.NOT_POSSIBLE, f'{remark}; the preset of LyCORIS is "full" by default: {found.missing}'
    return Fate.TAKEN, remark


def _alpha(value: Any, draft: ImportDraft) -> Outcome:
    alpha = number_of(1 if value is None else value)
    if alpha == 0:
        return Fate.TAKEN, "0 is the rank, as by default"
    if is_on(draft.settings.get("network_args.rs_lora")):
        alpha *= math.sqrt(whole_of(draft.get("lora.rank", 4)))
    return rules.within(alpha, draft, "lora.alpha", above=True)


def _lycoris_preset(value: Any, draft: ImportDraft) -> Outcome:
    if not lycoris.is_used(draft):
        return Fate.NO_MEANING, "only LyCORIS has presets"
    remark, missing = f"lora.targets = {draft.get('lora.targets')!r}", lycoris.adapted(draft).missing
    return (Fate.NOT_POSSIBLE, f"{remark}; {missing}") if missing else (Fate.TAKEN, remark)


def finish(draft: ImportDraft) -> None:
    """Choose file conventions that can hold the adapter, and take out settings that its type has not."""
    preset = draft.get("model.name")
    if draft.get("lora.type") is None:
        return
    settings = {key.removeprefix("lora."): draft.get(key) for key in draft.assigned() if key.startswith("lora.")}
    network = registry.PRESETS[preset].config.network
    lora = LoraConfig(**settings)
    formats = [each for each in registry.release_of(preset).formats if _can_write(lora, each, network)]
    draft.set("exports.formats", formats or ["diffusers"], "files that programs for this model read")


def _can_write(lora: LoraConfig, format: str, network: Any) -> bool:
    try:
        lora.require_writable(format, "exports.formats", network)
    except UserError:
        return False
    return True
