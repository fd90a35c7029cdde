"""Rules of the trained network: LoRA of the trainers' own modules, and LyCORIS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from reelworks.annexes.imports import rules, tables
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.kohya import reading
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
    found = _lycoris_layers(draft) if _is_lycoris(draft) else None
    if found is not None:
        targets, why = found.targets, f'preset "{_lycoris_preset_of(draft)}" of LyCORIS'
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
    if not _is_lycoris(draft):
        return Fate.NO_MEANING, "only LyCORIS has presets"
    remark, missing = f"lora.targets = {draft.get('lora.targets')!r}", _lycoris_layers(draft).missing
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


class _LycorisNetwork(NamedTuple):
    """Layers of a network, see `lycoris.toml`."""

    of: Sequence[str] = ()
    blocks: list[str] | str = "blocks"
    residual: Sequence[str] = ()
    attention: Sequence[str] = ()
    missing: str = ""


_NETWORKS = [_LycorisNetwork(**found) for found in tables.table("kohya", "lycoris")["networks"]]
_WITH_RESIDUAL = ("full", "full-lin", "unet-only")
_WITHOUT = ("attn-mlp", "unet-transformer-only")


class _LycorisLayers(NamedTuple):
    """Layers that a preset adapts, and what of it is not here; an empty text if nothing is."""

    targets: list[str] | str
    missing: str = ""


def _is_lycoris(draft: ImportDraft) -> bool:
    """Whether the trained network is one of LyCORIS."""
    return str(draft.settings.get("network_module") or "").startswith("lycoris")


def _lycoris_preset_of(draft: ImportDraft) -> str:
    """Return the name of the preset; LyCORIS's default is "full"."""
    return str(draft.settings.get("network_args.preset") or "full")


def _lycoris_layers(draft: ImportDraft) -> _LycorisLayers:
    """Return the layers that LyCORIS adapts in the draft's network."""
    name, preset = str(draft.get("model.name", "")), _lycoris_preset_of(draft)
    known = next((network for network in _NETWORKS if name.startswith(tuple(network.of))), _LycorisNetwork())
    # GLoRA adapts transformers alone, whatever the preset.
    is_glora = draft.settings.get("network_args.algo") == "glora"
    if is_glora or preset in _WITHOUT or (preset in _WITH_RESIDUAL and not known.residual):
        return _LycorisLayers(known.blocks, known.missing)
    if preset in _WITH_RESIDUAL:
        return _LycorisLayers([*known.blocks, *known.residual], "it adapts convolutions too, which have no update here")
    if preset == "attn-only":
        if known.attention:
            return _LycorisLayers([*known.attention])
        return _LycorisLayers("default", "it finds no layer of this network; all attentions are the nearest")
    if preset == "unet-convblock-only" and known.residual:
        return _LycorisLayers([*known.residual], "it adapts convolutions too, which have no update here")
    return _LycorisLayers(known.blocks, "this preset is not known: name its layers in lora.targets")
