"""Translations of OneTrainer's settings of LoRAs and other adapters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from reelworks.annexes.imports import rules, tables
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.onetrainer import parts
from reelworks.annexes.imports.rules import Fate, Outcome
from reelworks.models import registry

_FORMATS = {"DIFFUSERS_LORA": "diffusers", "COMFY_LORA": "comfyui", "ORIGINAL_LORA": "comfyui", "KOHYA_LORA": "kohya"}
# By the beginning of the preset; N stands for a number.
LAYERS: dict[str, Sequence[str]] = tables.table("onetrainer", "layers")
# Without sizes, and with convolutions where SDXL has linear layers.
LAYERS["sd1.5"] = [name for name in LAYERS["sdxl"] if not re.search(r"add_embedding|proj_(in|out)$", name)]
_NUMBERS = ("0", "1")  # of blocks, to find out whether a filter tells them apart


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
        found = targets(draft.get("model.name"), patterns, regex)
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


class _Targets(NamedTuple):
    """`lora.targets` for a filter, and what is other than there."""

    names: list[str] | str  # "blocks" if the layers are all of these
    others: list[str]  # layers that the names mean, too
    by_number: bool  # whether the filter chooses blocks by their numbers, which the names do not


def targets(preset: str, patterns: Sequence[str], regex: bool) -> _Targets:
    """Return the names with which `lora.targets` means the layers that match one of some patterns.

    Raises:
        ValueError: A pattern is no regular expression, or no layer that is known matches.
    """
    layers = next((known for start, known in LAYERS.items() if preset.startswith(start)), ())
    tests = [re.compile(pattern.strip() if regex else re.escape(pattern.strip())) for pattern in patterns]
    found = {layer: [_matches(layer, number, tests) for number in _NUMBERS] for layer in layers}
    chosen = [layer for layer in layers if any(found[layer])]
    if not chosen:
        raise ValueError("no layer matches")
    blocks = tuple(f"{name}." for name in registry.PRESETS[preset].config.network.blocks)
    by_number = any(len(set(each)) > 1 for each in found.values())
    if set(chosen) == {layer for layer in layers if layer.startswith(blocks)}:
        return _Targets("blocks", [], by_number)
    names: list[str] = []
    for layer in chosen:
        if not any(_means(name, layer) for name in names):
            names.append(_ending(layer, layers, chosen))
    others = [layer for layer in layers if layer not in chosen and any(_means(name, layer) for name in names)]
    return _Targets(names, others, by_number)


def _matches(layer: str, number: str, tests: Iterable[re.Pattern[str]]) -> bool:
    name = re.sub(r"\bN\b", number, layer)
    return any(test.search(name) for test in tests)


def _means(name: str, layer: str) -> bool:
    return layer == name or layer.endswith(f".{name}")


def _ending(layer: str, layers: Sequence[str], chosen: Sequence[str]) -> str:
    """Return the shortest end of a name that means no layer but chosen ones; if there is none, the longest one."""
    path = layer.split("N.")[-1].split(".")
    ends = [".".join(path[at:]) for at in reversed(range(len(path))) if at == 0 or not path[at].isdecimal()]
    exact = (end for end in ends if all(each in chosen for each in layers if _means(end, each)))
    return next(exact, ends[-1])
