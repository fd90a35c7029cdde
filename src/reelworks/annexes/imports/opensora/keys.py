"""Translations of Open-Sora's config keys (v1.1 to 2.0) to recipe keys."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from reelworks.annexes.imports import datasets, rules, tables
from reelworks.annexes.imports.draft import ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule
from reelworks.core.errors import UserError
from reelworks.data.buckets.opensora import parse
from reelworks.data.media.formats import is_list
from reelworks.models import registry

_NAMES = tables.table("opensora", "names")
_SUPPORTED: dict[str, dict[str, list[str]]] = _NAMES["supported"]
_NOT_POSSIBLE: dict[str, str] = _NAMES["not_possible"]
_MODELS: dict[str, str] = _NAMES["models"]
_CONDITIONS: dict[str, str] = _NAMES["conditions"]
_TEXTS_2_0 = "black-forest-labs/FLUX.1-dev"
_SHIFT_2_0 = "opensora-2.0"
_PLACEHOLDER = "meta.csv"
_SECTIONS = ("dataset", "model", "vae", "ae", "text_encoder", "t5", "clip", "scheduler", "optim", "lr_scheduler")
_MOTION = "{text} {score_vmafmotion:.0f} motion score."


def flatten(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield keys and values, with the dicts of sections flattened: "model.type"."""
    for key, value in values.items():
        if key in _SECTIONS and isinstance(value, dict):
            yield from ((f"{key}.{inner}", v) for inner, v in value.items())
        else:
            yield key, value


def type_of(draft: ImportDraft, section: str) -> str:
    """Return the type of a section of the config, or "" if it has none."""
    return str(draft.settings.get(f"{section}.type", ""))


def _of_section(value: Any, draft: ImportDraft, rule: Rule) -> Outcome:
    """Use a rule unless its section has a type that is not supported."""
    section = draft.key.partition(".")[0]
    if section in _SUPPORTED and type_of(draft, section) not in _SUPPORTED[section]:
        return Fate.NOT_POSSIBLE, _NOT_POSSIBLE[section]
    return rule(value, draft)


def bucket_table(value: Any) -> Any:
    """Return a bucket_config, a dict of dicts of pairs, in the form of `[buckets.opensora]`."""
    table = parse.normal_form(value)
    if not isinstance(table, dict) or not all(isinstance(lengths, dict) for lengths in table.values()):
        raise UserError(
            "a dict of dicts is needed",
            code="opensora-bucket-config-invalid",
            field="bucket_config",
            value=value,
            remedy='write it as in {"256": {1: (1.0, 24)}}',
        )
    for name, lengths in table.items():
        for frames, entry in lengths.items():
            if not isinstance(entry, list):
                raise UserError(
                    "a pair of probability and batch size is needed",
                    code="opensora-bucket-config-invalid",
                    field=f'bucket_config."{name}".{frames}',
                    value=entry,
                    remedy="write (1.0, batch_size)",
                )
    return table


def _type(value: Any, draft: ImportDraft, section: str, table: str) -> Outcome:
    """Translate the type to our name, with the default weights unless the config names others."""
    name, weights = _SUPPORTED[section][value]
    if not draft.settings.get(f"{section}.from_pretrained"):
        draft.set(f"{table}.weights", weights)
    return Fate.TAKEN, draft.set(f"{table}.name", name)


def _preset_of_2_0(draft: ImportDraft) -> str:
    """Return the preset of 2.0 for the patch of the config, 1 or 2."""
    patch = draft.settings.get("patch_size", draft.settings.get("model.patch_size", 2))
    return "opensora2-dc-ae" if patch == 1 else "opensora2"


def _size(value: Any, draft: ImportDraft) -> Outcome:
    """Compare a size of 2.0's network with that of the preset."""
    field = draft.key.rpartition(".")[2].replace("patch_size", "patch")
    wanted = registry.PRESETS[_preset_of_2_0(draft)].config.model_dump()[field]
    wanted = list(wanted) if isinstance(wanted, tuple) else wanted
    return rules.only(value, draft, (wanted,), "the preset has the same value", f"the preset has {wanted}")


def _temporal_tiles(value: Any, draft: ImportDraft) -> Outcome:
    """Report tiles along time, which one autoencoder of 2.0 has and the other has not."""
    has = type_of(draft, "ae") == "dc_ae"
    return rules.only(value, draft, (has,), "as here", f"{'32' if has else 'all'} frames are encoded together")


def _spread(value: Any, draft: ImportDraft) -> Outcome:
    remark = draft.set("autoencoder.std", value)
    return Fate.TAKEN, f"{remark}; with the published weights, 2.0 generates without it: leave it out"


def _model_type(value: Any, draft: ImportDraft) -> Outcome:
    """Translate the network, and for 2.0 what its training script fixes: texts, and the shift of timesteps."""
    if value not in _MODELS:
        return rules.by_name(value, draft, "model.name", _MODELS, "stdit3-xl", "this network is not supported")
    remark = draft.set("model.name", _preset_of_2_0(draft) if value == "flux" else _MODELS[value])
    if value == "flux":
        draft.set("text_encoder.name", "flux")
        draft.set("text_encoder.weights", _TEXTS_2_0)
        draft.set("objective.timestep_sampling", "logit-normal")
        remark += f", {draft.set('objective.timestep_shift', _SHIFT_2_0)}"
        if draft.settings.get("dropout_ratio") is None:
            draft.set("objective.caption_dropout", 0.0)
    return Fate.TAKEN, remark


def _dropout(value: Any, draft: ImportDraft) -> Outcome:
    """Convert the dropout of T5 and CLIP, which 2.0 draws one by one; here captions are dropped for both together."""
    if not isinstance(value, dict) or not value:
        return Fate.TAKEN, draft.set("objective.caption_dropout", 0.0)
    both = round(float(value.get("t5", 0.0)) * float(value.get("clip", 0.0)), 6)
    remark = draft.set("objective.caption_dropout", both)
    return Fate.TAKEN, f"{remark}, the share of clips without both; captions are not dropped for one alone"


def _conditions(value: Any, draft: ImportDraft) -> Outcome:
    """Convert the weights of kinds of conditions to shares of clips; unknown kinds become clips without condition."""
    if not isinstance(value, dict) or not (total := sum(value.values())):
        return Fate.NO_MEANING, "clips are trained without conditions"
    ratios = {_CONDITIONS[name]: weight / total for name, weight in value.items() if name in _CONDITIONS}
    remark = _set_ratios(ratios, draft)
    if others := sorted(name for name in value if name not in _CONDITIONS and name != "t2v"):
        return Fate.NOT_POSSIBLE, f"{remark}; {', '.join(others)} are trained without condition"
    return Fate.TAKEN, remark


def _data_path(value: Any, draft: ImportDraft) -> Outcome:
    if not value:
        placeholder = draft.set("dataset.0.path", _PLACEHOLDER, "to fill in")
        return Fate.TO_FILL_IN, f"replace the placeholder {placeholder} by your list or folder of clips"
    remark = draft.set("dataset.0.path", str(value))
    if is_list(str(value)):
        remark += "; if its paths are relative to another folder, set dataset.0.root to that folder"
    return Fate.TAKEN, remark


def _vmaf(value: Any, draft: ImportDraft) -> Outcome:
    """Use the text that 2.0 appends to captions of lists with this score, rounded in the same way."""
    if not is_list(draft.get("dataset.0.path", _PLACEHOLDER)):
        return Fate.TO_FILL_IN, "a folder has no such score: use a list with that column"
    return Fate.TAKEN, draft.set("dataset.0.caption", _MOTION)


def _mask_ratios(value: Any, draft: ImportDraft) -> Outcome:
    """Convert mask ratios; before 1.2 the strategies were called mask_no, mask_quarter_head and so on."""
    if isinstance(value, dict):
        names = {name: str(name).removeprefix("mask_") for name in value}
        value = {"identity" if names[k] == "no" else names[k]: ratio for k, ratio in value.items()}
    return Fate.TAKEN, _set_ratios(value or {}, draft)


def _set_ratios(ratios: dict[str, Any], draft: ImportDraft) -> str:
    return ", ".join(draft.set(f"objective.mask_ratios.{name}", ratio) for name, ratio in ratios.items()) or "none"


def _keep(value: Any, draft: ImportDraft) -> Outcome:
    if isinstance(value, int) and value > 0:
        return Fate.TAKEN, draft.set("checkpoints.keep_last", value)
    return Fate.NOT_POSSIBLE, "Open-Sora keeps all; here checkpoints.keep_last and keep_best decide"


def _fps_max(value: Any, draft: ImportDraft) -> Outcome:
    if value is None or draft.get("data.frame_interval", 1) != 1:
        return Fate.NO_MEANING, "frame_interval decides"
    remark = draft.set("data.fps", value)
    return rules.exact_or_nearest(remark, "each n-th frame is read there, so that rates just above it become half")


def _warmup(value: Any, draft: ImportDraft) -> Outcome:
    steps = draft.settings.get("accumulation_steps", 1) if type_of(draft, "model") == "flux" else 1  # counted by batch
    return Fate.TAKEN, draft.set("train.warmup_steps", (value or 0) // steps)


RULES = {
    key: partial(_of_section, rule=rule)
    for key, rule in tables.read("opensora", "keys", datasets, sys.modules[__name__]).items()
}
