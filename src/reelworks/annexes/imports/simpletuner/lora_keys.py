"""Translations of the options of the model and of its LoRA or LyCORIS to recipe keys."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import rules, tables
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.annexes.imports.simpletuner import models

_TABLE = tables.table("simpletuner", "layers")


def _lora_type(value: Any, draft: ImportDraft) -> Outcome:
    if value == "lycoris":
        if "lycoris.algo" not in draft.settings.values:
            draft.set("lora.type", "lokr")
            return Fate.TO_FILL_IN, "lycoris_config is not found: give it too, or set lora.type and lora.rank by hand"
        return Fate.TAKEN, "lycoris_config"
    own = _TABLE["standard"].get(models.family(draft.settings), "default")
    draft.set("lora.targets", own, "all attentions")
    return Fate.TAKEN, 'lora.type = "lora"'


def _layers(value: Any, draft: ImportDraft) -> Outcome:
    named = _TABLE["named"].get(value) if isinstance(value, str) else value
    if not isinstance(named, list | str) or not named:
        return Fate.NOT_POSSIBLE, "no layers have this name: list them in lora.targets; all attentions until then"
    return Fate.TAKEN, draft.set("lora.targets", named)


def _algorithm(value: Any, draft: ImportDraft) -> Outcome:
    here = {"lora": "lora", "locon": "lora", "lokr": "lokr", "loha": "loha", "diag-oft": "oft"}.get(str(value).lower())
    settings = draft.settings
    draft.set("lora.targets", _targets_of_classes(draft), "lycoris.apply_preset")
    remark = draft.set("lora.type", here or "lokr")
    if settings.get("lycoris.dora_wd", settings.get("lycoris.weight_decompose")) is True and here == "lora":
        draft.set("lora.dora", True)
    return (Fate.TAKEN, remark) if here else (Fate.NOT_POSSIBLE, f"{remark} replaces it")


def _targets_of_classes(draft: ImportDraft) -> list[str] | str:
    """Return the linear layers in modules of the classes that LyCORIS's preset names, or the nearest of others."""
    names, known = _classes(draft), _layers_of_classes(draft)
    if names and names <= known.keys():
        return [layer for name in sorted(names) for layer in known[name]]
    is_wider = any(part in name.lower() for name in names for part in ("feed", "mlp", "block"))
    return "blocks" if is_wider or not names else "default"


def _classes(draft: ImportDraft) -> set[str]:
    named = draft.settings.get("lycoris.apply_preset.target_module")
    return {name for name in named if isinstance(name, str)} if isinstance(named, list) else set()


def _layers_of_classes(draft: ImportDraft) -> dict[str, list[str]]:
    """Return the linear layers in modules of diffusers' classes; empty for a network whose ones are not known."""
    preset = str(draft.get("model.name", ""))
    return next((known for known in _TABLE["classes"] if preset.startswith(tuple(known["of"]))), {})


def _target_module(value: Any, draft: ImportDraft) -> Outcome:
    if _classes(draft) <= _layers_of_classes(draft).keys():
        return Fate.TAKEN, "lora.targets"
    return rules.exact_or_nearest(
        f"lora.targets = {draft.get('lora.targets')!r}", "layers of these classes are not known: name them"
    )


def _lycoris_rank(value: Any, draft: ImportDraft) -> Outcome:
    if draft.get("lora.type") == "oft":
        return Fate.TAKEN, draft.set("lora.block_size", value)
    return Fate.TAKEN, draft.set("lora.rank", value)


def _lycoris_alpha(value: Any, draft: ImportDraft) -> Outcome:
    rank: Any = draft.settings.get("lycoris.linear_dim")
    if draft.get("lora.type") == "lokr" and isinstance(rank, int) and rank >= 5000:
        return Fate.NO_MEANING, "a LoKr of two full factors has no scale"
    return Fate.TAKEN, draft.set("lora.alpha", float(value or rank))


def _base(value: Any, draft: ImportDraft) -> Outcome:
    name = str(value).lower()
    has_4_bits = any(part in name for part in ("nf4", "int4", "fp4", "int2"))
    base = "nf4" if has_4_bits else "int8" if "int8" in name else "float8"
    remark = draft.set("lora.base", base)
    exact = name.startswith(("int8-", "fp8-", "nf4-bnb"))
    return (Fate.TAKEN, remark) if exact else (Fate.NOT_POSSIBLE, f"{remark} replaces it")
